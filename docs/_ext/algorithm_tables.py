"""The tables of algorithms, made from the backends' own lists: each algorithm is asked what it supports and needs.

No GPU takes part: `supports` and `workspace_bytes` depend on the problem, and of the device on its `info` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from features import FEATURES, Feature
from named_problems import EXAMPLES, TESTED
from sphinx.application import Sphinx

from dnncore.backend import Algorithm, DeviceInfo
from dnncore.cuda.algorithms import algorithms_for
from dnncore.errors import BadParamError
from dnncore.problems import Problem
from dnncore.reference import ReferenceDevice

__all__ = ["BACKENDS", "PLACE", "Backend", "setup", "tables"]

PLACE = "<!-- the tables -->"
"""Where they go in `algorithms.md`."""

NOT_APPLICABLE = "n/a"
_NUM_BASES = 4


@dataclass(frozen=True)
class _Gpu:
    """As much of a CUDA device as `supports` may look at. Immutable."""

    info: DeviceInfo


_AMPERE = _Gpu(DeviceInfo("cuda:0", "an A100", 80 << 30, (8, 0)))
_HOPPER = _Gpu(DeviceInfo("cuda:0", "an H200", 141 << 30, (9, 0)))


@dataclass(frozen=True)
class Backend:
    """Where algorithms come from. Immutable.

    Args:
        title: Heading of its tables.
        algorithms: Those of a problem's kind.
        device: What `supports` is asked for.
    """

    title: str
    algorithms: Callable[[Problem], tuple[Algorithm, ...]]
    device: Any


_CPU = ReferenceDevice()
BACKENDS = (Backend("CUDA", algorithms_for, _HOPPER), Backend("cpu", _CPU.algorithms, _CPU))


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


_ANSWERS: dict[Any, str | None] = {}  # a case is asked about once for every feature that it has


def _refusal(algorithm: Algorithm, problem: Problem, device: Any) -> str | None:
    key = algorithm, problem, device
    if key not in _ANSWERS:
        _ANSWERS[key] = algorithm.supports(problem, device)
    return _ANSWERS[key]


def _cases(heading: str) -> list[Problem]:
    return [case.problem for case in TESTED.get(heading, ())]


def _bases(algorithm: Algorithm, heading: str, device: Any) -> list[Problem]:
    """Some problems of a kind that an algorithm takes: features are asked for as changes of these."""
    probes = [*(problem for _, problem in EXAMPLES[heading]), *_cases(heading)]
    return [problem for problem in probes if _refusal(algorithm, problem, device) is None][:_NUM_BASES]


def _varied(feature: Feature, base: Problem) -> Problem | None:
    try:
        return feature.vary(base)
    except BadParamError:
        return None


def _cell(
    algorithm: Algorithm, bases: list[Problem], feature: Feature, heading: str, device: Any, notes: _Notes
) -> str:
    """Whether it takes all, some or none of the problems with a feature, with a reason; or that there are none."""

    def ask(problems: list[Problem]) -> list[str | None]:
        return [_refusal(algorithm, problem, device) for problem in problems]

    varied = ask([problem for base in bases if (problem := _varied(feature, base))])
    cases = ask([problem for problem in _cases(heading) if feature.has(problem)])
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
    notes, on_cuda = _Notes(), isinstance(backend.device, _Gpu)
    rows = []
    for algorithm in algorithms:
        bases = _bases(algorithm, heading, backend.device)
        row = [f"`{algorithm.name}`", "yes" if algorithm.deterministic else "no", algorithm.math]
        row += [_cell(algorithm, bases, feature, heading, backend.device, notes) for feature in FEATURES]
        if on_cuda:
            reason = next((_refusal(algorithm, base, _AMPERE) for base in bases), None)
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
        fits = [_refusal(algorithm, problem, backend.device) is None for algorithm in algorithms]
        needs = [
            _size(algorithm.workspace_bytes(problem)) if fit else ""
            for algorithm, fit in zip(algorithms, fits, strict=True)
        ]
        first = fits.index(True)
        needs[first] = f"**{needs[first]}**"
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
