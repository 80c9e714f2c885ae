"""The committed numbers: a JSON file for each architecture, a line for each kernel, so that changes read well, and merge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .figures import OCCUPIED, Figures

__all__ = ["FOLDER", "Baseline"]

FOLDER = Path(__file__).parent / "baseline"


@dataclass(frozen=True, slots=True)
class Baseline:
    """Figures of every kernel for one architecture. Immutable.

    Args:
        compiler: Version of the compiler that they are of.
        kernels: Figures by the kernel's name.
        digests: What each kernel was compiled from and with, by its name; see `units.digest`.
    """

    compiler: str
    kernels: Mapping[str, Figures]
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, arch: str, folder: Path = FOLDER) -> Baseline:
        """The baseline of an architecture; empty where none was written yet."""
        try:
            document = json.loads((folder / f"{arch}.json").read_text())
        except FileNotFoundError:
            return cls("", {})
        kernels: dict[str, dict[str, Any]] = document["kernels"]
        digests = {name: line.pop("digest") for name, line in kernels.items() if "digest" in line}
        return cls(document["compiler"], kernels, digests)

    def write(self, arch: str, folder: Path = FOLDER) -> None:
        """Write it, sorted by name."""
        lines = (f"  {json.dumps(name)}: {self._line(name)}" for name in sorted(self.kernels))
        kernels = "{\n" + ",\n".join(lines) + "\n }"
        text = f'{{\n "compiler": {json.dumps(self.compiler)},\n "kernels": {kernels}\n}}\n'
        (folder / f"{arch}.json").write_text(text)

    def _line(self, name: str) -> str:
        figures, order = self.kernels[name], (*OCCUPIED, "instructions")
        line: dict[str, int | str] = {key: figures[key] for key in (*order, *sorted(figures.keys() - set(order)))}
        if name in self.digests:
            line["digest"] = self.digests[name]
        return json.dumps(line)
