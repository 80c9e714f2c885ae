"""Compile every kernel for the emulator ahead of the tests: python -m tests.cuda.prepare [--jobs N].

A kernel's first launch compiles it, and nvcc takes longer to begin than most kernels take. Here it makes the PTX of many at a time,
which is cut into that of each source, translated, and left in the cache where `dnncore.cuda.runtime.jit` looks. What is there is
not made again.

nvcc spends more on optimising most kernels than all that the tests run of them costs, and what it unrolls is more to translate
and to compile after it. Those it compiles in a hurry, to PTX that computes the same and orders the same by more instructions. It
takes its time for products and Fourier transforms, which the tests run most of, unless they are of float64: nearly all of those are
launched once. And it does for wgmma, whose accumulators lie in registers from the product to the wait only where it does.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dnncore.cache import cache_folder, write_atomically
from dnncore.cuda.runtime import driver, jit
from dnncore.cuda.runtime.jit import Compiler
from dnncore.cuda.unit import Unit
from emulator.nvcc import build_module, precompile, ptx_of
from emulator.ptx.parts import Parts
from tests.cuda.gates import units as gate

_IN_A_HURRY = ("--Ofast-compile=mid",)
_OPTIMISED = re.compile(r"dnncore/(bottleneck|gemm/|convolution/(fft_|tf32_|wgmma))")
"""Sources, by what they include, that nvcc takes its time for..."""
_OF_FLOAT64 = re.compile(r"\bdouble\b")
"""... and what none of them names."""


@dataclass(frozen=True, slots=True)
class _Module:
    """PTX of one source, and where what is made of it belongs. Immutable."""

    text: str
    path: Path


def _missing(arch: str, compiler: Compiler, folder: Path) -> dict[str, Path]:
    """Where the modules belong that are not in the cache yet, by their sources."""
    first = {unit.source: unit for unit in gate.units() if unit.why_not_on(arch) is None}
    paths = {source: folder / f"{compiler.key(unit, arch)}.cubin" for source, unit in first.items()}
    return {source: path for source, path in paths.items() if not path.is_file()}


def _is_optimised(unit: Unit) -> bool:
    return bool(_OPTIMISED.search(unit.source)) and not _OF_FLOAT64.search(unit.source)


def batches(units: Sequence[Unit]) -> list[tuple[tuple[Unit, ...], tuple[str, ...]]]:
    """Units many at a time, each time with the flags that nvcc is to have for them."""
    optimised = [unit for unit in units if _is_optimised(unit)]
    others = [unit for unit in units if not _is_optimised(unit)]
    return [(batch, ()) for _, batch in gate.batches(optimised)] + [
        (batch, _IN_A_HURRY) for _, batch in gate.batches(others)
    ]


def _modules(work: tuple[Sequence[Unit], tuple[str, ...], dict[str, Path], str, Compiler]) -> list[_Module]:
    """PTX of a batch of units, cut into that of each source."""
    members, flags, paths, arch, compiler = work
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "unit.cu")
        source.write_text(gate.together(members).source)
        text = ptx_of(source, ("-arch", arch, *compiler.flags, *flags, f"-I{compiler.include}"))
    parts = Parts(text)
    entries: dict[str, list[str]] = {}
    for unit in members:
        entries.setdefault(unit.source, []).append(unit.entry)
    return [_Module(parts.module(names), paths[source]) for source, names in entries.items()]


def _build(headers: Path, module: _Module) -> None:
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "module.cubin")
        for warning in build_module(module.text, built, "unit.cu", headers=headers):
            print(f"warning: {warning}", file=sys.stderr)
        write_atomically(module.path, built.read_bytes())


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and compile; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.prepare", description=__doc__)
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if "DNN_EMU_LIB" not in os.environ:
        parser.error("DNN_EMU_LIB does not say where the emulated driver is")
    ctypes.CDLL(os.environ["DNN_EMU_LIB"])
    compiler = jit.find_compiler()
    if compiler is None or "nvcc-emu" not in compiler.version:
        parser.error("nvcc on PATH is not the emulator's")
    arch = jit.architecture(driver.compute_capability(0))
    folder = cache_folder() / "cubins"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    missing = _missing(arch, compiler, folder)
    work = batches([unit for unit in gate.units() if unit.source in missing])
    processes = multiprocessing.get_context("spawn").Pool(max(options.jobs, 1))
    with processes as pool, tempfile.TemporaryDirectory() as headers:
        precompile(Path(headers))
        build = partial(_build, Path(headers))
        done = 0
        for modules in pool.imap_unordered(_modules, [(*batch, missing, arch, compiler) for batch in work]):
            for _ in pool.imap_unordered(build, modules):
                done += 1
                if sys.stderr.isatty():
                    print(f"\r[{done}/{len(missing)}] modules\033[K", end="", file=sys.stderr, flush=True)
    print(f"{done} modules for {arch} compiled, {len({u.source for u in gate.units()}) - done} were there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
