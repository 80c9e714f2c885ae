"""Judging figures against the baseline: what breaks a gate, and what is only told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .baseline import Baseline
from .figures import LOCAL, OCCUPIED, Figures, is_tensor

__all__ = ["REMEDY", "Change", "broken", "changes", "gone", "table"]

REMEDY = "If that is meant, run `python -m tests.cuda.gates --update` and commit what it writes."


@dataclass(frozen=True, slots=True)
class Change:
    """One figure that is not what it was. Immutable."""

    arch: str
    kernel: str
    figure: str
    before: int
    after: int

    @property
    def ratio(self) -> float:
        """How far apart the two are, whichever is the larger; from or to nothing is furthest."""
        low, high = sorted((self.before, self.after))
        return high / low if low else float("inf")


def changes(arch: str, kernel: str, before: Figures, after: Figures) -> list[Change]:
    """Every figure that differs: what is occupied first, then instructions, and these by kind.

    Less than a percent of all instructions does not count: the order of kernels in a cubin makes a difference of one or two.
    """
    order = (*OCCUPIED, "instructions")
    kinds = sorted((before.keys() | after.keys()) - set(order))
    pairs = ((figure, before.get(figure, 0), after.get(figure, 0)) for figure in (*order, *kinds))
    found = [Change(arch, kernel, figure, old, new) for figure, old, new in pairs if old != new]
    return [change for change in found if change.figure != "instructions" or change.ratio >= 1.01]


def broken(arch: str, kernel: str, baseline: Baseline, after: Figures, compiler: str) -> list[str]:
    """The gates that a kernel breaks, in words.

    Local memory never grows, whichever the compiler. Tensor-core instructions of a kind never get fewer; another compiler may
    unroll otherwise, so that there only their absence counts.
    """
    if kernel not in baseline.kernels:
        return [f"{kernel} for {arch} is not in the baseline"]
    found = []
    for change in changes(arch, kernel, baseline.kernels[kernel], after):
        said = f"{kernel} for {arch}: {change.figure} {change.before} -> {change.after}"
        fewer = change.after < change.before
        if change.figure in LOCAL and not fewer:
            found.append(f"{said}: registers spill, or an array is in local memory")
        if is_tensor(change.figure) and fewer and (compiler == baseline.compiler or change.after == 0):
            found.append(f"{said}: tensor-core instructions are lost")
    return found


def gone(arch: str, baseline: Baseline, kernels: Collection[str]) -> list[str]:
    """What is wrong with a baseline that has kernels which no algorithm asks for any more, in words."""
    return [
        f"{name} for {arch} is in the baseline, and no algorithm asks for it"
        for name in sorted(baseline.kernels.keys() - set(kernels))
    ]


def table(found: Iterable[Change], most: int | None = None) -> list[str]:
    """Lines of a table of changes, the largest first; `most` of them at most, and how many there are beside."""
    ordered = sorted(found, key=lambda change: (-change.ratio, change.kernel, change.arch, change.figure))
    shown = ordered[:most]
    rows = [(c.arch, c.kernel, c.figure, str(c.before), str(c.after), f"{c.after - c.before:+}") for c in shown]
    lines = _aligned([("arch", "kernel", "figure", "baseline", "now", ""), *rows]) if rows else []
    if len(ordered) > len(shown):
        lines.append(f"... and {len(ordered) - len(shown)} more: `python -m tests.cuda.gates` prints them all")
    return lines


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their widest cell: words to the left, numbers (from the fourth on) to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
