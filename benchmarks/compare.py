"""Two results files row by row: what has become slower, and what faster.

    python -m benchmarks.compare OLD.json NEW.json [--over 5] [--what ms]

Rows are the same where all but what was measured is: names, batch, direction and so on. Of several algorithms the first counts,
the one that would be chosen. It prints those whose times differ by more than `--over` percent, the slower ones first, what only
one file has, and the geometric mean of all; it exits with 1 where a row has become slower by more than that. Times that were taken
by different methods or on different devices are not compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Change", "compared", "main"]

_KEYS = (
    "name",
    "layer",
    "net",
    "batch",
    "direction",
    "precision",
    "layout",
    "how",
    "autotuned",
    "specification",
    "size",
    "dtype",
)
_TIMES = ("ms", "ours_ms", "ours")
"""What ours takes is called, in the files that there are."""

Key = tuple[tuple[str, Any], ...]


class Change(NamedTuple):
    """A row of both files: its time before and after, and the algorithms."""

    key: Key
    before: float
    after: float
    algorithms: tuple[str, str]

    @property
    def ratio(self) -> float:
        """Above 1: slower than before."""
        return self.after / self.before

    def __str__(self) -> str:
        old, new = self.algorithms
        algorithm = old if old == new else f"{old} -> {new}"
        return f"{self.ratio:6.3f}  {self.before:10.5g} -> {self.after:10.5g}  {_name(self.key)}  {algorithm}".rstrip()


def _name(key: Key) -> str:
    return " ".join(str(value) for _, value in key)


def _rows(document: Mapping[str, Any], what: str | None) -> dict[Key, Mapping[str, Any]]:
    found: dict[Key, Mapping[str, Any]] = {}
    for row in document["results"]:
        if any(name in row for name in ((what,) if what else _TIMES)):
            found.setdefault(tuple((name, row[name]) for name in _KEYS if name in row), row)
    return found


def _why_not(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Why times of two files cannot be compared."""
    for what, values in (
        ("method", [document.get("method") for document in (old, new)]),
        ("GPUs", [sorted(set(document["environment"]["gpus"])) for document in (old, new)]),
    ):
        if values[0] != values[1]:
            return f"{what} differ: {values[0]!r} and {values[1]!r}"
    return None


def compared(
    old: Mapping[str, Any], new: Mapping[str, Any], what: str | None = None
) -> tuple[list[Change], list[Key], list[Key]]:
    """Rows of both, the one that has become slowest first; those that are gone; those that are new.

    Args:
        old: A results file as JSON.
        new: Another.
        what: Which figure; None for what ours takes.
    """
    before, after = _rows(old, what), _rows(new, what)
    changes = []
    for key in before.keys() & after.keys():
        rows = before[key], after[key]
        name = what or next(name for name in _TIMES if name in rows[0])
        first, second = (float(row[name]) for row in rows)
        changes.append(Change(key, first, second, (rows[0].get("algorithm", ""), rows[1].get("algorithm", ""))))
    changes.sort(key=lambda change: (-change.ratio, _name(change.key)))
    return changes, [key for key in before if key not in after], [key for key in after if key not in before]


def main(arguments: list[str] | None = None) -> int:
    """Print what has changed; 1 where something has become slower, 2 where the files cannot be compared."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--over", type=float, default=5.0, metavar="PERCENT", help="default: %(default)g")
    parser.add_argument("--what", help="another figure than what ours takes, such as ms_warm or cudnn_ms")
    options = parser.parse_args(arguments)
    old, new = (json.loads(path.read_text()) for path in (options.old, options.new))
    reason = _why_not(old, new)
    if reason is not None:
        print(f"error: {options.old} and {options.new}: {reason}", file=sys.stderr)
        return 2
    changes, gone, come = compared(old, new, options.what)
    limit = 1 + options.over / 100
    slower = [change for change in changes if change.ratio > limit]
    for heading, part in (
        (f"slower by more than {options.over:g} %", slower),
        (f"faster by more than {options.over:g} %", [change for change in changes if change.ratio < 1 / limit]),
    ):
        print(f"{heading}: {len(part)} of {len(changes)}", *(f"  {change}" for change in part), sep="\n")
    for heading, keys in (("only in the old file", gone), ("only in the new file", come)):
        if keys:
            print(f"{heading}: {len(keys)}", *(f"  {_name(key)}" for key in keys), sep="\n")
    if changes:
        mean = statistics.geometric_mean(change.ratio for change in changes)
        print(f"geometric mean of the new times over the old: {mean:.3f}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
