"""Reductions whose elements, or whose outputs, lie side by side in memory: a load takes a vector of neighbours."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from dnncore.backend import Offer
from dnncore.cuda import reduction
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, Place, WhereAligned, blocks_for, kernel_call
from dnncore.cuda.params import DIVISOR, FLOATING, TENSOR_VIEW, c_type, divisor, generate_together, record, struct, view
from dnncore.cuda.reduced import NEXT_LAUNCH, OF_MEMORY_RATE, Geometry
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ReduceOperator
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ReduceProblem

__all__ = ["ALGORITHMS", "Columns", "Lines"]

_PARAMS = struct(
    *reduction.FIELDS,
    ("vectors", DIVISOR),
    ("lines", TENSOR_VIEW),
    ("tiles", DIVISOR),
    ("team", "<i4"),
    ("across", "<i4"),
)
_THREADS = reduction.THREADS
_WARP = 32
_AHEAD = 4
"""Loads that a thread has under way; kAhead in reduction_vectors.cuh."""

_BLOCKS_ABREAST = 4
"""That a multiprocessor runs at a time: a thread has 64 registers at most."""

_KINDS = ("sums", "squares", "products", "extrema", "places")
"""Kinds of operators; `dnncore::Kind`."""

_ROUNDS_WHOLE = 6
"""Of loads that a thread makes before parts are worth another launch."""

_ACROSS = 8
"""Vectors that a block of columns is wide: a line of the cache. The narrower, the more threads share the rows."""

_WAVES = 2
"""That parts may fill the device; where outputs are many, they fill it better with a second one."""

_START, _JOIN = 3, 4
"""What a part takes beside its loads, until the first have come and when its threads are joined, and what the parts' own launch
takes: in loads of a thread where memory is busy. Estimates."""

_ROUND, _TURN = 0.2, 0.3
"""What a round of loads and the joining of a part's threads take, in launches: estimates, by what sums and
channels-last normalisations were measured to take on an H200."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a reduction is shared out. Immutable.

    Args:
        problem: What is reduced.
        geometry: The same with few dimensions.
        vector: Elements of a load.
        splits: Parts of each output.
        part: Elements of each, but for the last.
        team: Threads that take a part of a line's output, or the whole block.
        across: Vectors that a block of columns is wide.
    """

    problem: ReduceProblem
    geometry: Geometry
    vector: int
    splits: int
    part: int
    team: int = _THREADS
    across: int = 1

    @property
    def rounds(self) -> int:
        """Of loads that a thread makes for a part."""
        together = self.team * self.vector if self.across == 1 else _THREADS // self.across
        return -(-self.part // (together * _AHEAD))


@dataclass(frozen=True, slots=True)
class _OfVectors(ABC):
    """A reduction by vectors. Immutable.

    Attributes:
        name: See `backend.Algorithm`.
        widths: Bytes of a load, the widest first.
        further: Template arguments of its kernels, behind those that all have.
    """

    name: ClassVar[str]
    widths: ClassVar[tuple[int, ...]]
    further: ClassVar[str] = ""

    def offer(self, problem: ReduceProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`.

        The parts are a function of the problem and of the number of multiprocessors, as those of the other reductions are.
        """
        x, others = problem.x, problem.outputs[1:]
        geometry = Geometry.of(x, problem.y, *others)
        if not x.size:
            return "there is nothing to load"
        steps = _steps(*reduction.in_order_of_indices(problem))
        if others and list(steps) != sorted(steps, reverse=True):
            return "indices count the elements in another order than memory has them"
        cut = self._cut(problem, geometry, figures)
        if isinstance(cut, str):
            return cut
        elsewhere = reduction.WHOLE.offer(problem, figures)
        assert isinstance(elsewhere, Offer)
        return Offer(
            self._seconds(cut, figures),
            partial(self._calls, cut, elsewhere, figures),
            geometry.outputs * cut.splits * reduction.PART_BYTES if cut.splits > 1 else 0,
            math=reduction.Reduction.pace.math,
        )

    @abstractmethod
    def _cut(self, problem: ReduceProblem, geometry: Geometry, figures: DeviceFigures) -> _Cut | str:
        """How the problem is shared out, or why it cannot be."""

    @abstractmethod
    def _blocks(self, cut: _Cut) -> int:
        """That the parts would keep busy."""

    @abstractmethod
    def _fields(self, cut: _Cut) -> dict[str, Any]:
        """Of the parameters, beside those of every reduction."""

    def units(self) -> tuple[Unit, ...]:
        """For each dtype, kind and width, and what puts parts together."""
        mine = [unit for dtype in FLOATING for kind in _KINDS for unit in self._units(dtype, kind).values()]
        return (*mine, *(reduction.parts_unit(dtype) for dtype in FLOATING))

    @classmethod
    def _units(cls, dtype: DType, kind: str) -> dict[int, Unit]:
        """By the elements of a vector."""
        entries = {
            nbytes // dtype.itemsize: f"reduce_{cls.name}_{kind}_{c_type(dtype)}_{nbytes}_bytes"
            for nbytes in cls.widths
        }
        functions = {
            entry: f"reduce_{cls.name}<{c_type(dtype)}, {vector}, Kind::k{kind.capitalize()}{cls.further}>"
            for vector, entry in entries.items()
        }
        units = generate_together(
            "dnncore/reduction_vectors.cuh",
            functions,
            "ReduceVectorsParams",
            _PARAMS,
            _THREADS,
            blocks=_BLOCKS_ABREAST,
        )
        return {vector: units[entry] for vector, entry in entries.items()}

    def _seconds(self, cut: _Cut, figures: DeviceFigures) -> float:
        nbytes = cut.problem.x.nbytes + cut.problem.y.nbytes
        turns = -(-self._blocks(cut) // (figures.multiprocessors * _BLOCKS_ABREAST))
        stepping = turns * (cut.rounds * _ROUND + _TURN)
        if cut.splits > 1:
            stepping += NEXT_LAUNCH + -(-cut.splits // (_AHEAD * _THREADS)) * _ROUND + _TURN
        launch = figures.launch_seconds
        return launch + max(nbytes / (figures.bytes_per_second * OF_MEMORY_RATE), stepping * launch)

    def _calls(self, cut: _Cut, elsewhere: Offer, figures: DeviceFigures) -> Calls:
        problem, parts = cut.problem, (cut.geometry, cut.splits, cut.part)
        params = record(_PARAMS, **reduction.fields(problem, *parts), **self._fields(cut))
        unit = self._units(problem.x.dtype, _kind(problem))[cut.vector]
        grid = blocks_for(figures, self._blocks(cut), 1)
        places, early = reduction.places(problem, cut.splits), figures.starts_early
        first = kernel_call(unit, grid, _THREADS, params, places, starts_early=early)
        calls = (*first, *reduction.join(problem, *parts, figures))
        return (WhereAligned(((Place(0), cut.vector * problem.x.dtype.itemsize),), calls, elsewhere.prepare),)


@dataclass(frozen=True, slots=True)
class Lines(_OfVectors):
    """Neighbours become one output. Immutable."""

    name = "lines"
    widths = (16, 8)

    def _cut(self, problem: ReduceProblem, geometry: Geometry, figures: DeviceFigures) -> _Cut | str:
        extents, strides = geometry.reduced
        if strides[-1] != 1:
            return f"elements of an output are {strides[-1]} apart"
        steps = _steps(extents[:-1], strides[:-1]) + _steps(*geometry.kept[:2])
        vector = _vector(self.widths, problem.x.dtype, (extents[-1], *steps))
        if vector is None:
            return f"lines of {extents[-1]} elements are not whole vectors, or do not begin with one"
        vectors = geometry.length // vector
        team = _WARP if vectors <= _WARP * _AHEAD * _ROUNDS_WHOLE else _THREADS
        part = _part(vectors, team, geometry.outputs, figures)
        return _Cut(problem, geometry, vector, -(-vectors // part), part * vector, team)

    def _blocks(self, cut: _Cut) -> int:
        return -(-cut.geometry.outputs * cut.splits // (_THREADS // cut.team))

    def _fields(self, cut: _Cut) -> dict[str, Any]:
        extents, strides = cut.geometry.reduced
        return {
            "vectors": divisor(extents[-1] // cut.vector),
            "lines": view(extents[:-1] or (1,), strides[:-1] or (0,)),
            "team": cut.team,
        }


@dataclass(frozen=True, slots=True)
class Columns(_OfVectors):
    """Neighbours become neighbouring outputs. Immutable."""

    name = "columns"
    widths = (16,)
    further = f", {_THREADS}"

    def _cut(self, problem: ReduceProblem, geometry: Geometry, figures: DeviceFigures) -> _Cut | str:
        extents, strides, *_ = geometry.kept
        if strides[-1] != 1:
            return f"neighbouring outputs' elements are {strides[-1]} apart"
        steps = _steps(extents[:-1], strides[:-1]) + _steps(*geometry.reduced)
        vector = _vector(self.widths, problem.x.dtype, (extents[-1], *steps))
        if vector is None:
            return f"lines of {extents[-1]} outputs are not whole vectors, or do not begin with one"
        across = min(_ACROSS, 1 << (extents[-1] // vector - 1).bit_length())
        tiles = geometry.outputs // extents[-1] * -(-extents[-1] // (vector * across))
        part = _part(geometry.length, _THREADS // across, tiles, figures)
        return _Cut(problem, geometry, vector, -(-geometry.length // part), part, across=across)

    def _blocks(self, cut: _Cut) -> int:
        return cut.geometry.outputs // cut.geometry.kept[0][-1] * self._tiles(cut) * cut.splits

    @staticmethod
    def _tiles(cut: _Cut) -> int:
        return -(-cut.geometry.kept[0][-1] // (cut.vector * cut.across))

    def _fields(self, cut: _Cut) -> dict[str, Any]:
        extents, strides, *_ = cut.geometry.kept
        return {
            "vectors": divisor(extents[-1] // cut.vector),
            "lines": view(extents[:-1] or (1,), strides[:-1] or (0,)),
            "tiles": divisor(self._tiles(cut)),
            "across": cut.across,
        }


def _kind(problem: ReduceProblem) -> str:
    """Whose kernels its operator has."""
    operator = problem.operator
    if operator in (ReduceOperator.MUL, ReduceOperator.MUL_NO_ZEROS):
        return "products"
    if operator.finds_an_element:
        return "extrema" if problem.indices is None else "places"
    return "squares" if operator is ReduceOperator.NORM2 else "sums"


def _part(loads: int, team: int, items: int, figures: DeviceFigures) -> int:
    """Loads of a part.

    Args:
        loads: Of an item: an output, or a tile of neighbouring ones.
        team: Threads that take a part.
        items: How many there are.
        figures: Of the device.
    """
    if loads <= team * _AHEAD * _ROUNDS_WHOLE:
        return loads
    abreast = figures.multiprocessors * _BLOCKS_ABREAST

    def steps(splits: int) -> int:
        """Loads, one after another, that the whole takes."""
        of_part = -(-loads // (splits * team)) + _START
        return -(-items * splits // abreast) * of_part + (_JOIN if splits > 1 else 0)

    wanted = (waves * abreast // items for waves in range(1, _WAVES + 1))
    return -(-loads // min((1, *(splits for splits in wanted if splits > 1)), key=steps))


def _steps(extents: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of dimensions in which there is a next element."""
    return tuple(stride for extent, stride in zip(extents, strides, strict=True) if extent > 1)


def _vector(widths: tuple[int, ...], dtype: DType, steps: tuple[int, ...]) -> int | None:
    """Elements of the widest load that divides all of these numbers of elements."""
    together = math.gcd(*steps)
    return next((n for n in (width // dtype.itemsize for width in widths) if together % n == 0), None)


ALGORITHMS: tuple[CudaAlgorithm, ...] = (Lines(), Columns(), *reduction.ALGORITHMS)
