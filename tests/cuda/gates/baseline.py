"""The committed numbers: a JSON file an architecture, one line a kernel, so that a change of it reads well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .figures import OCCUPIED, Figures

__all__ = ["FOLDER", "Baseline"]

FOLDER = Path(__file__).parent / "baseline"


@dataclass(frozen=True, slots=True)
class Baseline:
    """Figures of every kernel for one architecture. Immutable.

    Args:
        compiler: Version of the compiler that they are of.
        kernels: Figures by the kernel's name.
    """

    compiler: str
    kernels: Mapping[str, Figures]

    @classmethod
    def read(cls, arch: str, folder: Path = FOLDER) -> Baseline:
        """The baseline of an architecture; empty where none was written yet."""
        try:
            document = json.loads((folder / f"{arch}.json").read_text())
        except FileNotFoundError:
            return cls("", {})
        return cls(document["compiler"], document["kernels"])

    def write(self, arch: str, folder: Path = FOLDER) -> None:
        """Write it, sorted by kernel."""
        lines = (f"  {json.dumps(name)}: {_line(self.kernels[name])}" for name in sorted(self.kernels))
        text = f'{{\n "compiler": {json.dumps(self.compiler)},\n "kernels": {{\n' + ",\n".join(lines) + "\n }\n}\n"
        (folder / f"{arch}.json").write_text(text)


def _line(figures: Figures) -> str:
    order = (*OCCUPIED, "instructions")
    return json.dumps({name: figures[name] for name in (*order, *sorted(figures.keys() - set(order)))})
