"""One measurement: ours is checked, then ours and PyTorch's race, with operands from memory and from the cache.

Ours is a captured program, PyTorch's a CUDA graph (`race`, `torch_graphs`). Results are checked on inputs drawn anew, in memory
that held NaN before: against float64, for large problems of a part of the output alone, and ours against PyTorch's as a whole. What
is wrong is not timed, and said.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from benchmarks.ceilings import Ceilings
from benchmarks.comparison import difference
from benchmarks.measurement import Measurement, Operations, Part, permits_tf32
from benchmarks.operands import OperandSet, is_beside_torch
from benchmarks.race import Replay, Rotation, Time, race
from benchmarks.torch_graphs import Captured, Rival, Search, fastest
from dnncore import Handle, Preference
from dnncore.plan import Plan
from dnncore.problems import Problem
from dnncore.testing import tolerance

__all__ = ["Contest", "Wrong"]

_MOST_PLAIN_MACS = 10**11
"""The plain kernel is there to be right: on larger problems it takes seconds, and is left out."""

_OF_TOLERANCE = 4
"""`tolerance` is of an element, relative to what was summed; these errors are norms, relative to the sums, which are smaller."""

_OF_CUDNN = 32
"""The least exact of cuDNN's algorithms are allowed too, Winograd's and FFTs: this only tells right from wrong."""

_TOGETHER = "together"
"""What rows call the algorithm of several operations."""

Row = dict[str, Any]


class Wrong(Exception):  # noqa: N818 (a finding about a kernel, not of a caller's)
    """A result that is not what it should be."""


@dataclass(frozen=True)
class _Ours:
    """One of our algorithms, ready to race. Immutable."""

    name: str
    cold: Replay
    warm: Replay
    error: float | None
    output: torch.Tensor
    workspace_bytes: int


@dataclass
class Contest:
    """Measures one thing after the other on one device. Owned by one thread.

    Args:
        handle: Ours, on PyTorch's stream where that computes there too.
        search: How long cuDNN may look for its fastest algorithm.
        algorithms: Words, with commas between: only ours whose name contains one are measured; "" for all.
        most: How many of ours are measured, in the order in which they would be chosen.
        is_dry: A dry run: two calls a graph and one round, which shows that all of it runs.
        ceilings: What the device reaches; None where that is not known.
        seed: Of the inputs; they differ from one measurement to the next.
    """

    handle: Handle
    search: Search = field(default_factory=Search)
    algorithms: str = ""
    most: int | None = 1
    is_dry: bool = False
    ceilings: Ceilings | None = None
    seed: int = 0
    _generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        device = "cuda" if is_beside_torch(self.handle) else "cpu"
        self._generator = torch.Generator(device).manual_seed(self.seed)

    def rows(self, measurement: Measurement) -> list[Row]:
        """A row for each of our algorithms that is asked for.

        Raises:
            Wrong: ours gave another result than it should.
        """
        names = self._names(measurement)
        if not names:
            return []
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = permits_tf32(measurement.problem)
        with ExitStack() as stack:
            sets, cold, warm = self._sets(measurement, names[0], stack)
            ours = self._all_of_ours(measurement, names, sets, (cold, warm), stack)
            rivals, heats, problems = self._rivals(measurement, sets, (cold, warm), stack)
            rounds = 1 if self.is_dry else None
            times = {
                which: race(
                    {one.name: getattr(one, which) for one in (*ours, *rivals)}, self.handle.record_event, rounds
                )
                for which in ("cold", "warm")
            }
            # Where outputs are changed, they were drawn anew for each.
            is_same = measurement.comparable and not measurement.changes_outputs and measurement.rival is None
            theirs = rivals[0].output if rivals and is_same else None
            return [
                measurement.row
                | self._figures(measurement, one, times["cold"][one.name].ms)
                | _ratios(measurement, one, rivals, times)
                | {
                    "relative_error": _rounded(one.error, 2),
                    "relative_difference": None if theirs is None else _rounded(difference(one.output, theirs), 2),
                    "workspace_bytes": one.workspace_bytes,
                    "sets": cold.sets,
                    "calls": cold.calls,
                    "spread": round(times["cold"][one.name].spread, 4),
                }
                | ({"heats": {name: round(ms, 6) for name, ms in heats.items()}} if len(heats) > 1 else {})
                | ({"problems": problems} if problems else {})
                for one in ours
            ]

    def plans(self, measurement: Measurement) -> list[Plan]:
        """Of all of ours that `rows` would measure."""
        found = [measurement, *([] if measurement.rival is None else [measurement.rival])]
        return [
            self.handle.plan(one.problem, algorithm=name)
            for one in found
            if not isinstance(one.problem, Operations)
            for name in self._names(one)
        ]

    def _names(self, measurement: Measurement) -> list[str]:
        if isinstance(measurement.problem, Operations):
            return [_TOGETHER]
        ranked = self.handle.get_algorithms(measurement.problem, preference=Preference.PREFER_FASTEST)
        usable = (one.name for one in ranked if one.status is None)
        wanted = (name for name in usable if any(word in name for word in self.algorithms.split(",")))
        found = list(itertools.islice(wanted, self.most))
        too_slow = measurement.problem.macs > _MOST_PLAIN_MACS and len(found) > 1
        return [name for name in found if not (too_slow and name == "direct")]

    def _sets(
        self, measurement: Measurement, algorithm: str, stack: ExitStack
    ) -> tuple[list[OperandSet], Rotation, Rotation]:
        cold, warm = Rotation(2, 1), Rotation(1, 2)
        if not self.is_dry:
            figures = self.handle.device.figures
            seconds = measurement.nbytes / figures.bytes_per_second
            if not isinstance(measurement.problem, Operations):
                seconds = self.handle.plan(measurement.problem, algorithm=algorithm).offer.seconds
            nbytes = sum(tensor.nbytes for tensor in (*measurement.inputs, *measurement.outputs))
            cold, warm = Rotation.cold(nbytes, figures.l2_bytes, seconds), Rotation.warm(seconds)
        sets = [
            stack.enter_context(closing(OperandSet(self.handle, measurement, self._generator)))
            for _ in range(cold.sets)
        ]
        return sets, cold, warm

    def _all_of_ours(
        self,
        measurement: Measurement,
        names: Sequence[str],
        sets: Sequence[OperandSet],
        rotations: tuple[Rotation, Rotation],
        stack: ExitStack,
    ) -> list[_Ours]:
        """Each of our algorithms, checked and captured."""
        found = []
        for name in names:
            calls = [self._call(measurement, name, one) for one in sets]
            plan = self._plan(measurement.problem, name)
            error = self._checked(measurement, name, plan, calls[0], sets[0])
            output = sets[0].outputs[0].values.clone()
            cold, warm = (self._captured(calls, one, stack) for one in rotations)
            found.append(_Ours(name, cold, warm, error, output, 0 if plan is None else plan.workspace_bytes))
        return found

    def _rivals(
        self,
        measurement: Measurement,
        sets: Sequence[OperandSet],
        rotations: tuple[Rotation, Rotation],
        stack: ExitStack,
    ) -> tuple[Sequence[_Ours | Captured], dict[str, float], list[str]]:
        """Whom ours is raced with: PyTorch, another measurement of ours in its place, or nobody; as `fastest` returns them."""
        if measurement.rival is not None:
            names = self._names(measurement.rival)[:1]
            others, cold, warm = self._sets(measurement.rival, names[0], stack)
            found = self._all_of_ours(measurement.rival, names, others, (cold, warm), stack)
            return [replace(one, name=f"rival {one.name}") for one in found], {}, []
        if is_beside_torch(self.handle) and measurement.torch is not None:
            return self._torch(measurement, sets, rotations)
        return [], {}, []

    def _plan(self, problem: Problem | Operations, algorithm: str) -> Plan | None:
        return None if isinstance(problem, Operations) else self.handle.plan(problem, algorithm=algorithm)

    def _call(self, measurement: Measurement, algorithm: str, operands: OperandSet) -> Callable[[], None]:
        """Enqueues ours once, on one set."""
        if isinstance(measurement.problem, Operations):
            return measurement.problem.enqueue(self.handle, [one.tensor() for one in operands.operands])
        plan = self.handle.plan(measurement.problem, algorithm=algorithm)
        inputs, outputs = ([one.address for one in group] for group in (operands.inputs, operands.outputs))
        return lambda: self.handle.launch(plan, 1.0, inputs, measurement.beta, outputs)

    def _captured(self, calls: Sequence[Callable[[], None]], rotation: Rotation, stack: ExitStack) -> Replay:
        with self.handle.record() as program:
            for _ in range(rotation.passes):
                for call in calls[: rotation.sets]:
                    call()
        return Replay(stack.enter_context(closing(program.capture())).run, rotation.calls)

    def _checked(
        self, measurement: Measurement, name: str, plan: Plan | None, call: Callable[[], None], operands: OperandSet
    ) -> float | None:
        """How far ours is from float64, in memory that held something else.

        Raises:
            Wrong: further than rounding explains.
        """
        held = operands.refill(self._generator, changes=measurement.changes_outputs)
        part = self._reference(measurement, operands.input_values, held) if measurement.comparable else None
        call()
        for operand in operands.outputs:
            values = operand.pull()
            if values.dtype.is_floating_point and bool(values.isnan().any()):
                raise Wrong(f"{measurement.name}: {name} gave NaN, or left elements unwritten")
        if part is None:
            return None
        expected, taken = part
        output = taken(operands.outputs[0].values)
        if measurement.exact:
            wrong = int((output.to(expected.dtype) != expected).sum())
            if wrong:
                raise Wrong(
                    f"{measurement.name}: {name} gave {wrong} of {expected.numel()} elements otherwise than integers"
                )
            return 0.0
        math, factor = ("dtype", None) if plan is None else (plan.offer.math, plan.offer.error_factor)
        error, allowed = difference(output, expected), (factor or 1.0) * _allowed(measurement, math)
        if not error <= allowed:
            raise Wrong(f"{measurement.name}: {name} differs from float64 by {error:.2e}, {allowed:.2e} is allowed")
        return error

    def _reference(
        self, measurement: Measurement, inputs: Sequence[torch.Tensor], held: Sequence[torch.Tensor]
    ) -> Part | None:
        """float64's result for the inputs, or for a part of the output."""
        torch.backends.cudnn.enabled = False  # its search would take longer than all else here
        try:
            if measurement.reference is not None:
                return measurement.reference(inputs)
            if measurement.torch is None:
                return None
            wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in (*inputs, *held)]
            result = measurement.torch(*wide, *measurement.kept(wide))
        finally:
            torch.backends.cudnn.enabled = True
        return (result if isinstance(result, torch.Tensor) else result[0]), lambda output: output

    def _torch(
        self, measurement: Measurement, sets: Sequence[OperandSet], rotations: tuple[Rotation, Rotation]
    ) -> tuple[list[Captured], dict[str, float], list[str]]:
        inputs = [one.input_values for one in sets]
        held = sets[0].refill(self._generator, changes=True) if measurement.changes_outputs else []
        part = self._reference(measurement, inputs[0], held) if measurement.comparable else None

        def more(values: Sequence[torch.Tensor]) -> tuple[Any, ...]:
            changed = [value.clone() for value in held]
            return (*changed, *measurement.kept([*values, *changed]))

        def is_right(result: torch.Tensor) -> bool:
            if part is None:
                return True
            expected, taken = part
            return difference(taken(result), expected) <= allowed

        assert measurement.torch is not None
        allowed = _OF_CUDNN * _allowed(measurement, "tf32" if permits_tf32(measurement.problem) else "dtype")
        rival = Rival(measurement.torch, more, inputs, *rotations)
        search = self.search if measurement.searched else None
        return fastest(rival, measurement.formats, search, self.handle.record_event, is_right)

    def _figures(self, measurement: Measurement, ours: _Ours, ms: float) -> Row:
        macs, nbytes = measurement.problem.macs, measurement.nbytes
        tbps = nbytes / ms / 1e9
        row: Row = {"algorithm": ours.name, "ms": round(ms, 6)}
        if macs:
            row["tflops"] = round(2 * macs / ms / 1e9, 2)
        row["tbps"] = round(tbps, 3)
        if self.ceilings is not None:
            if macs:
                peak = self.ceilings.tflops(measurement.inputs[0].dtype, is_tf32=permits_tf32(measurement.problem))
                row["peak_tflops"] = None if peak is None else round(peak, 1)
                row["of_peak"] = None if peak is None else round(row["tflops"] / peak, 3)
            row["copy_tbps"] = round(self.ceilings.copy_tbps, 3)
            row["of_copy"] = round(tbps / self.ceilings.copy_tbps, 3)
        return row


def _ratios(
    measurement: Measurement, ours: _Ours, rivals: Sequence[_Ours | Captured], times: Mapping[str, Mapping[str, Time]]
) -> Row:
    """The best of theirs beside ours, from memory and from the cache."""
    peer = measurement.peer
    row: Row = {"ms_warm": round(times["warm"][ours.name].ms, 6)}
    for which, suffix in (("cold", ""), ("warm", "_warm")):
        found = times[which]
        theirs, best = min(((found[one.name].ms, one.name) for one in rivals), default=(None, None))
        row[f"{peer}_ms{suffix}"] = None if theirs is None else round(theirs, 6)
        row[f"of_{peer}{suffix}"] = None if theirs is None else round(theirs / found[ours.name].ms, 3)
        if which == "cold" and best is not None:
            row[peer] = best
    return row


def _allowed(measurement: Measurement, math: str) -> float:
    """How far a result may be from float64 that is computed with such products: by the least exact of the element types."""
    dtypes = [one.dtype for one in (*measurement.inputs, measurement.outputs[0]) if one.dtype.is_floating]
    return _OF_TOLERANCE * max(tolerance(dtype, measurement.length, math) for dtype in dtypes)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else float(f"{value:.{digits - 1}e}")
