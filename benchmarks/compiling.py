"""Kernels compiled at the same time, before any of them is measured: one after the other they would take most of a GPU's time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from dnncore import Handle
from dnncore.cuda.calls import Calls, KernelCall, WhereAligned
from dnncore.cuda.runtime import jit
from dnncore.cuda.unit import Unit
from dnncore.plan import Plan

__all__ = ["compile_all", "units_of"]


def compile_all(handle: Handle, plans: Iterable[Plan]) -> int:
    """Compile what plans launch and nobody has compiled before; returns for how many sources it looked."""
    capability = handle.info.compute_capability
    if capability is None:
        return 0
    arch = jit.architecture(capability)
    units = {unit.source: unit for plan in plans for unit in units_of(plan.work)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda unit: jit.cubin(unit, arch), units.values()):
            pass
    return len(units)


def units_of(calls: Calls) -> Iterator[Unit]:
    """The kernels of a plan's calls."""
    for call in calls:
        if isinstance(call, KernelCall):
            yield call.unit
        elif isinstance(call, WhereAligned):
            yield from units_of(call.aligned)
            yield from units_of(call.otherwise)
