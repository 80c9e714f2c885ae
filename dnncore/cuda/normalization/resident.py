"""Batch normalisation in training, and its gradients, of channels that a block or a cluster keeps in registers: in one launch."""

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
from dnncore.cuda.params import c_type, small_divisor
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import BatchNormBackwardProblem, BatchNormForwardProblem

__all__ = ["Resident"]

_THREADS, _LEAST_THREADS = 512, 64
"""Of a block, powers of two; kResidentThreads in resident.cuh."""

_VECTORS = 8
"""That a thread has at most, forward; kVectors in resident.cuh."""

_VECTORS_WANTED = 4
"""Where each thread has fewer, half as many threads do."""

_SINGLES = 16
"""Single elements that a thread has at most, of x and of dy; kVectors and kPairs in resident.cuh."""

_SINGLES_THREADS, _SINGLES_BLOCKS = 448, 2
"""Most of a block that reads single elements, and such blocks that a multiprocessor has at least: with 72 registers per thread."""

_COLUMNS = (1, 2)
"""Packs of channels of a block; two are a sector of 32 bytes."""

_HALF_A_SECTOR = 2
"""What a pack that is alone in its sector costs on its way from the second-level cache."""

_EXCHANGE_CLOCKS = {1: 0, 2: 1000, 8: 2000}
"""By the blocks of a cluster: what it takes until they have told each other what they found. Assumed, not measured on a GPU."""

_MOST_BLOCKS = max(_EXCHANGE_CLOCKS)
"""Of a cluster, whose kernels can read planes in turns; kMostBlocks in resident.cuh."""

_BYTES_PER_CLOCK = 40
"""Of a multiprocessor, in and out. Assumed, not measured on a GPU."""

_BETWEEN_CLOCKS = 3000
"""Of planes of vectors, from when a block's last ones are there until the first is written, its exchange aside [measured on an
H200: fp16 of 32 x 128 x 28 x 28]."""

_OF_MEMORY_RATE = 0.5
"""Of more blocks than there are multiprocessors, of packs of channels or single elements. Assumed, not measured on a GPU: a
multiprocessor has one block, which reads, adds up and writes in turn."""

_IN_WAVES = 1.6
"""What moving takes forward of that where there are more clusters of most blocks, of single elements, than multiprocessors for
them. Assumed, not measured on a GPU."""

_WAVE_CLOCKS = {1: 5000, 2: 6000, 8: 9000}
"""By the blocks of a cluster: what a wave of them takes beside what it moves, of planes of vectors [measured on an H200, as are the
next two: 24 shapes of 64 to 512 channels of 16 x 16 to 112 x 112, by 1 and 8; by 2 assumed]."""

_MASKED_AGAIN_CLOCKS = 6000
"""What a wave takes more, where dy is masked once more as it is read again."""

_WAVE_BYTES_PER_CLOCK = 21
"""Of a multiprocessor, in and out, while a wave moves."""

_AT_A_TIME = {1: 1.0, 2: 1.0, 8: 0.94}
"""By the blocks of a cluster: of the clusters that there are multiprocessors for, those that run at a time, since the blocks of
one are in one part of the device [as the driver of an H200 says: 15 of 16]."""

_IN_WAVES_OF_PACKS = 2.0
"""The same of all clusters that share packs of channels [measured on an H200: 128 x 1024 x 14 x 14 and 64 x 2048 x 7 x 7,
channels-last]."""

_SINGLE_CLOCKS = 4
"""Of a multiprocessor, for a warp's load or store of single elements: a dozen instructions. Assumed, not measured on a GPU."""

_OF_CACHE = 0.6
"""Of the second-level cache, what holds elements until they are read again. Assumed, not measured on a GPU."""

_WARP = 32

_CLUSTERS = "sm_90a"
"""What there are clusters on, of the architectures that kernels are built for."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


_Problem = BatchNormForwardProblem | BatchNormBackwardProblem


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a launch shares out the channels of a tensor. Immutable.

    Args:
        partition: Of the tensor, in vectors of what a thread reads at once.
        vector_bytes: Of those.
        columns: Packs of channels of a block; 1 of planes.
        blocks: That have a channel together.
    """

    partition: Partition
    vector_bytes: int
    columns: int
    blocks: int

    @property
    def grid(self) -> int:
        """Blocks of the launch."""
        return self.partition.group_packs // self.columns * self.blocks

    @property
    def vectors(self) -> int:
        """Of a channel, or pack of channels."""
        return self.partition.element_packs

    @property
    def is_single(self) -> bool:
        """Whether vectors are single elements."""
        return self.partition.width == 1

    @property
    def planes(self) -> int:
        """Of single elements: those of which each lane has one element at a time."""
        return min(self.threads // self.partition.run, self.vectors // self.partition.run) if self.is_single else 1

    @property
    def part(self) -> int:
        """Of the vectors, a block's: of single elements whole planes."""
        whole = self.partition.run if self.is_single else 1
        return -(-self.vectors // (whole * self.blocks)) * whole

    @property
    def threads(self) -> int:
        """Of each block."""
        return _single_threads(self.part, self.partition.run) if self.is_single else _threads(self.columns * self.part)

    @classmethod
    def all_of(cls, problem: _Problem, figures: DeviceFigures) -> Iterator[_Shape]:
        """Those whose blocks can keep their part of a channel, or read planes in turns."""
        itemsize = problem.x.dtype.itemsize
        for vector_bytes in _widths(itemsize):
            partition = Partition.of(cut_of(problem), operands_of(problem), figures, vector_bytes)
            if not partition.is_whole or len(partition.groups[0]) > 1:
                continue
            is_last, is_single = partition.packs_groups, vector_bytes == itemsize
            if vector_bytes < PACK_BYTES and is_last:  # there are no such kernels
                continue
            if is_single and partition.elements[0][-1] > _SINGLES_THREADS:
                continue
            for columns in _COLUMNS if is_last else (1,):
                for blocks in _EXCHANGE_CLOCKS if figures.architecture == _CLUSTERS else (1,):
                    shape = cls(partition, vector_bytes, columns, blocks)
                    in_turns = blocks == _MOST_BLOCKS and not is_last and not is_single
                    fits = shape.kept(problem) == shape.part or in_turns
                    if fits and partition.group_packs % columns == 0:
                        yield shape
            return

    def kept(self, problem: _Problem) -> int:
        """Of a block's vectors, those that stay in registers."""
        if self.is_single:
            return min(self.planes * self.partition.run * _SINGLES, self.part)
        is_forward = isinstance(problem, BatchNormForwardProblem)
        most = _VECTORS if is_forward else self._pairs
        return min(self.threads // self.columns * most, self.part)

    @property
    def _pairs(self) -> int:
        """Vectors of x, and of dy, that a thread has at most, as there are registers for; kPairs in resident.cuh."""
        if self.partition.packs_groups:
            return 4  # beside sums of several channels
        return 6 if self.blocks == _MOST_BLOCKS and self.vector_bytes == PACK_BYTES else 8

    def seconds(self, problem: _Problem, figures: DeviceFigures) -> float:
        """Estimated time of the launch."""
        is_of_planes = not self.partition.packs_groups and not self.is_single
        if is_of_planes and self.grid > figures.multiprocessors:
            return figures.launch_seconds + self._waves(problem, figures)
        between = _EXCHANGE_CLOCKS[self.blocks] + (_BETWEEN_CLOCKS if is_of_planes else 0)
        return figures.launch_seconds + between / figures.clock_hz + self._moving(problem, figures)

    def _read_again(self, problem: _Problem, figures: DeviceFigures, at_once: float) -> tuple[float, float]:
        """Bytes of what does not stay in registers, and the share of them that the cache has lost by then.

        Args:
            problem: What is normalised.
            figures: Of the device.
            at_once: Of the channels, the share that is under way at a time.
        """
        twice = 1  # tensors that are read again: x, or x and dy, and y if it masks dy again
        if isinstance(problem, BatchNormBackwardProblem):
            twice = 2 + _masks_again(problem)
        read = twice * problem.x.size * problem.x.dtype.itemsize
        lost = max(1 - _OF_CACHE * figures.l2_bytes / (read * at_once), 0.0)
        return read * (1 - self.kept(problem) / self.part), lost

    def _moving(self, problem: _Problem, figures: DeviceFigures) -> float:
        """Of blocks that all run at the same time, or of packs of channels or single elements."""
        nbytes, of_memory = operand_bytes(problem), figures.bytes_per_second
        busy, in_waves = min(self.grid, figures.multiprocessors), self.grid > figures.multiprocessors
        if in_waves:
            of_memory *= _OF_MEMORY_RATE
        again, lost = self._read_again(problem, figures, busy / self.grid)
        is_half = self.partition.packs_groups and self.columns * self.vector_bytes < _COLUMNS[-1] * PACK_BYTES
        of_blocks = busy * _BYTES_PER_CLOCK * figures.clock_hz / (_HALF_A_SECTOR if is_half else 1)
        moving = max((nbytes + again * lost) / of_memory, (nbytes + again) / of_blocks)
        if in_waves and self.partition.packs_groups and self.blocks > 1:
            moving *= _IN_WAVES_OF_PACKS
        elif in_waves and self.blocks == _MOST_BLOCKS and isinstance(problem, BatchNormForwardProblem):
            moving *= _IN_WAVES
        return moving + self._issuing(problem, figures)

    def _waves(self, problem: _Problem, figures: DeviceFigures) -> float:
        """Of planes of vectors, by more clusters than run at a time: each wave begins where the one before it has ended."""
        channels = self.partition.group_count
        at_a_time = min(int(figures.multiprocessors / self.blocks * _AT_A_TIME[self.blocks]), channels)
        again, lost = self._read_again(problem, figures, at_a_time / channels)
        nbytes = operand_bytes(problem)
        of_block = (nbytes + again) / (channels * self.blocks) / (_WAVE_BYTES_PER_CLOCK * figures.clock_hz)
        of_memory = (nbytes + again * lost) * at_a_time / channels / figures.bytes_per_second
        between = _WAVE_CLOCKS[self.blocks] + (_MASKED_AGAIN_CLOCKS if again and _masks_again(problem) else 0)
        return -(-channels // at_a_time) * (between / figures.clock_hz + max(of_block, of_memory))

    def _issuing(self, problem: _Problem, figures: DeviceFigures) -> float:
        """Of single elements, what their loads and stores take beside what they move."""
        if not self.is_single:
            return 0.0
        of_warps = operand_bytes(problem) / self.vector_bytes / _WARP
        return of_warps * _SINGLE_CLOCKS / (min(self.grid, figures.multiprocessors) * figures.clock_hz)


@dataclass(frozen=True, slots=True)
class Resident:
    """Batch normalisation in training, or its gradients, in one launch. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "resident"

    def offer(self, problem: _Problem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`; the workspace is for what computes it where addresses are not aligned."""
        if problem.x.dtype not in _DTYPES:
            return f"x is of {problem.x.dtype.value}; its sums are of 32 bits"
        if not problem.x.size:
            return "x is empty"
        shape = _fastest(problem, figures)
        if shape is None:
            return (
                f"channels of x {problem.x} are no whole vectors that lie alike in all operands, nor planes of at most "
                f"{_SINGLES_THREADS} elements, or have more elements than the registers of {_MOST_BLOCKS} blocks keep"
            )
        anywhere = self._anywhere.offer(problem, figures)
        prepare = partial(_prepare, problem, figures, self.direction, shape, anywhere)
        return Offer(shape.seconds(problem, figures), prepare, anywhere.workspace_bytes)

    def units(self) -> tuple[Unit, ...]:
        """Its own, and those for addresses that are not aligned."""
        own = (
            unit for dtype in _DTYPES for one in (True, False) for unit in _units(self.direction, dtype, one).values()
        )
        return (*own, *self._anywhere.units())

    @property
    def _anywhere(self) -> Anywhere:
        return Anywhere(self.direction)


def _masks_again(problem: _Problem) -> bool:
    """Whether dy that is read again is masked by y again: no dz has what came of it."""
    return isinstance(problem, BatchNormBackwardProblem) and problem.y is not None and problem.dz is None


def _fastest(problem: _Problem, figures: DeviceFigures) -> _Shape | None:
    """By estimate; None where no blocks can keep their part of a channel."""
    return min(_Shape.all_of(problem, figures), key=lambda one: one.seconds(problem, figures), default=None)


def _threads(vectors: int) -> int:
    """Of a block that has so many vectors."""
    wanted = 1 << (-(-vectors // _VECTORS_WANTED) - 1).bit_length()
    return min(max(wanted, _LEAST_THREADS), _THREADS)


def _single_threads(part: int, run: int) -> int:
    """Of a block that has so many single elements, in planes of `run`: as many as each has its most."""
    planes = min(-(-part // (run * _SINGLES)), _SINGLES_THREADS // run)
    return max(-(-planes * run // _WARP) * _WARP, _LEAST_THREADS)


def _widths(itemsize: int) -> tuple[int, ...]:
    """Bytes of the vectors of planes that there are kernels for, longest first; the last are single elements."""
    return (PACK_BYTES, PACK_BYTES // 2, itemsize) if itemsize == 2 else (PACK_BYTES, itemsize)


def _prepare(problem: _Problem, figures: DeviceFigures, direction: str, shape: _Shape, anywhere: Offer) -> Calls:
    partition, dtype = shape.partition, problem.x.dtype
    params = channel_params(
        problem, partition, part=shape.part, columns=shape.columns, planes=small_divisor(shape.planes)
    )
    unit = _units(direction, dtype, shape.blocks == 1)[partition.packs_groups, shape.vector_bytes, shape.blocks]
    calls = kernel_call(
        unit, shape.grid, shape.threads, params, addresses_of(problem), starts_early=figures.starts_early
    )
    alignments = tuple((Place(place), shape.vector_bytes) for one, place in places_of(problem).items() if one in LIKE_X)
    return (WhereAligned(alignments, calls, anywhere.prepare),)


@cache
def _units(direction: str, dtype: DType, alone: bool) -> dict[tuple[bool, int, int], Unit]:
    """The kernels by whether they are for channels-last tensors, the bytes of a vector and the blocks of a cluster.

    Args:
        direction: "forward" or "backward".
        dtype: Of x.
        alone: Those of blocks that have whole channels; otherwise those of clusters. They are compiled apart, since these exist for
            one architecture.
    """
    element = c_type(dtype)
    source = (
        f'#include "dnncore/normalization/resident_{direction}.cuh"\n'
        "using namespace dnncore;\n"
        f'static_assert(sizeof(ChannelParams) == {CHANNEL_PARAMS.itemsize}, "dnncore/cuda and channel_params.cuh disagree");\n'
    )
    entries: dict[tuple[bool, int, int], str] = {}
    for blocks in (each for each in _EXCHANGE_CLOCKS if (each == 1) == alone):
        for is_last, nbytes in (*((False, nbytes) for nbytes in _widths(dtype.itemsize)), (True, PACK_BYTES)):
            is_single = nbytes == dtype.itemsize
            layout = (
                "last" if is_last else "planes" + {PACK_BYTES: "", PACK_BYTES // 2: "_halves"}.get(nbytes, "_singles")
            )
            bounds = (_THREADS, 1) if not is_single else (_SINGLES_THREADS, _SINGLES_BLOCKS if alone else 1)
            entry = f"normalization_resident_{direction}_{element}_{layout}" + ("" if alone else f"_by_{blocks}")
            cluster = "" if alone else f"__cluster_dims__({blocks}, 1, 1) "
            source += (
                f'extern "C" __global__ void {cluster}__launch_bounds__{bounds} {entry}'
                "(const __grid_constant__ ChannelParams params) {\n"
                f"  resident_{direction}<{element}, {nbytes}, {str(is_last).lower()}, {blocks}>(params);\n}}\n"
            )
            entries[is_last, nbytes, blocks] = entry
    return {key: Unit(source, entry, () if alone else (_CLUSTERS,)) for key, entry in entries.items()}
