"""Where the CUDA toolkit is: the real nvcc and the headers. And whether kernels can be emulated on this machine at all.

python -m emulator.toolkit --find      the toolkit's folder; nothing when there is none
python -m emulator.toolkit --why-not   what keeps the emulator from being built here; nothing when nothing does
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["ToolkitError", "cuda_root", "main", "real_nvcc", "why_not"]

_STAND_IN = Path(__file__).resolve().parent / "bin" / "nvcc"
_DEFAULT = Path("/usr/local/cuda")


class ToolkitError(Exception):
    """There is no CUDA toolkit; the message says what to install."""


def cuda_root() -> Path:
    """The folder that holds bin/nvcc and include/cuda.h.

    It is $CUDA_ROOT, else that of the first real nvcc on PATH, else /usr/local/cuda, else PyPI's packages in site-packages.

    Raises:
        ToolkitError: none of these has a compiler.
    """
    chosen = os.environ.get("CUDA_ROOT")
    if chosen is not None:
        if not _is_toolkit(Path(chosen)):
            raise ToolkitError(f"CUDA_ROOT is {chosen}, where there is no bin/nvcc with nvvm/bin/cicc beside it")
        return Path(chosen)
    for folder in _candidates():
        if _is_toolkit(folder):
            return folder
    raise ToolkitError(
        "no CUDA toolkit: set CUDA_ROOT, put nvcc on PATH, or install it from PyPI: pip install 'dnncore[toolkit]'"
    )


def real_nvcc() -> Path:
    """NVIDIA's compiler.

    Raises:
        ToolkitError: there is none.
    """
    return cuda_root() / "bin" / "nvcc"


def _candidates() -> Iterator[Path]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("nvcc", path=folder) if folder else None
        if found is not None and Path(found).resolve() != _STAND_IN:
            yield Path(found).resolve().parents[1]
    yield _DEFAULT
    yield Path(sysconfig.get_path("purelib"), "nvidia", "cu13")


def _is_toolkit(folder: Path) -> bool:
    """Stand-ins and wrappers of nvcc have no compiler beside them."""
    return (folder / "bin" / "nvcc").is_file() and (folder / "nvvm" / "bin" / "cicc").is_file()


def why_not() -> str:
    """What keeps the emulator from being built here; empty when nothing does. A missing toolkit does not: PyPI has it."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"the emulated driver runs on x86-64 Linux, this is {platform.machine()} {platform.system()}"
    if shutil.which("g++") is None:
        return "the emulated driver is built with g++, and there is none on PATH"
    if not (header := Path(sysconfig.get_path("include"), "Python.h")).is_file():
        return f"PyCUDA is built with Python's headers, and there is no {header}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one of the two questions on standard output."""
    parser = argparse.ArgumentParser(prog="python -m emulator.toolkit")
    question = parser.add_mutually_exclusive_group(required=True)
    question.add_argument("--find", action="store_true", help="print the toolkit's folder, or nothing")
    question.add_argument(
        "--why-not", action="store_true", help="print why kernels cannot be emulated here, or nothing"
    )
    if parser.parse_args(arguments).why_not:
        print(why_not())
        return 0
    try:
        print(cuda_root())
    except ToolkitError:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
