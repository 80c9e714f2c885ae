"""Batch normalisation of planes in training, and its gradients, by blocks that stay: a channel is in shared memory from when it is
added up until it is written, and the next one is on its way meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
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
"""Of 16 bytes, of a thread: slots, and those of a step, which it takes together; kRingSlots, and kAtOnce of one tensor, in ring.cuh. Of
two tensors each is half as many."""

_TURNS = 3
"""Steps that registers keep of those that pass through them; kTurns there."""

_BLOCKS = (1, 2, 4, 8)
"""That may have a channel together."""

_OF_MEMORY_RATE = 0.9
"""Assumed, not measured on a GPU."""

_BETWEEN_CLOCKS = {1: 2000, 2: 3000, 4: 3500, 8: 4000}
"""By the blocks of a cluster: from when a channel's last vectors are there until the first is written, while little is on its way.
Assumed, not measured on a GPU."""

_BYTES_PER_CLOCK = 40
"""Of a multiprocessor, in and out. Assumed, not measured on a GPU."""

_OF_CACHE = 0.6
"""Of the second-level cache, what holds elements until they are read again. Assumed, not measured on a GPU."""

_ARCHITECTURE = "sm_90a"
"""What there are clusters on, and the shared memory for these slots, of the architectures that kernels are built for."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)

_Problem = BatchNormForwardProblem | BatchNormBackwardProblem


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a launch shares out the channels of a tensor. Immutable.

    Args:
        partition: Of the tensor.
        blocks: That have a channel together.
        tensors: That are held: 1 forward, 2 backward.
        multiprocessors: Of the device.
        threads: Of a block.
    """

    partition: Partition
    blocks: int
    tensors: int
    multiprocessors: int
    threads: int = _THREADS

    @property
    def clusters(self) -> int:
        """That a launch has: those that run at the same time, if there are channels for them."""
        return min(self.multiprocessors // self.blocks, self.partition.group_count)

    @property
    def turns(self) -> int:
        """Channels of a cluster, at most."""
        return -(-self.partition.group_count // self.clusters)

    @property
    def part(self) -> int:
        """Of a channel's vectors, a block's."""
        return -(-self.partition.element_packs // self.blocks)

    @property
    def read_again(self) -> float:
        """Of a channel's vectors, those that neither slots nor registers keep until they are written."""
        most, slots, at_once = -(-self.part // self.threads), _SLOTS // self.tensors, _AT_ONCE // self.tensors
        steps = -(-max(most - slots, 0) // at_once)
        return max(steps - _TURNS, 0) * at_once / most

    def seconds(self, problem: _Problem, figures: DeviceFigures) -> float:
        """Estimated time of the launch."""
        twice = self.tensors + (isinstance(problem, BatchNormBackwardProblem) and problem.y is not None and problem.dz is None)
        again = self.read_again * twice * problem.x.size * problem.x.dtype.itemsize
        at_once = again * self.clusters / self.partition.group_count
        lost = max(1 - _OF_CACHE * figures.l2_bytes / at_once, 0.0) if again else 0.0
        nbytes = operand_bytes(problem) + again * lost
        of_blocks = self.clusters * self.blocks * _BYTES_PER_CLOCK * figures.clock_hz
        moving = max(
            nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE), (nbytes + again * (1 - lost)) / of_blocks
        )
        of_all = self.turns * self.clusters / self.partition.group_count  # in the last turn some clusters may have nothing to do
        return figures.launch_seconds + moving * of_all + self.turns * _BETWEEN_CLOCKS[self.blocks] / figures.clock_hz


def _shapes(problem: _Problem, figures: DeviceFigures) -> Iterator[_Shape]:
    """Those there are kernels for."""
    partition = Partition.of(cut_of(problem), operands_of(problem), figures, PACK_BYTES)
    if figures.architecture != _ARCHITECTURE or not partition.is_whole or partition.packs_groups:
        return
    if len(partition.groups[0]) > 1:
        return
    tensors = 1 if isinstance(problem, BatchNormForwardProblem) else 2
    for blocks in _BLOCKS:
        yield _Shape(partition, blocks, tensors, figures.multiprocessors)


def _fastest(problem: _Problem, figures: DeviceFigures) -> _Shape | None:
    """By estimate; None where there is no kernel."""
    return min(_shapes(problem, figures), key=lambda one: one.seconds(problem, figures), default=None)


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
        shape = _fastest(problem, figures)
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
        own = (unit for dtype in _DTYPES for unit in _units(self.direction, dtype).values())
        return (*own, *self._anywhere.units())

    @property
    def _anywhere(self) -> Anywhere:
        return Anywhere(self.direction)


def _prepare(problem: _Problem, figures: DeviceFigures, direction: str, shape: _Shape, anywhere: Offer) -> Calls:
    params = channel_params(problem, shape.partition, part=shape.part, channels=shape.partition.group_count)
    calls = kernel_call(
        _units(direction, problem.x.dtype)[shape.blocks],
        shape.clusters * shape.blocks,
        shape.threads,
        params,
        addresses_of(problem),
        shared_bytes=_SLOTS * shape.threads * PACK_BYTES,
        starts_early=figures.starts_early,
    )
    alignments = tuple((Place(place), PACK_BYTES) for one, place in places_of(problem).items() if one in LIKE_X)
    return (WhereAligned(alignments, calls, anywhere.prepare),)


@cache
def _units(direction: str, dtype: DType) -> dict[int, Unit]:
    """The kernels by the blocks of a cluster; `direction` is "forward" or "backward"."""
    element = c_type(dtype)
    source = (
        f'#include "dnncore/normalization/ring_{direction}.cuh"\n'
        "using namespace dnncore;\n"
        f'static_assert(sizeof(ChannelParams) == {CHANNEL_PARAMS.itemsize}, "dnncore/cuda and channel_params.cuh disagree");\n'
    )
    entries: dict[int, str] = {}
    for blocks in _BLOCKS:
        entry = f"normalization_ring_{direction}_{element}" + ("" if blocks == 1 else f"_by_{blocks}")
        cluster = "" if blocks == 1 else f"__cluster_dims__({blocks}, 1, 1) "
        source += (
            f'extern "C" __global__ void {cluster}__launch_bounds__({_THREADS}, 1) {entry}'
            "(const __grid_constant__ ChannelParams params) {\n"
            f"  normalize_in_ring<{element}, {blocks}, Ring{direction.capitalize()}>(params);\n}}\n"
        )
        entries[blocks] = entry
    return {blocks: Unit(source, entry, (_ARCHITECTURE,)) for blocks, entry in entries.items()}
