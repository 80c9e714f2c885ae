"""The tables of algorithms, made from the backends' own lists: each algorithm is asked what it supports and needs.

No GPU takes part: an offer depends on the problem and on the figures of a device, which are known without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from features import FEATURES, Feature
from named_problems import EXAMPLES, TESTED
from sphinx.application import Sphinx

from dnncore.backend import Algorithm, Offer
from dnncore.cuda.algorithms import algorithms_for
from dnncore.errors import BadParamError
from dnncore.figures import A100, CPU, H200, DeviceFigures
from dnncore.problems import Problem
from dnncore.reference import ReferenceDevice

__all__ = ["BACKENDS", "PLACE", "Backend", "setup", "tables"]

PLACE = "<!-- the tables -->"
"""Where they go in `algorithms.md`."""

NOT_APPLICABLE = "n/a"
_NUM_BASES = 4


@dataclass(frozen=True)
class Backend:
    """Where algorithms come from. Immutable.

    Args:
        title: Heading of its tables.
        algorithms: Those of a problem's kind.
        figures: The device that offers are asked for.
    """

    title: str
    algorithms: Callable[[Problem], tuple[Algorithm, ...]]
    figures: DeviceFigures


BACKENDS = (Backend("CUDA", algorithms_for, H200), Backend("cpu", ReferenceDevice().algorithms, CPU))


class _Notes:
    """Reasons, numbered in the order in which they are met. Owned by one thread."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        """The number of a reason, as a superscript."""
        return f"<sup>{self._numbers.setdefault(reason, len(self._numbers) + 1)}</sup>"

    def lines(self) -> Iterator[str]:
        """Each with its number."""
        return (f"{number}. {reason}" for reason, number in self._numbers.items())


_ANSWERS: dict[Any, Offer | str] = {}  # a problem with a feature may be one that was asked about before


def _offer(algorithm: Algorithm, problem: Problem, figures: DeviceFigures) -> Offer | str:
    key = algorithm, problem, figures
    if key not in _ANSWERS:
        _ANSWERS[key] = algorithm.offer(problem, figures)
    return _ANSWERS[key]


def _refusal(algorithm: Algorithm, problem: Problem, figures: DeviceFigures) -> str | None:
    answer = _offer(algorithm, problem, figures)
    return answer if isinstance(answer, str) else None


@cache
def _cases(heading: str) -> tuple[Problem, ...]:
    return tuple(case.problem for case in TESTED.get(heading, ()))


@cache
def _with(feature: Feature, heading: str) -> tuple[int, ...]:
    """Places among the cases of a kind of those that have a feature."""
    return tuple(i for i, problem in enumerate(_cases(heading)) if feature.has(problem))


def _bases(algorithm: Algorithm, heading: str, figures: DeviceFigures) -> list[Problem]:
    """Some problems of a kind that an algorithm takes: features are asked for as changes of these."""
    probes = [*(problem for _, problem in EXAMPLES[heading]), *_cases(heading)]
    return [problem for problem in probes if _refusal(algorithm, problem, figures) is None][:_NUM_BASES]


def _varied(feature: Feature, base: Problem) -> Problem | None:
    try:
        return feature.vary(base)
    except BadParamError:
        return None


def _cell(varied: list[str | None], cases: list[str | None], notes: _Notes) -> str:
    """Whether an algorithm takes all, some or none of the problems with a feature, with a reason; or that there are none.

    Args:
        varied: Its refusals, or None, of problems that were given the feature.
        cases: Of cases that have it.
        notes: Where reasons are numbered.
    """
    answers = varied or cases
    reason = next((answer for answer in answers if answer is not None), None)
    if not answers:
        return NOT_APPLICABLE
    if reason is None:
        return "yes"
    return ("partly" if None in varied + cases else "no") + notes.mark(reason)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(header), _row(["---"] * len(header)), *map(_row, rows)]


def _support(algorithms: tuple[Algorithm, ...], heading: str, backend: Backend) -> Iterator[str]:
    notes, on_cuda = _Notes(), backend.figures is not CPU
    rows = []
    for algorithm in algorithms:
        bases = _bases(algorithm, heading, backend.figures)
        offers = [offer for base in bases if isinstance(offer := _offer(algorithm, base, backend.figures), Offer)]
        deterministic = "yes" if all(offer.deterministic for offer in offers) else "no"
        row = [f"`{algorithm.name}`", deterministic, ", ".join(dict.fromkeys(offer.math for offer in offers))]
        refusals = [_refusal(algorithm, problem, backend.figures) for problem in _cases(heading)]
        for feature in FEATURES:
            problems = (problem for base in bases if (problem := _varied(feature, base)))
            varied = [_refusal(algorithm, problem, backend.figures) for problem in problems]
            row.append(_cell(varied, [refusals[i] for i in _with(feature, heading)], notes))
        if on_cuda:
            reason = next((_refusal(algorithm, base, A100) for base in bases), None)
            row.append("yes" if reason is None else f"no{notes.mark(reason)}")
        rows.append(row)
    header = ["algorithm", "deterministic", "math", *(feature.name for feature in FEATURES)]
    if on_cuda:
        header.append("sm_80")
    kept = [i for i in range(len(header)) if any(row[i] != NOT_APPLICABLE for row in rows)]
    yield from _table([header[i] for i in kept], [[row[i] for i in kept] for row in rows])
    yield ""
    yield from notes.lines()


def _size(nbytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes} B"


def _workspace(algorithms: tuple[Algorithm, ...], heading: str, backend: Backend) -> list[str]:
    rows = []
    for name, problem in EXAMPLES[heading]:
        offers = [_offer(algorithm, problem, backend.figures) for algorithm in algorithms]
        needs = ["" if isinstance(offer, str) else _size(offer.workspace_bytes) for offer in offers]
        seconds = [math.inf if isinstance(offer, str) else offer.seconds for offer in offers]
        chosen = seconds.index(min(seconds))
        needs[chosen] = f"**{needs[chosen]}**"
        rows.append([name, *needs])
    return _table(["workspace on", *(f"`{algorithm.name}`" for algorithm in algorithms)], rows)


def tables(backends: Sequence[Backend] = BACKENDS) -> str:
    """All of them, as Markdown."""
    lines: list[str] = []
    for backend in backends:
        lines += [f"## {backend.title}", ""]
        for heading in sorted(EXAMPLES):
            algorithms = backend.algorithms(EXAMPLES[heading][0][1])
            lines += [f"### {heading}", "", *_support(algorithms, heading, backend), ""]
            lines += [*_workspace(algorithms, heading, backend), ""]
    return "\n".join(lines)


def _insert(_app: Sphinx, page: str, source: list[str]) -> None:
    if page == "algorithms":
        source[0] = source[0].replace(PLACE, tables())


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the reading of pages."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True}
