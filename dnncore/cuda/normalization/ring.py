"""Batch normalisation of planes in training, and its gradients, by blocks that stay: a channel is in shared memory from when it is
added up until it is written, and the next one is on its way meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, Place, WhereAligned, kernel_call
from dnncore.cuda.normalization.channel_params import CHANNEL_PARAMS, addresses_of, channel_params
from dnncore.cuda.normalization.cuts import cut_of, operands_of
from dnncore.cuda.normalization.frame import LIKE_X, PACK_BYTES, Partition
from dnncore.cuda.normalization.passes import places_of
from dnncore.cuda.normalization.statistics import Anywhere
from dnncore.cuda.params import c_type
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import BatchNormBackwardProblem, BatchNormForwardProblem

__all__ = ["Ring"]

_THREADS = 512
"""Of a block; kRingThreads in ring.cuh."""

_SLOTS, _AT_ONCE = 28, 4
"""Of 16 bytes, of a thread: slots, and those of a step, which it takes together; kRingSlots, and kAtOnce of one tensor, in
ring.cuh. Of two tensors each is half as many."""

_TURNS = 3
"""Steps that registers keep of those that pass through them; kTurns there."""

_OF_MEMORY_RATE = 0.85
"""Measured on an H200, as are the next two: 24 shapes, of 64 to 512 channels of 16 x 16 to 112 x 112, are within 0.87 and 1.16 of
what these give."""

_BETWEEN_CLOCKS = 1500
"""From when a channel's last vectors are there until the first is written, while little is on its way."""

_BYTES_PER_CLOCK = 24
"""Of a multiprocessor, in and out."""

_OF_CACHE = 0.6
"""Of the second-level cache, what holds elements until they are read again. Assumed, not measured on a GPU."""

_ARCHITECTURE = "sm_90a"
"""Where a block can have the shared memory for these slots, of the architectures that kernels are built for."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)

_Problem = BatchNormForwardProblem | BatchNormBackwardProblem


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a launch shares out the channels of a tensor. Immutable.

    Args:
        partition: Of the tensor.
        tensors: That are held: 1 forward, 2 backward.
        multiprocessors: Of the device.
        threads: Of a block.
    """

    partition: Partition
    tensors: int
    multiprocessors: int
    threads: int = _THREADS

    @property
    def blocks(self) -> int:
        """That a launch has: those that run at the same time, if there are channels for them."""
        return min(self.multiprocessors, self.partition.group_count)

    @property
    def turns(self) -> int:
        """Channels of a block, at most."""
        return -(-self.partition.group_count // self.blocks)

    @property
    def read_again(self) -> float:
        """Of a channel's vectors, those that neither slots nor registers keep until they are written."""
        most, slots, at_once = (
            -(-self.partition.element_packs // self.threads),
            _SLOTS // self.tensors,
            _AT_ONCE // self.tensors,
        )
        steps = -(-max(most - slots, 0) // at_once)
        return max(steps - _TURNS, 0) * at_once / most

    def seconds(self, problem: _Problem, figures: DeviceFigures) -> float:
        """Estimated time of the launch."""
        reads_y = isinstance(problem, BatchNormBackwardProblem) and problem.y is not None and problem.dz is None
        again = self.read_again * (self.tensors + reads_y) * problem.x.size * problem.x.dtype.itemsize
        waiting = again * self.blocks / self.partition.group_count
        lost = max(1 - _OF_CACHE * figures.l2_bytes / waiting, 0.0) if again else 0.0
        nbytes = operand_bytes(problem) + again * lost
        of_blocks = self.blocks * _BYTES_PER_CLOCK * figures.clock_hz
        moving = max(nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE), (nbytes + again * (1 - lost)) / of_blocks)
        # In the last turn some blocks may have nothing to do.
        of_all = self.turns * self.blocks / self.partition.group_count
        return figures.launch_seconds + moving * of_all + self.turns * _BETWEEN_CLOCKS / figures.clock_hz


def _shape(problem: _Problem, figures: DeviceFigures) -> _Shape | None:
    """None where there is no kernel."""
    partition = Partition.of(cut_of(problem), operands_of(problem), figures, PACK_BYTES)
    if figures.architecture != _ARCHITECTURE or not partition.is_whole or partition.packs_groups:
        return None
    if len(partition.groups[0]) > 1:
        return None
    tensors = 1 if isinstance(problem, BatchNormForwardProblem) else 2
    return _Shape(partition, tensors, figures.multiprocessors)


@dataclass(frozen=True, slots=True)
class Ring:
    """Batch normalisation of planes in training, or its gradients, that reads each channel once. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "ring"

    def offer(self, problem: _Problem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`; the workspace is for what computes it where addresses are not aligned."""
        if problem.x.dtype not in _DTYPES:
            return f"x is of {problem.x.dtype.value}; its sums are of 32 bits"
        if not problem.x.size:
            return "x is empty"
        shape = _shape(problem, figures)
        if shape is None:
            return (
                f"planes of x {problem.x} are no whole vectors of {PACK_BYTES} bytes that lie alike in all operands, or the device "
                f"is none of {_ARCHITECTURE}"
            )
        anywhere = self._anywhere.offer(problem, figures)
        prepare = partial(_prepare, problem, figures, self.direction, shape, anywhere)
        return Offer(shape.seconds(problem, figures), prepare, anywhere.workspace_bytes)

    def units(self) -> tuple[Unit, ...]:
        """Its own, and those for addresses that are not aligned."""
        own = (_unit(self.direction, dtype) for dtype in _DTYPES)
        return (*own, *self._anywhere.units())

    @property
    def _anywhere(self) -> Anywhere:
        return Anywhere(self.direction)


def _prepare(problem: _Problem, figures: DeviceFigures, direction: str, shape: _Shape, anywhere: Offer) -> Calls:
    params = channel_params(problem, shape.partition, channels=shape.partition.group_count)
    calls = kernel_call(
        _unit(direction, problem.x.dtype),
        shape.blocks,
        shape.threads,
        params,
        addresses_of(problem),
        shared_bytes=_SLOTS * shape.threads * PACK_BYTES,
        starts_early=figures.starts_early,
    )
    alignments = tuple((Place(place), PACK_BYTES) for one, place in places_of(problem).items() if one in LIKE_X)
    return (WhereAligned(alignments, calls, anywhere.prepare),)


@cache
def _unit(direction: str, dtype: DType) -> Unit:
    """The kernel; `direction` is "forward" or "backward"."""
    element = c_type(dtype)
    entry = f"normalization_ring_{direction}_{element}"
    source = (
        f'#include "dnncore/normalization/ring_{direction}.cuh"\n'
        "using namespace dnncore;\n"
        f'static_assert(sizeof(ChannelParams) == {CHANNEL_PARAMS.itemsize}, "dnncore/cuda and channel_params.cuh disagree");\n'
        f'extern "C" __global__ void __launch_bounds__({_THREADS}, 1) {entry}(const __grid_constant__ ChannelParams params) {{\n'
        f"  normalize_in_ring<{element}, Ring{direction.capitalize()}>(params);\n}}\n"
    )
    return Unit(source, entry, (_ARCHITECTURE,))
