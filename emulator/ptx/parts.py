"""The text of a module of many kernels, cut into modules of some of them: a run of nvcc can then serve many."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

__all__ = ["Parts"]

_HEADER = re.compile(r"\.(entry|func)\b(?:\s*\([^)]*\))?\s*([\w$]+)")
"""What a function is called, behind the parameter that it may return."""


class Parts:
    """A module's functions by name, and what is beside them. Immutable.

    Args:
        text: PTX as nvcc writes it: functions begin at the start of a line, and end in one with nothing but their brace.
    """

    def __init__(self, text: str) -> None:
        beside: list[str] = []
        self._entries: dict[str, str] = {}
        self._helpers: dict[str, str] = {}
        for name, is_entry, item in _items(text):
            if name is None:
                beside.append(item)
            else:
                (self._entries if is_entry else self._helpers)[name] = item
        self._beside = "".join(beside)

    @property
    def entries(self) -> Collection[str]:
        """Names of the kernels."""
        return self._entries.keys()

    def module(self, entries: Collection[str]) -> str:
        """A module of these kernels, with the device functions that they reach and all variables.

        Raises:
            KeyError: there is no such kernel.
        """
        bodies = [self._entries[name] for name in entries]
        reached: dict[str, str] = {}
        waiting = list(bodies)
        while waiting:
            used = set(re.findall(r"[\w$]+", waiting.pop()))
            for name, item in self._helpers.items():
                if name in used and name not in reached:
                    reached[name] = item
                    waiting.append(item)
        return "".join((self._beside, *reached.values(), *bodies))


def _ends(lines: list[str]) -> bool:
    """Whether a function ends here: with a brace at the start of a line, or, where it has no body, with a semicolon."""
    last = lines[-1].rstrip()
    return last == "}" or (last.endswith(";") and not any(line.rstrip() == "{" for line in lines))


def _items(text: str) -> Iterator[tuple[str | None, bool, str]]:
    """(name of a function or None, whether it is a kernel, text), in order; debug sections, which nobody reads, are left out."""
    lines = iter(text.splitlines(keepends=True))
    for line in lines:
        if not line.startswith(".") or not re.search(r"\.(entry|func)\b", line):
            if line.lstrip().startswith(".section"):
                for behind in lines:
                    if behind.strip() == "}":
                        break
            else:
                yield None, False, line
            continue
        item = [line]
        while not _ends(item):
            item.append(next(lines))
        whole = "".join(item)
        header = _HEADER.search(whole)
        if header is None:
            raise ValueError(f"no name in {line!r}")
        is_declared = item[-1].rstrip() != "}"
        yield None if is_declared else header[2], header[1] == "entry", whole
