"""Build the emulated driver: python -m emulator.build --out .build/emulator writes lib/libcuda.so.1 there.

Objects are cached by the content of what they are made of, so that a second build takes no time and a change compiles one file.
With `--objects` they are in a folder of their own, which other checkouts may share.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from emulator import toolkit
from emulator.driver import stubs

__all__ = ["build", "main"]

_ROOT = Path(__file__).parent
_FOLDERS = ("runtime", "tensor", "driver")
_STANDARD = (
    "algorithm", "atomic", "chrono", "cmath", "condition_variable", "cstring", "cuda.h", "deque", "functional", "map", "memory",
    "mutex", "set", "string", "thread", "unordered_map", "vector",
)  # fmt: skip
"""Headers of others that most files include: compiled once, which halves the build."""
_FLAGS = (
    "-std=c++20", "-O2", "-g1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-march=x86-64-v3", "-ffp-contract=off",
    "-fvect-cost-model=dynamic", "-fno-semantic-interposition",
)  # fmt: skip
"""Clocks of threads are joined by loops of unknown length, which -O2 alone leaves as they are."""
_KEPT_SECONDS = 7 * 24 * 3600
"""For so long an object of other sources is kept."""


def _sources() -> list[Path]:
    return sorted(path for folder in _FOLDERS for path in (_ROOT / folder).glob("*.cpp"))


def _headers() -> list[Path]:
    return sorted(path for folder in ("abi", *_FOLDERS) for path in (_ROOT / folder).glob("*.h"))


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:24]


def _run(command: Sequence[str]) -> str:
    """Run a compiler; what it printed.

    Raises:
        RuntimeError: it failed; the message holds what it printed.
    """
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
    return run.stdout


def _tools(cuda: Path) -> str:
    """Hash of what is no source of ours: flags, compiler, CUDA's header. Where they lie makes no difference."""
    return _digest(
        " ".join(_FLAGS).encode(), _run(["g++", "--version"]).encode(), (cuda / "include" / "cuda.h").read_bytes()
    )


def _precompiled(objects: Path, flags: Sequence[str], tools: str) -> Path:
    """The header that stands in front of every file; g++ reads the compiled one beside it."""
    text = "".join(f"#include <{name}>\n" for name in _STANDARD)
    header = objects / f"standard-{_digest(text.encode(), tools.encode())}.h"
    compiled = header.with_suffix(".h.gch")
    if not compiled.exists():
        header.write_text(text)
        half_done = compiled.with_suffix(f".{os.getpid()}.tmp")
        _run(["g++", *flags, "-x", "c++-header", str(header), "-o", str(half_done)])
        half_done.replace(compiled)
    return header


def build(out: Path, cuda: Path, jobs: int, objects: Path | None = None) -> Path:
    """Compile what has changed and link it; the path of libcuda.so.1.

    Args:
        out: Folder of the library.
        cuda: Root of the toolkit; its headers are used.
        jobs: Compilers at a time.
        objects: Folder of the objects; one in `out` where it is None.
    """
    library, objects = out / "lib" / "libcuda.so.1", objects or out / "objects"
    for folder in (library.parent, objects):
        folder.mkdir(parents=True, exist_ok=True)
    flags = (*_FLAGS, f"-I{_ROOT}", f"-I{cuda / 'include'}")
    tools = _tools(cuda)
    common = _digest(tools.encode(), *(path.read_bytes() for path in _headers()))

    def compiled(source: Path, *more: str) -> Path:
        target = objects / f"{source.stem}-{_digest(common.encode(), source.read_bytes())}.o"
        if not target.exists():
            half_done = target.with_suffix(f".{os.getpid()}.tmp")
            _run(["g++", *flags, *more, "-c", str(source), "-o", str(half_done)])
            half_done.replace(target)
        return target

    first = ("-include", str(_precompiled(objects, flags, tools)))
    with ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(lambda source: compiled(source, *first), _sources()))
    made.append(
        compiled(stubs.write(objects, cuda, made))
    )  # declares cuda.h's functions in its own way: without that header
    key = library.with_name("key")
    wanted = _digest(*(path.name.encode() for path in made))
    if not (library.exists() and key.exists() and key.read_text() == wanted):
        half_done = library.with_suffix(f".{os.getpid()}.tmp")
        link = ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic-functions", "-Wl,-z,defs", "-lpthread", "-ldl"]
        _run(["g++", "-shared", *map(str, made), *link, "-o", str(half_done)])
        half_done.replace(library)
        key.write_text(wanted)
        for old in set(objects.glob("*.o")) - set(made):
            if old.stat().st_mtime < time.time() - _KEPT_SECONDS:
                old.unlink(missing_ok=True)
    _write_jit(library.with_name("jit"), out / "jit")
    for_linkers = library.with_name("libcuda.so")
    if not for_linkers.is_symlink():
        for_linkers.symlink_to(library.name)
    return library


def _write_jit(script: Path, cache: Path) -> None:
    """What the library runs where a module comes as PTX (driver/ptx.cpp); -P: nothing of the folder that a program runs in."""
    command = shlex.join([sys.executable, "-P", "-m", "emulator.jit", "--cache", str(cache)])
    text = f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(_ROOT.resolve().parent))} exec {command} "$@"\n'
    if not (script.is_file() and script.read_text() == text):
        half_done = script.with_suffix(f".{os.getpid()}.tmp")
        half_done.write_text(text)
        half_done.chmod(0o755)
        half_done.replace(script)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and build; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m emulator.build", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".build/emulator"), help="folder (default: %(default)s)")
    parser.add_argument("--objects", type=Path, help="folder of the objects (default: objects/ in that)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        objects = options.objects.resolve() if options.objects else None
        library = build(options.out.resolve(), toolkit.cuda_root(), options.jobs, objects)
    except (RuntimeError, FileNotFoundError, toolkit.ToolkitError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{library.name}: {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
