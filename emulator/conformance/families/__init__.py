"""The families of checks, one module each; every module has `family()`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emulator.conformance.checks import Family

NAMES = (
    "integer",
    "logic",
    "floating",
    "approximate",
    "half",
    "comparison",
    "conversion",
    "memory",
    "atomics",
    "warp",
    "barriers",
    "matrix",
    "wgmma",
    "copies",
    "mbarrier",
    "bulk",
    "tensor",
    "im2col",
    "clusters",
    "misc",
    "driver",
    "queries",
    "refusals",
    "graphs",
    "faults",
)


def load(name: str) -> Family:
    """The family of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in NAMES:
        raise ValueError(f"no family {name!r}: one of {', '.join(NAMES)}")
    made: Family = importlib.import_module(f"emulator.conformance.families.{name}").family()
    return made
