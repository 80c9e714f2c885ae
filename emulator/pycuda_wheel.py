"""Build PyCUDA against the emulated driver: python -m emulator.pycuda_wheel --lib .build/emulator/lib --out .build/pycuda.

Prints the path of the wheel. PyCUDA comes as source only, and its setup.py compiles 38 files of C++ one after the other, 28 of them
with the same headers, and three others with theirs. Here each of these are one file, and files are compiled side by side. Nothing
outside `--out` is written. The interpreter needs NumPy and setuptools, from 70.1 on.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from emulator import toolkit

__all__ = ["build", "main"]

VERSION = "2026.1"
_CXXFLAGS = ("-O1", "-g0", "-w")  # -O0 saves half a second
_SETUP = Path(__file__).with_name("parallel_setup.py")
_CONFIGURATION = ".aksetup-defaults.py"
"""Where PyCUDA's setup.py looks, in the home folder. Without it setup.py waits for ten seconds each time it runs."""


def build(library: Path, cuda: Path, out: Path, jobs: int) -> Path:
    """Build the wheel, unless it is there; its path.

    Args:
        library: Folder of libcuda.so.1. Only its names matter: one wheel does for every driver.
        cuda: Root of the toolkit; its headers are used.
        out: Folder for the wheel.
        jobs: Compilers at a time.

    Raises:
        RuntimeError: a step failed; the message holds what it printed.
        FileNotFoundError: the library or a header is missing.
    """
    driver, header = library.resolve() / "libcuda.so.1", cuda / "include" / "cuda.h"
    if not driver.is_file():
        raise FileNotFoundError(f"there is no {driver}: build it with `python -m emulator.build`")
    for package, needed in (("runtime", header), ("profiler-api", header.with_name("cudaProfiler.h"))):
        if not needed.is_file():
            raise FileNotFoundError(f"there is no {needed}: it comes with nvidia-cuda-{package} from PyPI")
    folder = out / _key(header)
    if not (found := list(folder.glob("*.whl"))):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix="building-") as scratch:
            made = _built(driver, cuda.resolve(), Path(scratch), jobs)
            folder.mkdir(exist_ok=True)
            found = [made.replace(folder / made.name)]
    return found[0]


def _key(header: Path) -> str:
    """Name of all that a wheel depends on."""
    version = re.search(r"^#define CUDA_VERSION (\d+)", header.read_text(), re.MULTILINE)
    if version is None:
        raise RuntimeError(f"{header} does not say its version")
    recipe = hashlib.sha256(Path(__file__).read_bytes() + _SETUP.read_bytes()).hexdigest()[:8]
    python, arrays = sysconfig.get_config_var("SOABI"), np.__version__.partition(".")[0]
    return f"pycuda-{VERSION}-cuda-{version[1]}-{python}-numpy-{arrays}-{recipe}"


def _built(driver: Path, cuda: Path, scratch: Path, jobs: int) -> Path:
    home, temporary, link, wheels = (scratch / name for name in ("home", "temporary", "link", "wheels"))
    for folder in (home, temporary, link, wheels):
        folder.mkdir()
    (link / "libcuda.so").symlink_to(driver)  # the name that -lcuda looks for
    settings = {
        "CUDA_ROOT": str(cuda),
        "CUDA_ENABLE_CURAND": False,
        "CUDADRV_LIB_DIR": [str(link)],
        "CXXFLAGS": list(_CXXFLAGS),
        "LDFLAGS": ["-s"],
    }
    (home / _CONFIGURATION).write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    # pip still finds what its user has set up in the real home, and writes to this one.
    configured = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    caches = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "TMPDIR": str(temporary)}
    environ = os.environ | caches | {"XDG_CONFIG_HOME": configured, "SETUP_JOBS": str(jobs)}

    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    source = ["--no-build-isolation", "--no-binary", "pycuda", "--dest", str(scratch), f"pycuda=={VERSION}"]
    _run([*pip, *source], scratch, environ)
    with tarfile.open(scratch / f"pycuda-{VERSION}.tar.gz") as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4
        archive.extractall(scratch, **safely)  # type: ignore[arg-type]
    tree = scratch / f"pycuda-{VERSION}"
    _unite(tree / "bpl-subset" / "bpl_subset" / "libs" / "python" / "src")
    _gather(tree / "src" / "wrapper" / "wrap_cudadrv.cpp", ("mempool.cpp", "../cpp/cuda.cpp"))
    _run([sys.executable, str(_SETUP), "--quiet", "bdist_wheel", "--dist-dir", str(wheels)], tree, environ)
    (wheel,) = wheels.glob("*.whl")
    _check(wheel, driver, scratch / "installed", environ)
    return wheel


def _unite(sources: Path) -> None:
    """Turn the files of Boost.Python into one, in which their headers are read and their templates expanded once."""
    parts = sources.parents[2] / "python_parts"  # where setup.py does not look for sources
    shutil.move(sources, parts)
    sources.mkdir()
    names = sorted(path.relative_to(parts.parent) for path in parts.rglob("*.cpp"))
    (sources / "together.cpp").write_text("".join(f'#include "{name}"\n' for name in names))


def _gather(file: Path, others: Sequence[str]) -> None:
    """Have one file include others, so that their headers are read once; setup.py finds those empty."""
    for number, other in enumerate(others):
        source = file.parent / other
        included = file.with_name(f"included_{number}.hpp")
        source.rename(included)
        source.touch()
        with file.open("a") as text:
            text.write(f'\n#include "{included.name}"\n')


def _check(wheel: Path, driver: Path, folder: Path, environ: Mapping[str, str]) -> None:
    """See that every name that the wheel's library needs is there, in the driver too."""
    shutil.unpack_archive(wheel, folder, "zip")
    (extension,) = (folder / "pycuda").glob("_driver*.so")
    load = "import ctypes, os, sys; [ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_GLOBAL) for path in sys.argv[1:]]"
    _run([sys.executable, "-c", load, str(driver), str(extension)], folder, environ)


def _run(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
    run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{run.stdout[-8000:]}{run.stderr[-8000:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and build; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m emulator.pycuda_wheel", description=__doc__)
    parser.add_argument("--lib", type=Path, required=True, help="folder of libcuda.so.1")
    parser.add_argument("--cuda", type=Path, help="root of the CUDA toolkit (default: where it is found)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the wheel")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        wheel = build(options.lib, options.cuda or toolkit.cuda_root(), options.out.resolve(), max(options.jobs, 1))
    except (RuntimeError, FileNotFoundError, toolkit.ToolkitError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{wheel.name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
