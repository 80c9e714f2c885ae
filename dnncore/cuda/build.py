"""Compile every unit ahead, for machines without a compiler: python -m dnncore.cuda.build --arch sm_90a --out DIR.

For an architecture of machine code, "sm_90a", that gives cubins; for a virtual one, "compute_80", PTX, which the driver of a GPU
compiles that no cubin is for (`jit.target`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dnncore.cache import write_atomically
from dnncore.cuda.algorithms import all_units
from dnncore.cuda.runtime import jit
from dnncore.cuda.runtime.jit import Compiler
from dnncore.cuda.unit import Unit
from dnncore.errors import BackendUnavailableError, CompilationError, DnncoreError

__all__ = ["build", "main"]

MACHINES = ("sm_80", "sm_90a")
ARCHITECTURES = (*MACHINES, jit.FORWARD)
"""What is built when nothing is asked for: the oldest supported one, the one that kernels are tuned for, and PTX for all others."""

_MACHINE_AT, _CUDA_MACHINE = slice(18, 20), b"\xbe\x00"
"""Where an ELF file says which machine it is for, and the number of NVIDIA's GPUs, 190."""

_Entry = dict[str, str | int]
"""file, entry, arch and nbytes of a cubin, or of PTX, packed."""


def build(units: Sequence[Unit], architectures: Sequence[str], folder: Path, jobs: int, compiler: Compiler) -> None:
    """Write a cubin, or PTX, of every unit for each architecture that it has, and an index.json of them; warnings are errors.

    What the folder has by the same compiler and of the same source is kept; what it has for these architectures of other sources
    is removed. A build that is broken off goes on where it was.

    Raises:
        CompilationError: a unit does not compile, warns or spills, or what came of it is neither machine code of a GPU nor PTX; the
            message ends with nvcc's output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = {unit.source: unit for unit in units}.values()
    work = [(unit, arch) for arch in architectures for unit in sources if unit.why_not_on(arch) is None]
    known = _built_before(folder, compiler)
    built = {name: entry for name, entry in known.items() if entry["arch"] not in architectures}

    def build_one(item: tuple[Unit, str]) -> _Entry:
        unit, arch = item
        name = jit.prebuilt_name(unit, arch, compiler.include)
        if name in known and (folder / name).is_file():
            return known[name]
        image = compiler.compile(unit, arch, folder, jit.STRICT_FLAGS)
        if jit.is_ptx(arch):
            _check_ptx(image, unit, arch, compiler)
            image = jit.packed(image)
        else:
            _check_machine(image, unit, compiler)
        write_atomically(folder / name, image)
        built[name] = {"file": name, "entry": unit.entry, "arch": arch, "nbytes": len(image)}
        return built[name]

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for number, entry in enumerate(pool.map(build_one, work), start=1):
                built[str(entry["file"])] = entry
                kept = ", kept" if entry["file"] in known else ""
                print(f"[{number}/{len(work)}] {entry['arch']} {entry['entry']}: {entry['nbytes']} B{kept}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # which waits for those at work: they are in the index, too
            _write_index(folder, compiler, known | built)
            raise
    _write_index(folder, compiler, built)
    for name in known.keys() - built.keys():
        (folder / name).unlink(missing_ok=True)


def _built_before(folder: Path, compiler: Compiler) -> dict[str, _Entry]:
    """Entries of the folder's index by their files; none where another compiler built them, or nobody has."""
    try:
        index = json.loads((folder / jit.INDEX).read_bytes())
        if (index["compiler"], index["flags"]) == (compiler.version, list(compiler.flags)):
            return {entry["file"]: entry for entry in index["images"]}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass  # there is none, or it is no index of ours
    return {}


def _write_index(folder: Path, compiler: Compiler, entries: dict[str, _Entry]) -> None:
    index = {"compiler": compiler.version, "flags": compiler.flags, "images": list(entries.values())}
    write_atomically(folder / jit.INDEX, json.dumps(index, indent=1).encode())


def _check_machine(image: bytes, unit: Unit, compiler: Compiler) -> None:
    if image[:4] != b"\x7fELF" or image[_MACHINE_AT] != _CUDA_MACHINE:
        raise CompilationError(
            f"{unit.entry}: what {compiler.nvcc} wrote is no machine code of a GPU; is the emulator's nvcc the first one on PATH?"
        )


def _check_ptx(text: bytes, unit: Unit, arch: str, compiler: Compiler) -> None:
    if (
        f".target sm_{arch.removeprefix('compute_')}\n".encode() not in text
        or f".entry {unit.entry}(".encode() not in text
    ):
        raise CompilationError(f"{unit.entry}: what {compiler.nvcc} wrote is no PTX of it for {arch}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and build; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dnncore.cuda.build", description=__doc__)
    parser.add_argument(
        "--arch",
        action="append",
        help=f"sm_80, sm_90a, ... for cubins, {jit.FORWARD} for PTX; may be repeated (default: {' '.join(ARCHITECTURES)})",
    )
    parser.add_argument(
        "--out", type=Path, default=jit.prebuilt_folder(), help="folder for what is built (default: %(default)s)"
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
