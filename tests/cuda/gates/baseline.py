"""The committed numbers: a JSON file an architecture, one line a kernel or batch, so that a change of it reads well."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
        digests: What each batch of units was compiled from and with, by the batch's name; see `units.digest`.
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
        return cls(document["compiler"], document["kernels"], document.get("digests", {}))

    def write(self, arch: str, folder: Path = FOLDER) -> None:
        """Write it, sorted by name."""
        kernels = _object((name, _line(self.kernels[name])) for name in sorted(self.kernels))
        digests = _object((name, json.dumps(self.digests[name])) for name in sorted(self.digests))
        compiler = json.dumps(self.compiler)
        text = f'{{\n "compiler": {compiler},\n "kernels": {kernels},\n "digests": {digests}\n}}\n'
        (folder / f"{arch}.json").write_text(text)


def _object(members: Iterable[tuple[str, str]]) -> str:
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {text}" for name, text in members) + "\n }"


def _line(figures: Figures) -> str:
    order = (*OCCUPIED, "instructions")
    return json.dumps({name: figures[name] for name in (*order, *sorted(figures.keys() - set(order)))})
