"""What algorithms took where they were measured, as files: by it a plan chooses before it goes by estimates. Nothing is timed here.

A file of choices is lines of JSON, so that two of them can be compared and joined line by line: the first says that it is one, and
in which version of the format; then there is one for each problem and model of device, sorted. Those that come with the library
hold the problems in which an estimate was found to be wrong (`benchmarks.choices` measures them); those of a user what
`Handle.find_algorithms(problem, save=path)` has found.

    {"choices": 1}
    {"problem": "Matmul(...)", "device": "NVIDIA H200", "architecture": "sm_90a", "algorithms": "5d41402a", "us": {"gemm": 9.1}}
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from operator import itemgetter
from pathlib import Path
from typing import Any

from dnncore.cache import write_atomically
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import ConfigError
from dnncore.problems import Problem

__all__ = [
    "FORMAT",
    "MOST_KEPT",
    "VARIABLE",
    "MeasuredChoice",
    "MeasuredChoices",
    "file_text",
    "names_digest",
    "of_user",
    "problem_text",
    "read",
    "save",
]

FORMAT = 1
"""Version of the files. What an older dnncore would misread makes it another number."""

VARIABLE = "DNNCORE_CHOICES"
"""Names a user's own file in the environment."""

MOST_KEPT = 4
"""Algorithms that are kept of a problem: the fastest, and those that are taken where it is not permitted."""


@dataclass(frozen=True, slots=True)
class MeasuredChoice:
    """What the algorithms for one problem took on one model of device. Immutable.

    Args:
        problem: What was solved, as `problem_text` has it.
        device: What the hardware calls itself (`DeviceInfo.model`).
        architecture: What its kernels were compiled for (`DeviceFigures.architecture`).
        algorithms: `names_digest` of those that there were to choose from. Where a plan has the same ones, those that were not
            measured come behind those that were; where it has others, their estimates compete.
        seconds: (name, seconds of a launch), the fastest first.
    """

    problem: str
    device: str
    architecture: str
    algorithms: str
    seconds: tuple[tuple[str, float], ...]

    def seconds_of(self, name: str) -> float | None:
        """What an algorithm took; None where it was not measured."""
        return next((seconds for each, seconds in self.seconds if each == name), None)

    @property
    def line(self) -> str:
        """As files have it: microseconds, in four digits."""
        us = {name: float(f"{seconds * 1e6:.4g}") for name, seconds in self.seconds}
        return json.dumps({name: getattr(self, name) for name in _TEXTS} | {"us": us}, ensure_ascii=False)

    @classmethod
    def of_line(cls, line: str) -> MeasuredChoice:
        """What a line says.

        Raises:
            ValueError: it is no such line; the message says why.
        """
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError(f"{line[:40]!r} is no object")  # noqa: TRY004 (of a file, not of an argument)
        texts = [text for name in _TEXTS if isinstance(text := found.get(name), str) and text]
        if len(texts) < len(_TEXTS):
            raise ValueError(f"{', '.join(_TEXTS)} must be there, and text")
        us = found.get("us")
        if not isinstance(us, dict) or not us or not all(map(_is_duration, us.values())):
            raise ValueError(f"us is {us!r}; it must give microseconds by the names of algorithms")
        seconds = sorted(((name, value / 1e6) for name, value in us.items()), key=itemgetter(1))
        problem, device, architecture, algorithms = texts
        return cls(problem, device, architecture, algorithms, tuple(seconds))


_TEXTS = ("problem", "device", "architecture", "algorithms")


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


class MeasuredChoices:
    """What was measured on one model of device, by problem. Immutable.

    Args:
        choices: Of two of the same problem the later one holds.
    """

    def __init__(self, choices: Iterable[MeasuredChoice] = ()) -> None:
        self._by_problem = {each.problem: each for each in choices}
        self._kinds = frozenset(text.partition("(")[0] for text in self._by_problem)
        self._extents = frozenset(each for text in self._by_problem for each in _EXTENTS.findall(text))

    def of(self, problem: Problem) -> MeasuredChoice | None:
        """What was measured of a problem; None where nothing was."""
        if _kind(problem) not in self._kinds:
            return None
        for tensor in (problem.outputs[0], *problem.inputs[:1]):  # of gradients of filters only inputs have the batch
            if _extents(tensor) not in self._extents:
                return None  # most problems, and their texts take longer to write
        return self._by_problem.get(problem_text(problem))

    def __iter__(self) -> Iterator[MeasuredChoice]:
        return iter(self._by_problem.values())

    def __len__(self) -> int:
        return len(self._by_problem)


def problem_text(problem: Problem) -> str:
    """A problem in words that are the same for equal ones, and stay so from one version of dnncore to the next.

    Tensors are written as float16[32,64,56,56:200704,1,3584,64], with `*` for the stride of a dimension of one element, which says
    nothing. Fields that have their default are left out, so that a new one changes no text.
    """
    return _text(problem)


def _text(value: Any) -> str:
    if isinstance(value, TensorDescriptor):
        pairs = zip(value.shape, value.strides, strict=True)
        strides = ",".join(["*" if extent == 1 else str(stride) for extent, stride in pairs])
        return f"{_extents(value)}{strides}]"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return f"[{','.join(map(_text, value))}]"
    if is_dataclass(value) and not isinstance(value, type):
        parts = []
        for name, default in _fields(type(value)):
            own = getattr(value, name)
            if own is not default and own != default:
                parts.append(f"{name}={_text(own)}")
        return f"{_kind(value)}({' '.join(parts)})"
    return repr(value)


_EXTENTS = re.compile(r"\w+\[[\d,]*:")
"""What `_extents` says of the tensors in a problem's text."""


def _extents(tensor: TensorDescriptor) -> str:
    """A tensor's dtype and extents, with which its text begins."""
    return f"{tensor.dtype.value}[{','.join(map(str, tensor.shape))}:"


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """Names of the fields that make a value what it is, and their defaults; what has none is equal to nothing else."""
    found = [each for each in fields(kind) if each.init and each.compare]
    return tuple((each.name, object() if each.default is MISSING else each.default) for each in found)


def _kind(value: Any) -> str:
    return type(value).__name__.removesuffix("Problem").removesuffix("Descriptor")


def names_digest(names: Iterable[str]) -> str:
    """Tells sets of algorithms apart."""
    return _digest(tuple(names))


@functools.cache
def _digest(names: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:8]


def read(path: str | os.PathLike[str]) -> tuple[MeasuredChoice, ...]:
    """The choices of a file, of whatever devices.

    Raises:
        ConfigError: there is no such file, it is damaged, or of a newer version; the message names it and says what to do.
    """
    file = Path(path).absolute()
    try:
        state = file.stat()
        return _read(file, (state.st_ino, state.st_mtime_ns, state.st_size))
    except OSError as error:
        raise ConfigError(
            f"the choices {file} cannot be read ({error.strerror or error}); name a file that {_REMEDY} has written, or none"
        ) from error


_REMEDY = "Handle.find_algorithms(problem, save=path)"


@functools.lru_cache(maxsize=8)
def _read(file: Path, state: tuple[int, int, int]) -> tuple[MeasuredChoice, ...]:  # noqa: ARG001 -- what has changed is read again
    number = 1
    try:
        first, *lines = file.read_text(encoding="utf-8").split("\n")
        version = _version(first)
        found = []
        for number, line in enumerate(lines if version <= FORMAT else (), 2):  # noqa: B007 -- where it ended
            if line:
                found.append(MeasuredChoice.of_line(line))
    except ValueError as error:  # of the encoding, too
        raise ConfigError(
            f"the choices {file} are damaged in line {number}: {error}; remove the line, or the file, and measure again by "
            f"{_REMEDY}"
        ) from error
    if version > FORMAT:
        raise ConfigError(
            f"the choices {file} have version {version} of their format, and this dnncore reads up to {FORMAT}: use the dnncore "
            f"that wrote them, or remove the file and measure again by {_REMEDY}"
        )
    return tuple(found)


def _version(line: str) -> int:
    head = json.loads(line)
    version = head.get("choices") if isinstance(head, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f'it must be {{"choices": {FORMAT}}}, and is {line[:40]!r}')
    return version


def of_user(path: str | os.PathLike[str] | None) -> tuple[MeasuredChoice, ...]:
    """Those of a user's own file: the one that is named here, else in $DNNCORE_CHOICES; none where neither names one. As `read`."""
    named = path or os.environ.get(VARIABLE)
    return read(named) if named else ()


def file_text(choices: Iterable[MeasuredChoice], facts: Mapping[str, object] | None = None) -> str:
    """A file of choices; of two of the same problem and device the later one is in it.

    Args:
        choices: In any order.
        facts: What the first line says besides.
    """
    lines = {(each.problem, each.device, each.architecture): each.line for each in choices}
    return "\n".join([json.dumps({"choices": FORMAT, **(facts or {})}), *(lines[key] for key in sorted(lines)), ""])


def save(path: str | os.PathLike[str], choice: MeasuredChoice) -> None:
    """Put a choice into a file, which is made where it is not there, in the place of what it said of the same problem and device.

    Of two processes that do so at the same moment, what one has saved may be missing.

    Raises:
        ConfigError: as `read`; or the file cannot be written.
    """
    file = Path(path)
    before = read(file) if file.exists() else ()
    try:
        write_atomically(file, file_text([*before, choice]).encode())
    except OSError as error:
        raise ConfigError(
            f"the choices {file} cannot be written ({error.strerror or error}); name a file in a folder that you may write to"
        ) from error
