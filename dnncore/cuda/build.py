"""Compile every unit ahead, for machines without a compiler: python -m dnncore.cuda.build --arch sm_90a --out DIR."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dnncore.cuda.algorithms import all_units
from dnncore.cuda.runtime import jit
from dnncore.cuda.runtime.jit import Compiler
from dnncore.cuda.unit import Unit
from dnncore.errors import BackendUnavailableError, DnncoreError

__all__ = ["build", "main"]

ARCHITECTURES = ("sm_80", "sm_90a")
"""What is built when nothing is asked for: the oldest supported one and the one that kernels are tuned for."""


def build(units: Sequence[Unit], architectures: Sequence[str], folder: Path, jobs: int, compiler: Compiler) -> None:
    """Write a cubin of every unit for each architecture that it has, and an index.json of them; warnings are errors.

    Raises:
        CompilationError: a unit does not compile, warns or spills; the message ends with nvcc's output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = {unit.source: unit for unit in units}.values()
    work = [(unit, arch) for arch in architectures for unit in sources if unit.why_not_on(arch) is None]

    def compile_one(item: tuple[Unit, str]) -> dict[str, str | int]:
        unit, arch = item
        image = compiler.compile(unit, arch, folder, jit.STRICT_FLAGS)
        name = f"{jit.prebuilt_key(unit, arch, compiler.include)}.cubin"
        jit.write_atomically(folder / name, image)
        return {"file": name, "entry": unit.entry, "arch": arch, "nbytes": len(image)}

    entries = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for entry in pool.map(compile_one, work):
                entries.append(entry)
                print(f"[{len(entries)}/{len(work)}] {entry['arch']} {entry['entry']}: {entry['nbytes']} B", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    index = {"compiler": compiler.version, "flags": compiler.flags, "cubins": entries}
    jit.write_atomically(folder / "index.json", json.dumps(index, indent=1).encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and build; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dnncore.cuda.build", description=__doc__)
    parser.add_argument(
        "--arch", action="append", help=f"sm_80, sm_90a, ...; may be repeated (default: {ARCHITECTURES})"
    )
    parser.add_argument(
        "--out", type=Path, default=jit.prebuilt_folder(), help="folder for the cubins (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        compiler = jit.find_compiler()
        if compiler is None:
            raise BackendUnavailableError("no nvcc on PATH, in $CUDA_HOME or in $CUDA_PATH; install the CUDA toolkit")
        build(all_units(), tuple(options.arch or ARCHITECTURES), options.out, max(options.jobs, 1), compiler)
    except DnncoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
