"""Generated units in, cubins out: finding nvcc, compiling, and two stores of what was compiled.

The *cache* ($DNNCORE_CACHE_DIR, default ~/.cache/dnncore) is written as needed; its keys cover the source, every header that it
includes, the flags, the compiler's version and the architecture. *Prebuilt* cubins ($DNNCORE_CUBIN_DIR, default `cubins/` beside
the kernels) are written by `python -m dnncore.cuda.build`, and where a unit was prebuilt nothing is compiled; their keys leave
flags and compiler out.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dnncore.cuda.unit import Unit
from dnncore.errors import BackendUnavailableError, CompilationError

__all__ = [
    "STRICT_FLAGS",
    "Compiler",
    "architecture",
    "cache_folder",
    "compiler_at",
    "cubin",
    "find_compiler",
    "prebuilt_folder",
    "prebuilt_key",
    "write_atomically",
]

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


def cache_folder() -> Path:
    """Where compiled units are kept."""
    folder = os.environ.get("DNNCORE_CACHE_DIR")
    return Path(folder) if folder else Path.home() / ".cache" / "dnncore"


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
        """Compile a unit in a temporary folder inside `folder` and return the cubin.

        Raises:
            CompilationError: nvcc failed; the message ends with what it printed.
        """
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{unit.entry}-") as scratch:
            source = Path(scratch, "unit.cu")
            source.write_text(unit.source)
            command = [
                str(self.nvcc), "--cubin", "-arch", arch, *self.flags, *extra_flags, f"-I{self.include}", source.name,
            ]  # fmt: skip
            try:
                # No -o: nvcc then writes unit.cubin where it runs.
                run = subprocess.run(
                    command, cwd=scratch, capture_output=True, text=True, errors="replace", check=False
                )
            except OSError as error:
                raise CompilationError(f"{unit.entry} for {arch}: {self.nvcc} could not be run: {error}") from error
            result = source.with_suffix(".cubin")
            is_slow = set(STRICT_FLAGS) <= set(extra_flags) and _SERIALIZED.search(run.stdout + run.stderr)
            if run.returncode != 0 or is_slow or not result.is_file():
                raise CompilationError(
                    f"{unit.entry} for {arch}: nvcc ended with {run.returncode}\n{' '.join(command)}\n{run.stdout}{run.stderr}"
                )
            return result.read_bytes()


def find_compiler() -> Compiler | None:
    """Find nvcc on PATH, else in $CUDA_HOME/bin or $CUDA_PATH/bin; None when there is none."""
    roots = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    places = [None, *(Path(root, "bin") for root in roots if root)]
    found = next((nvcc for place in places if (nvcc := shutil.which("nvcc", path=place))), None)
    return compiler_at(found) if found else None


def compiler_at(nvcc: str) -> Compiler:
    """The compiler at a path; it is asked for its version once a process."""
    return Compiler(Path(nvcc), _version(nvcc, Path(nvcc).stat().st_mtime_ns))


@functools.cache
def _version(nvcc: str, modified_ns: int) -> str:  # noqa: ARG001 -- a compiler that was replaced is asked again
    run = subprocess.run([nvcc, "--version"], capture_output=True, text=True, errors="replace", check=False)
    if run.returncode != 0:
        raise CompilationError(f"{nvcc} --version ended with {run.returncode}\n{run.stdout}{run.stderr}")
    return run.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between threads and processes; an open file of its own a holder makes flock tell threads apart too."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
            return (folder / f"{prebuilt_key(unit, arch)}.cubin").read_bytes()
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


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that appears complete or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink()
            raise
