"""Compile every kernel and compare it with the baseline, or write the baseline: python -m tests.cuda.gates [--update]."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dnncore.cuda.build import MACHINES
from dnncore.cuda.runtime.jit import Compiler
from dnncore.cuda.unit import Unit
from dnncore.errors import DnncoreError
from emulator.toolkit import ToolkitError

from . import units, verdict
from .baseline import FOLDER, Baseline
from .figures import Figures
from .verdict import Change


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    """Parse the command line, compile and compare; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.gates", description=__doc__)
    parser.add_argument("--arch", action="append", choices=MACHINES, help="may be repeated (default: all)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: %(default)s)"
    )
    parser.add_argument("--changed", action="store_true", help="compile only what is not as the baseline was made of")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--update", action="store_true", help="write the baseline")
    what.add_argument("--kernel", help="print the numbers of this kernel only, beside those of the baseline")
    options = parser.parse_args(arguments)
    architectures = tuple(options.arch or MACHINES)
    try:
        compiler = units.nvcc()
        if options.kernel:
            return _one(options.kernel, architectures, compiler, folder)
        # Of what is compiled, though somebody edit it meanwhile.
        digests = {
            arch: {
                unit.entry: units.digest(unit, arch, compiler) for unit in units.units() if not unit.why_not_on(arch)
            }
            for arch in architectures
        }
        known = _unchanged(digests, units.release(compiler), folder) if options.changed else {}
        found = _all(architectures, max(options.jobs, 1), compiler, known)
    except (DnncoreError, ToolkitError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    broken = _report(found, units.release(compiler), folder)
    if options.update:
        for arch, kernels in found.items():
            Baseline(units.release(compiler), kernels, digests[arch]).write(arch, folder)
            print(f"wrote {folder / arch}.json: {len(kernels)} kernels")
    elif broken:
        print(verdict.REMEDY)
    return 1 if broken and not options.update else 0


def _unchanged(digests: Mapping[str, Mapping[str, str]], release: str, folder: Path) -> dict[str, dict[str, Figures]]:
    """For each architecture the kernels that are as they were for the baseline, with its figures."""
    found: dict[str, dict[str, Figures]] = {}
    for arch, of_kernels in digests.items():
        baseline = Baseline.read(arch, folder)
        found[arch] = {
            entry: baseline.kernels[entry]
            for entry, digest in of_kernels.items()
            if baseline.compiler == release and digest == baseline.digests.get(entry)
        }
    return found


def _all(
    architectures: Sequence[str], jobs: int, compiler: Compiler, known: Mapping[str, Mapping[str, Figures]]
) -> dict[str, dict[str, Figures]]:
    """Figures of every kernel: of those that are known, and of the others as they are compiled."""
    found: dict[str, dict[str, Figures]] = {arch: dict(known.get(arch, {})) for arch in architectures}
    work = [
        (arch, name, members)
        for arch in architectures
        for name, members in units.batches(
            [unit for unit in units.units() if not unit.why_not_on(arch) and unit.entry not in found[arch]]
        )
    ]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:

        def compile_batch(item: tuple[str, str, tuple[Unit, ...]]) -> dict[str, Figures]:
            return units.compiled(item[2], item[0], Path(scratch), compiler)

        for done, ((arch, name, _), kernels) in enumerate(zip(work, pool.map(compile_batch, work), strict=True), 1):
            if twice := found[arch].keys() & kernels.keys():
                raise ValueError(f"two units have the entry {sorted(twice)}")
            found[arch] |= kernels
            if sys.stderr.isatty():
                print(f"\r[{done}/{len(work)}] {arch} {name}\033[K", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return found


def _report(found: Mapping[str, Mapping[str, Figures]], release: str, folder: Path) -> bool:
    """Print what differs from the baseline; whether that breaks a gate."""
    changes: list[Change] = []
    broken: list[str] = []
    for arch, kernels in found.items():
        baseline = Baseline.read(arch, folder)
        if baseline.compiler != release:
            print(f"{arch}: the baseline is of nvcc {baseline.compiler or '(none)'}, this is nvcc {release}")
        broken += verdict.gone(arch, baseline, kernels)
        for kernel, after in kernels.items():
            broken += verdict.broken(arch, kernel, baseline, after, release)
            changes += verdict.changes(arch, kernel, baseline.kernels.get(kernel, after), after)
    print("\n".join(verdict.table(changes)) or f"{sum(map(len, found.values()))} kernels: no figure changed")
    for line in broken:
        print(f"! {line}")
    return bool(broken)


def _one(kernel: str, architectures: Sequence[str], compiler: Compiler, folder: Path) -> int:
    by_entry = {unit.entry: unit for unit in units.units()}
    if kernel not in by_entry:
        near = ", ".join(difflib.get_close_matches(kernel, by_entry, cutoff=0.3))
        print(f"error: no unit has the entry {kernel!r}; the nearest are {near or 'none'}", file=sys.stderr)
        return 1
    together = [unit for unit in by_entry.values() if unit.source == by_entry[kernel].source]
    for arch in architectures:
        if reason := by_entry[kernel].why_not_on(arch):
            print(reason)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            after = units.compiled(together, arch, Path(scratch), compiler)[kernel]
        before = Baseline.read(arch, folder).kernels.get(kernel, {})
        rows = [
            (name, str(after.get(name, 0)), str(before.get(name, 0)) if before else "-") for name in {**after, **before}
        ]
        print(f"{kernel} for {arch}, nvcc {units.release(compiler)}; now and in the baseline")
        print("\n".join(f"  {name:<14}{now:>8}{was:>8}" for name, now, was in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
