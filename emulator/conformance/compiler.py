"""nvcc: from PTX or CUDA C++ to what cuModuleLoadData takes, kept by the hash of the source and the compiler's version."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ARCHITECTURE = "sm_90a"
SECONDS = 400


class CompileError(Exception):
    """nvcc refused a source."""


def compiler() -> str:
    """The emulator's nvcc beside the emulated driver, else the real one.

    Raises:
        CompileError: There is none.
    """
    if os.environ.get("DNN_EMU_LIB"):
        return str(Path(__file__).parents[1] / "bin" / "nvcc")
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not found:
        raise CompileError("no nvcc on PATH nor in /usr/local/cuda/bin")
    return found


@functools.cache
def _version(tool: str, mode: str) -> str:
    """What a compiler says it is; the emulator's names its own sources, and has modes."""
    try:
        return subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileError(f"{tool} --version for the mode {mode!r}: {error}") from error


def compile_source(text: str, suffix: str, directory: Path) -> bytes:
    """A module's image; `suffix` is `.ptx` or `.cu`.

    Raises:
        CompileError: The compiler failed; the message has its last lines.
    """
    tool = compiler()
    version = _version(tool, os.environ.get("EMU_BUILD", ""))
    name = hashlib.sha256("\0".join((text, suffix, version)).encode()).hexdigest()[:24]
    image = directory / f"{name}.cubin"
    if not image.exists():
        directory.mkdir(parents=True, exist_ok=True)
        source = directory / f"{name}{suffix}"
        source.write_text(text)
        part = directory / f"{name}.{os.getpid()}.part"
        command = [tool, "-cubin", f"-arch={ARCHITECTURE}", "-o", str(part), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"nvcc took more than {SECONDS} s") from error
        if done.returncode or not part.exists():
            raise CompileError((done.stderr + done.stdout).strip()[-1500:] or f"nvcc returned {done.returncode}")
        part.replace(image)
    return image.read_bytes()
