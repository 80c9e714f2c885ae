"""Sources of kernels in pieces, one kernel each, so that a piece that does not compile fails alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PTX_HEADER = ".version 9.0\n.target sm_90a\n.address_size 64\n"
KERNELS = Path(__file__).parent / "kernels"
# A section of a .cu file starts with such a line; what stands before the first one belongs to every section.
_SECTION = re.compile(r"^// ---- (\w+)(?::.*)?$", re.MULTILINE)


@dataclass
class Library:
    """Kernels of one language: a header and a piece of text per kernel."""

    suffix: str
    header: str
    pieces: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Of the kernels."""
        return list(self.pieces)

    def add(self, name: str, text: str) -> None:
        """Adds a kernel.

        Raises:
            ValueError: There is one of that name.
        """
        if name in self.pieces:
            raise ValueError(f"two kernels named {name}")
        self.pieces[name] = text

    def text(self, names: Sequence[str] | None = None) -> str:
        """The source of these kernels, or of all."""
        chosen = self.names if names is None else names
        return "\n".join([self.header, *(self.pieces[name] for name in chosen)])


def ptx_library(declarations: str = "") -> Library:
    """An empty library of PTX."""
    return Library(".ptx", PTX_HEADER + declarations)


@cache
def cuda_library(name: str) -> Library:
    """kernels/NAME.cu behind kernels/device.cuh, by sections."""
    parts = _SECTION.split((KERNELS / f"{name}.cu").read_text())
    header = (KERNELS / "device.cuh").read_text() + parts[0]
    library = Library(".cu", header)
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        library.add(title, text)
    return library
