"""Every unit that an algorithm can ask for compiles, without a warning and without a register spill."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from dnncore.cuda import jit
from dnncore.cuda.algorithms import all_units
from dnncore.cuda.build import ARCHITECTURES
from dnncore.cuda.jit import Compiler, Unit

UNITS = all_units()
BATCH = 6
"""Units a compiler run: starting nvcc takes as long as compiling several of them."""


def batches() -> list[tuple[str, tuple[Unit, ...]]]:
    """Units of one header together, a few at a time, with a name for each batch."""
    families: dict[str, list[Unit]] = {}
    for unit in UNITS:
        header = re.search(r'#include "dnncore/([^"]+)\.cuh"', unit.source)
        assert header is not None, unit
        families.setdefault(header[1], []).append(unit)
    return [
        (f"{name}-{start // BATCH}", tuple(units[start : start + BATCH]))
        for name, units in families.items()
        for start in range(0, len(units), BATCH)
    ]


def together(units: tuple[Unit, ...]) -> Unit:
    """One unit of many: includes first, then a namespace for each, so that their aliases do not meet."""
    lines = [unit.source.splitlines() for unit in units]
    includes = dict.fromkeys(line for source in lines for line in source if line.startswith("#include"))
    bodies = ("\n".join(line for line in source if line not in includes) for source in lines)
    spaces = (f"namespace unit_{i} {{\n{body}\n}}" for i, body in enumerate(bodies))
    return Unit("\n".join((*includes, *spaces)), units[0].entry)


def test_entries_are_unique() -> None:
    assert len({unit.entry for unit in UNITS}) == len(UNITS)


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    """The real nvcc, also where the emulator's stand-in comes first on PATH."""
    for place in os.environ["PATH"].split(os.pathsep):
        nvcc = shutil.which("nvcc", path=place)
        if nvcc is not None:
            found = jit.compiler_at(nvcc)
            if not found.version.startswith("nvcc-emu"):
                return found
    pytest.skip("no nvcc on PATH: install the CUDA toolkit")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("units", [pytest.param(units, id=name) for name, units in batches()])
def test_units_compile_without_warnings_or_spills(
    units: tuple[Unit, ...], arch: str, compiler: Compiler, tmp_path: Path
) -> None:
    image = compiler.compile(together(units), arch, tmp_path, jit.STRICT_FLAGS)
    assert image.startswith(b"\x7fELF")
    assert all(unit.entry.encode() in image for unit in units)
