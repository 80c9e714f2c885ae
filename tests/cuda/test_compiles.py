"""Every unit that an algorithm can ask for compiles, without a warning or a spill, to machine code no worse than the baseline's.

Kernels that are to the letter what the baseline was made of are compiled on GPU hosts; here some of the batch that has the smallest
digest are, so that a baseline that nobody compiled does not last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from dnncore.cuda.build import MACHINES
from dnncore.cuda.runtime.jit import Compiler
from dnncore.cuda.unit import Unit
from emulator.toolkit import ToolkitError
from tests.conftest import GPU
from tests.cuda.gates import summary, verdict
from tests.cuda.gates import units as gate
from tests.cuda.gates.baseline import Baseline

BATCHES = gate.batches()
ENTRIES = [unit.entry for unit in gate.units()]


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return gate.nvcc()
    except ToolkitError as error:
        pytest.skip(str(error))


def test_entries_are_unique() -> None:
    assert len(set(ENTRIES)) == len(ENTRIES)


@pytest.mark.parametrize("arch", MACHINES)
def test_every_kernel_of_the_baseline_is_still_asked_for(arch: str) -> None:
    lines = verdict.gone(
        arch, Baseline.read(arch), [unit.entry for unit in gate.units() if unit.why_not_on(arch) is None]
    )
    assert not lines, "\n".join([*lines, verdict.REMEDY])


OF_THE_UNCHANGED = 10
"""About so many kernels of one batch that are what the baseline was made of."""


@functools.cache
def _to_compile(compiler: Compiler) -> dict[tuple[str, str], tuple[Unit, ...]]:
    """Of the batches of an architecture: what the baseline was made of something else for, and some of one batch."""
    to_compile: dict[tuple[str, str], tuple[Unit, ...]] = {}
    unchanged: list[tuple[str, str, str, Unit]] = []  # units that share a source have one digest
    for arch in MACHINES:
        known = Baseline.read(arch).digests
        for name, units in BATCHES:
            for unit in units:
                if unit.why_not_on(arch) is None:
                    digest = gate.digest(unit, arch, compiler)
                    if digest == known.get(unit.entry):
                        unchanged.append((digest, arch, name, unit))
                    else:
                        to_compile[arch, name] = (*to_compile.get((arch, name), ()), unit)
    if unchanged:
        _, arch, name, _ = min(unchanged, key=lambda one: one[0])
        of_batch = [unit for _, *where, unit in unchanged if where == [arch, name]]
        sources = {unit.source for unit in of_batch[:OF_THE_UNCHANGED]}
        sampled = tuple(unit for unit in of_batch if unit.source in sources)
        to_compile[arch, name] = (*to_compile.get((arch, name), ()), *sampled)
    return to_compile


@pytest.mark.timeout(300)  # fifty kernels, on cores that may have other work
@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize(("name", "units"), [pytest.param(name, units, id=name) for name, units in BATCHES])
def test_units_compile_without_warnings_or_spills_and_keep_their_tensor_core_instructions(
    name: str,
    units: tuple[Unit, ...],
    arch: str,
    compiler: Compiler,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    if units[0].why_not_on(arch) is not None:
        return
    if not GPU:
        if (arch, name) not in _to_compile(compiler):
            return
        units = _to_compile(compiler)[arch, name]
    baseline = Baseline.read(arch)
    release = gate.release(compiler)
    broken, changes = [], []
    for kernel, after in gate.compiled(units, arch, tmp_path, compiler).items():
        broken += verdict.broken(arch, kernel, baseline, after, release)
        changes += verdict.changes(arch, kernel, baseline.kernels.get(kernel, after), after)
    summary.keep(record_property, changes, release, baseline.compiler)
    assert not broken, "\n".join([*broken, verdict.REMEDY])
