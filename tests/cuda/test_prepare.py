"""What is compiled for the emulator ahead of the tests: everything, and in a hurry only what may be."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import dnncore
from dnncore.cuda.unit import Unit
from tests.cuda import prepare
from tests.cuda.gates import units as gate

INCLUDE = Path(dnncore.__file__).parent / "cuda/include"
BATCHES = prepare.batches(gate.units())


@cache
def _multiplies_by_wgmma(text: str) -> bool:
    """Whether a source or a header has the instruction, or includes what has it."""
    names = re.findall(r'#include "(dnncore/[^"]+)"', text)
    return "wgmma.mma_async" in text or any(_multiplies_by_wgmma((INCLUDE / name).read_text()) for name in names)


def test_every_unit_is_compiled_once() -> None:
    assert sorted(unit.entry for batch, _ in BATCHES for unit in batch) == sorted(unit.entry for unit in gate.units())


def test_what_multiplies_by_wgmma_is_not_compiled_in_a_hurry() -> None:
    hurried: list[Unit] = [unit for batch, flags in BATCHES if flags for unit in batch]
    assert hurried
    assert any(_multiplies_by_wgmma(unit.source) for unit in gate.units())
    assert not [unit.entry for unit in hurried if _multiplies_by_wgmma(unit.source)]
