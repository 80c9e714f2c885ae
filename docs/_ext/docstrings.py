"""Docstrings as this project writes them, made fit for reStructuredText.

They are plain text with code in backticks and Google's sections. Shapes such as [N, C, *spatial] would begin an emphasis, |a| a
substitution, and a tree drawn with lines would flow into one paragraph.
"""

from __future__ import annotations

import enum
import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["as_restructured_text", "setup"]

_CODE = re.compile(r"(``.*?``|`[^`]*`)")
_MARK = re.compile(r"([*|])")
_TREE = re.compile(r"\s*[│├└]")


def as_restructured_text(lines: list[str]) -> list[str]:
    """Escape the marks of emphasis outside code, and indent what a tree is drawn with into a literal block."""
    result: list[str] = []
    for i, line in enumerate(lines):
        below = lines[i + 1] if i + 1 < len(lines) else ""
        if _TREE.match(below) and not _TREE.match(line):
            result += ["::", ""]
        if _TREE.match(line) or _TREE.match(below):
            result.append(f"    {line}")
        else:
            parts = _CODE.split(line)
            result.append("".join(part if part.startswith("`") else _MARK.sub(r"\\\1", part) for part in parts))
    return result


def _process(_app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    # Of a value's docstring, napoleon takes what stands before a colon in the first line for a type.
    first = ["\\ "] if what in ("data", "attribute", "property") else []
    lines[:] = first + as_restructured_text(lines)


def _skip(_app: Sphinx, what: str, _name: str, thing: object, _skip: bool, _options: object) -> bool | None:
    """Keep enumerators, which have no docstrings of their own."""
    return False if what == "class" and isinstance(thing, enum.Enum) else None


def _signature(
    _app: Sphinx, what: str, _name: str, thing: object, _options: object, _arguments: str | None, _result: str | None
) -> tuple[str, None] | None:
    """None where nobody calls the class: an enumeration, a Protocol."""
    called = (
        what != "class"
        or not isinstance(thing, type)
        or not (issubclass(thing, enum.Enum) or getattr(thing, "_is_protocol", False))
    )
    return None if called else ("", None)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to autodoc, before napoleon writes marks of its own."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}
