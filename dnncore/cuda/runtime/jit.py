"""Generated units in, cubins or PTX out: finding nvcc, compiling, and two stores of what was compiled.

The *cache* ($DNNCORE_CACHE_DIR, default ~/.cache/dnncore) is written as needed; its keys cover the source, every header that it
includes, the flags, the compiler's version and the architecture. *Prebuilt* cubins ($DNNCORE_CUBIN_DIR, default `cubins/` beside
the kernels) are written by `python -m dnncore.cuda.build`, and where a unit was prebuilt nothing is compiled; their keys leave
flags and compiler out.

Beside the cubins lies PTX for `FORWARD`, which the driver of any GPU since then compiles. What a device runs is decided once,
for all of its kernels (`target`): PTX has no kernels of one architecture alone and starts none early, so that what is planned
must know of it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dnncore.cache import cache_folder, write_atomically
from dnncore.cuda.unit import Unit
from dnncore.errors import BackendUnavailableError, CompilationError

__all__ = [
    "FORWARD",
    "INDEX",
    "OLDEST",
    "STRICT_FLAGS",
    "Compiler",
    "architecture",
    "compiler_at",
    "cubin",
    "find_compiler",
    "is_ptx",
    "packed",
    "prebuilt_folder",
    "prebuilt_key",
    "prebuilt_name",
    "ptx",
    "target",
]

OLDEST = (8, 0)
"""Compute capability of the oldest devices that kernels are made for: mma of 16 bits and cp.async begin there."""

FORWARD = "compute_80"
"""The architecture whose PTX is built: that of `OLDEST`, since a driver compiles PTX for its own and every later one (CUDA C++
Programming Guide, "Application Compatibility")."""

INDEX = "index.json"
"""In the folder of what was prebuilt, says what that is."""

_CUDA = Path(__file__).parent.parent
_INCLUDE = _CUDA / "include"
_INCLUDE_LINE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_FLAGS = ("-std=c++20", "-O3")
STRICT_FLAGS = ("-Werror", "all-warnings", "-Xptxas", "-warn-spills")
"""Warnings, register spills and `_SERIALIZED` are errors: for our own builds and tests. Not for users, whose compiler may know new
warnings."""

_SERIALIZED = re.compile(r"wgmma\.mma_async instructions are serialized|warpgroup\.\w+ is injected")
"""What ptxas only notes, and what costs the products of sm_90a half their rate."""


def architecture(compute_capability: tuple[int, int]) -> str:
    """What nvcc calls a device: "sm_80". 9.0 gets its "a", without which wgmma and TMA are refused."""
    major, minor = compute_capability
    return f"sm_{major}{minor}a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def is_ptx(arch: str) -> bool:
    """Whether what is compiled for an architecture is PTX, "compute_80", and no machine code, "sm_80"."""
    return arch.startswith("compute_")


def prebuilt_folder() -> Path:
    """Where `dnncore.cuda.build` leaves cubins for machines without a compiler."""
    folder = os.environ.get("DNNCORE_CUBIN_DIR")
    return Path(folder) if folder else _CUDA / "cubins"


def _headers(source: str, include: Path) -> dict[str, bytes]:
    """Contents of every header of ours that the source includes, directly or through others, by name."""
    found: dict[str, bytes] = {}
    waiting = _INCLUDE_LINE.findall(source)
    while waiting:
        name = waiting.pop()
        if name not in found:
            try:
                found[name] = (include / name).read_bytes()
            except FileNotFoundError as error:
                raise CompilationError(f'#include "{name}": there is no such header in {include}') from error
            waiting += _INCLUDE_LINE.findall(found[name].decode())
    return found


def _digest(parts: Iterable[bytes]) -> str:
    """Hash of the parts; their lengths keep two lists apart that read the same end to end."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def prebuilt_key(unit: Unit, arch: str, include: Path = _INCLUDE) -> str:
    """Name of a unit's prebuilt cubin: what it is made of, not what made it."""
    headers = _headers(unit.source, include)
    return _digest(
        [arch.encode(), unit.source.encode(), *(p for n in sorted(headers) for p in (n.encode(), headers[n]))]
    )


def prebuilt_name(unit: Unit, arch: str, include: Path = _INCLUDE) -> str:
    """File of a unit's prebuilt cubin or PTX."""
    return prebuilt_key(unit, arch, include) + (".ptx.xz" if is_ptx(arch) else ".cubin")


def packed(text: bytes) -> bytes:
    """PTX as it is stored: xz makes an eighth of it, and deflate, which a wheel has anyway, a fifth."""
    import lzma  # not every Python is built with it, and nothing else needs it

    return lzma.compress(text)


def _unpacked(data: bytes) -> bytes:
    import lzma

    try:
        return lzma.decompress(data)
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Compiler:
    """nvcc, with the flags for every unit. Immutable.

    Args:
        nvcc: The executable.
        version: What it says it is; part of every key.
        flags: Options beside the architecture and the include folder.
        include: Folder of the headers.
    """

    nvcc: Path
    version: str
    flags: tuple[str, ...] = _FLAGS
    include: Path = _INCLUDE

    def key(self, unit: Unit, arch: str) -> str:
        """Name of a unit's cubin in the cache."""
        parts = (prebuilt_key(unit, arch, self.include), self.version, *self.flags)
        return _digest(part.encode() for part in parts)

    def compile(self, unit: Unit, arch: str, folder: Path, extra_flags: Sequence[str] = ()) -> bytes:
        """Compile a unit in a temporary folder inside `folder` and return the cubin, or the PTX.

        Raises:
            CompilationError: nvcc failed; the message ends with what it printed.
        """
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{unit.entry}-") as scratch:
            source = Path(scratch, "unit.cu")
            source.write_text(unit.source)
            kind = "ptx" if is_ptx(arch) else "cubin"
            command = [
                str(self.nvcc), f"--{kind}", "-arch", arch, *self.flags, *extra_flags, f"-I{self.include}", source.name,
            ]  # fmt: skip
            try:
                # No -o: nvcc then writes unit.cubin or unit.ptx where it runs.
                run = subprocess.run(
                    command, cwd=scratch, capture_output=True, text=True, errors="replace", check=False
                )
            except OSError as error:
                raise CompilationError(f"{unit.entry} for {arch}: {self.nvcc} could not be run: {error}") from error
            result = source.with_suffix(f".{kind}")
            is_slow = set(STRICT_FLAGS) <= set(extra_flags) and _SERIALIZED.search(run.stdout + run.stderr)
            if run.returncode != 0 or is_slow or not result.is_file():
                raise CompilationError(
                    f"{unit.entry} for {arch}: nvcc ended with {run.returncode}\n{' '.join(command)}\n{run.stdout}{run.stderr}"
                )
            return result.read_bytes()

    def knows(self, arch: str) -> bool:
        """Whether it makes machine code for an architecture; one that is older than the GPU does not."""
        return arch.rstrip("af") in _architectures(self)


def find_compiler() -> Compiler | None:
    """Find nvcc on PATH, else in $CUDA_HOME/bin or $CUDA_PATH/bin; None when there is none."""
    roots = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    places = [None, *(Path(root, "bin") for root in roots if root)]
    found = next((nvcc for place in places if (nvcc := shutil.which("nvcc", path=place))), None)
    return compiler_at(found) if found else None


def compiler_at(nvcc: str) -> Compiler:
    """The compiler at a path; it is asked for its version once per process."""
    return Compiler(Path(nvcc), _version(nvcc, Path(nvcc).stat().st_mtime_ns))


@functools.cache
def _version(nvcc: str, modified_ns: int) -> str:  # noqa: ARG001 -- a compiler that was replaced is asked again
    run = subprocess.run([nvcc, "--version"], capture_output=True, text=True, errors="replace", check=False)
    if run.returncode != 0:
        raise CompilationError(f"{nvcc} --version ended with {run.returncode}\n{run.stdout}{run.stderr}")
    return run.stdout


@functools.cache
def _architectures(compiler: Compiler) -> frozenset[str]:
    command = [str(compiler.nvcc), "--list-gpu-code"]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if run.returncode != 0:
        raise CompilationError(f"{' '.join(command)} ended with {run.returncode}\n{run.stdout}{run.stderr}")
    return frozenset(run.stdout.split())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between threads and processes; an open file of its own a holder makes flock tell threads apart too."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def target(compute_capability: tuple[int, int]) -> str:
    """What the kernels of a device are compiled for: its architecture, or `FORWARD`, of whose PTX its driver makes machine code.

    It is PTX where that was prebuilt, cubins for the device were not, and no compiler that knows the device could make them. Where
    there is nothing at all it is the device's architecture, and the first kernel's error says what to do.
    """
    arch = architecture(compute_capability)
    built = _prebuilt_architectures(prebuilt_folder())
    if arch in built or FORWARD not in built:
        return arch
    compiler = find_compiler()
    return arch if compiler is not None and compiler.knows(arch) else FORWARD


def _prebuilt_architectures(folder: Path) -> set[str]:
    try:
        return {entry["arch"] for entry in json.loads((folder / INDEX).read_bytes())["images"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # nothing was built here, or something else than our own


def ptx(unit: Unit) -> bytes:
    """Return the prebuilt PTX of a unit, for `FORWARD`. Thread-safe.

    Raises:
        BackendUnavailableError: there is none; the message says how to build it.
    """
    folder = prebuilt_folder()
    try:
        return _unpacked((folder / prebuilt_name(unit, FORWARD)).read_bytes())
    except FileNotFoundError as error:
        raise BackendUnavailableError(
            f"no PTX of {unit.entry} for {FORWARD} in {folder}, which was built from other sources; run `python -m "
            f"dnncore.cuda.build --arch {FORWARD} --out DIR` with the same version of dnncore on a machine that has the CUDA "
            "toolkit and set DNNCORE_CUBIN_DIR to DIR, or install a toolkit that knows this GPU"
        ) from error
    except (OSError, ValueError, ImportError) as error:
        raise BackendUnavailableError(
            f"the PTX of {unit.entry} in {folder} cannot be read ({error}); build it again: `python -m dnncore.cuda.build`"
        ) from error


def cubin(unit: Unit, arch: str) -> bytes:
    """Return the machine code of a unit: prebuilt, else from the cache, else compiled. Thread-safe.

    Where a unit was prebuilt, nothing looks for a compiler.

    Raises:
        CompilationError: it does not compile, or the cache cannot be used.
        BackendUnavailableError: there is neither a prebuilt cubin nor a compiler; the message says how to build one.
    """
    folder = prebuilt_folder()
    if folder.is_dir():
        try:
            return (folder / prebuilt_name(unit, arch)).read_bytes()
        except FileNotFoundError:
            pass  # it may have been built for other architectures, or another version
    compiler = find_compiler()
    if compiler is None:
        raise BackendUnavailableError(
            f"no nvcc on PATH, in $CUDA_HOME or in $CUDA_PATH, and no cubin of {unit.entry} for {arch} in {folder}; install the "
            f"CUDA toolkit, or run `python -m dnncore.cuda.build --arch {arch} --out DIR` with the same version of dnncore on a "
            "machine that has it and set DNNCORE_CUBIN_DIR to DIR"
        )
    return _cached(compiler, unit, arch)


def _cached(compiler: Compiler, unit: Unit, arch: str) -> bytes:
    folder = cache_folder() / "cubins"
    name = compiler.key(unit, arch)
    path = folder / f"{name}.cubin"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.is_file():
            with _locked(folder / f"{name}.lock"):
                if not path.is_file():  # whoever held the lock before may have compiled it
                    write_atomically(path, compiler.compile(unit, arch, folder))
        return path.read_bytes()
    except OSError as error:
        raise CompilationError(
            f"the cache {folder} cannot be used ({error}); set DNNCORE_CACHE_DIR to a folder of your own with room"
        ) from error
