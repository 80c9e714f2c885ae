"""Steps of optimizers: the tensors of many parameters in one launch, cut into chunks of one size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, FieldPath, Place, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, FLOATING, c_type, generate, record, struct
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems.optimizer import OptimizerProblem

__all__ = ["ADAM", "MOMENTUM"]

_THREADS = 128
_PACK_BYTES = 16
_PACKS = 8
"""That a thread takes of a chunk; kChunkPacks in optimizer.cuh."""

_MOST_TENSORS = 56
"""Parameters of a launch; kMostTensors in optimizer.cuh. Their addresses fill the 4 KiB of parameters that every driver takes."""

_STATES = 2
_OF_MEMORY_RATE = 0.88
"""Assumed, as of the contiguous kernel of `elementwise`; not measured on a GPU."""

_TENSOR = struct(
    ("gradient", ADDRESS),
    ("weight", ADDRESS),
    ("old_states", ADDRESS, _STATES),
    ("output", ADDRESS),
    ("states", ADDRESS, _STATES),
)
_PARAMS = struct(
    *BLEND,
    *((name, "<f8") for name in ("momentum", "momentum2", "epsilon", "decay")),
    ("sizes", "<i8", _MOST_TENSORS),
    ("tensors", _TENSOR, _MOST_TENSORS),
    ("first_chunks", "<i4", _MOST_TENSORS),
    ("count", "<i4"),
    ("nesterov", "<i4"),
)


@dataclass(frozen=True, slots=True)
class Chunks:
    """A step of all parameters. Immutable.

    Args:
        rule: The functor of optimizer.cuh.
        name: See `backend.Algorithm`.
    """

    rule: str
    name: str = "chunks"

    def offer(self, problem: OptimizerProblem, figures: DeviceFigures) -> Offer:
        """See `backend.Algorithm`; it takes every problem."""
        launches = -(-len(_places(problem)) // _MOST_TENSORS)
        blended = sum(weight.nbytes for weight in problem.weights)  # as a step always does
        seconds = (operand_bytes(problem) + blended) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return Offer(max(launches, 1) * figures.launch_seconds + seconds, partial(self._prepare, problem))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self._unit(dtype) for dtype in FLOATING)

    def _prepare(self, problem: OptimizerProblem) -> Calls:
        places = _places(problem)
        groups = [places[start : start + _MOST_TENSORS] for start in range(0, len(places), _MOST_TENSORS)]
        return tuple(call for group in groups for call in self._call(problem, group))

    def _call(self, problem: OptimizerProblem, group: list[int]) -> Calls:
        """The launch of some parameters, given by their places."""
        sizes = [problem.weights[place].size for place in group]
        chunk = _THREADS * _PACKS * (_PACK_BYTES // problem.dtype.itemsize)
        first, *later = accumulate((-(-size // chunk) for size in sizes), initial=0)
        beyond = [0] * (_MOST_TENSORS - len(group))
        params = record(
            _PARAMS,
            **{name: getattr(problem, name, 0.0) for name in ("momentum", "momentum2", "epsilon", "decay")},
            sizes=[*sizes, *beyond],
            first_chunks=[first, *later[:-1], *beyond],
            count=len(group),
            nesterov=getattr(problem, "nesterov", False),
        )
        return kernel_call(self._unit(problem.dtype), later[-1], _THREADS, params, _addresses(problem, group))

    def _unit(self, dtype: DType) -> Unit:
        entry, function = (
            f"optimizer_{self.rule.lower()}_{c_type(dtype)}",
            f"optimizer_step<{c_type(dtype)}, {self.rule}>",
        )
        return generate("dnncore/optimizer.cuh", entry, function, "OptimizerParams", _PARAMS, _THREADS)


def _places(problem: OptimizerProblem) -> list[int]:
    """Of the parameters that have elements."""
    return [place for place, weight in enumerate(problem.weights) if weight.size]


def _addresses(problem: OptimizerProblem, group: list[int]) -> dict[FieldPath, Place]:
    """The fields of a launch that take addresses."""
    fields: dict[str, tuple[str | int, ...]] = {"gradient": ("gradient",), "weight": ("weight",)}
    fields |= {state: ("old_states", i) for i, state in enumerate(problem.states)}
    written: dict[str, tuple[str | int, ...]] = {"weight": ("output",)}
    written |= {state: ("states", i) for i, state in enumerate(problem.states)}
    kinds = [*(fields[kind] for kind in problem.reads), *(written[kind] for kind in problem.writes)]
    count = len(problem.weights)
    return {
        ("tensors", i, *field): Place(kind * count + place)
        for kind, field in enumerate(kinds)
        for i, place in enumerate(group)
    }


MOMENTUM: tuple[CudaAlgorithm, ...] = (Chunks("Momentum"),)
ADAM: tuple[CudaAlgorithm, ...] = (Chunks("Adam"),)
