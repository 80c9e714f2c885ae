"""Units of the library, compiled many at a time: what nvcc and nvdisasm do before the first of them takes as long as several.

The same compiler makes the same of the same sources, but for an instruction or two, whatever is compiled with them: a unit whose
`digest` is the baseline's is as it was, compiled or not.
"""

from __future__ import annotations

import functools
import hashlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dnncore.cuda.algorithms import all_units
from dnncore.cuda.runtime import jit
from dnncore.cuda.runtime.jit import Compiler
from dnncore.cuda.unit import Unit
from emulator import toolkit

from .figures import Figures, figures

__all__ = ["batches", "compiled", "digest", "nvcc", "release", "together", "units"]

_BATCH = 48
_WEIGHTS = {"gemm/kernel": 3}
"""Units a compiler run, of which some count for several: a run is ten seconds or so, which two cores can share out among them."""


@functools.cache
def units() -> tuple[Unit, ...]:
    """Every unit that an algorithm can ask for."""
    return tuple(all_units())


def batches(members: Sequence[Unit] | None = None) -> list[tuple[str, tuple[Unit, ...]]]:
    """Units many at a time, with a name for each batch: that of its first header; those that share a source stay together.

    All units of a batch exist for the same architectures; those that are for every one come first, together.

    Args:
        members: Which units; all where it is None.
    """
    sources: dict[str, list[Unit]] = {}
    for unit in units() if members is None else members:
        sources.setdefault(unit.source, []).append(unit)
    found: list[tuple[str, list[Unit]]] = []
    room = 0
    for source, sharing in sorted(sources.items(), key=lambda item: item[1][0].architectures):
        header = re.search(r'#include "dnncore/([^"]+)\.cuh"', source)
        if header is None:
            raise ValueError(f"{sharing[0].entry} includes no header of dnncore")
        weight = len(sharing) * _WEIGHTS.get(header[1], 1)
        if weight > room or found[-1][1][0].architectures != sharing[0].architectures:
            found.append((header[1], []))
            room = _BATCH
        found[-1][1].extend(sharing)
        room -= weight
    return [(f"{name}-{number}", tuple(batch)) for number, (name, batch) in enumerate(found)]


def nvcc() -> Compiler:
    """The real nvcc, also where the emulator's stand-in comes first on PATH.

    Raises:
        ToolkitError: there is none; the message says what to install.
    """
    return jit.compiler_at(str(toolkit.real_nvcc()))


def release(compiler: Compiler) -> str:
    """Version of a compiler as the baseline has it: "13.0.88"."""
    found = re.search(r"\bV(\d+\.\d+\.\d+)", compiler.version)
    if found is None:
        raise ValueError(f"{compiler.nvcc} does not say its version: {compiler.version!r}")
    return found[1]


def digest(unit: Unit, arch: str, compiler: Compiler) -> str:
    """Hash of all that the machine code of a unit depends on: source, headers, flags, compiler, architecture."""
    found = hashlib.sha256()
    for part in (compiler.key(unit, arch), *jit.STRICT_FLAGS):
        found.update(part.encode() + b"\0")
    return found.hexdigest()[:16]


def compiled(members: Sequence[Unit], arch: str, folder: Path, compiler: Compiler) -> dict[str, Figures]:
    """Compile units in one run, warnings and spills being errors, and return the figures of each by its entry.

    Raises:
        CompilationError: one of them does not compile, warns or spills; the message ends with nvcc's output.
        ValueError: what came out is not one kernel for each unit.
    """
    image = compiler.compile(together(members), arch, folder, jit.STRICT_FLAGS)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".cubin") as cubin:
        cubin.write(image)
        cubin.flush()
        found = figures(Path(cubin.name))
    if sorted(found) != sorted(unit.entry for unit in members):
        raise ValueError(f"asked for {sorted(unit.entry for unit in members)}, the cubin has {sorted(found)}")
    return found


def together(members: Sequence[Unit]) -> Unit:
    """One unit of many: includes first, then a namespace for each, so that their aliases do not meet."""
    lines = [source.splitlines() for source in dict.fromkeys(unit.source for unit in members)]
    includes = dict.fromkeys(line for source in lines for line in source if line.startswith("#include"))
    bodies = ("\n".join(line for line in source if line not in includes) for source in lines)
    spaces = (f"namespace unit_{i} {{\n{body}\n}}" for i, body in enumerate(bodies))
    return Unit("\n".join((*includes, *spaces)), members[0].entry)
