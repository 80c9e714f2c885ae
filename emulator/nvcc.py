"""Stands in for nvcc where kernels run on the emulator: CUDA C++ or PTX in, a host shared object named .cubin out.

The real nvcc makes PTX, `emulator.ptx` turns it into C++, g++ into the object, which the emulated driver loads as a module.

    EMU_BUILD    check (default): every access is checked; fast: numbers only
    EMU_KEEP     a folder that keeps the PTX and the C++ of every module, named after its first kernel
    EMU_LIB_DIR  the folder of the emulated libcuda.so.1, for the linker; else that of $DNN_EMU_LIB
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.toolkit import ToolkitError, real_nvcc

__all__ = ["CommandError", "build_module", "main", "precompile", "ptx_of", "translator"]

_HERE = Path(__file__).resolve().parent
_SOURCES = ("nvcc.py", "abi/*.h", "scalar/*.h", "ptx/*.py", "ptx/instructions/*.py")
_PASSED_ON = (
    "--preprocess",
    "-E",
    "--ptx",
    "-ptx",
    "-M",
    "-MM",
    "--generate-dependencies",
    "--help",
    "-h",
    "--list-gpu-code",
)
_TARGETS = ("cubin", "fatbin")
_COMMON_FLAGS = (
    "-std=c++20", "-march=x86-64-v3", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-fno-strict-aliasing", "-fPIC",
    "-fvisibility=hidden", "-w", "-shared", "-fno-exceptions", "-fno-asynchronous-unwind-tables",
)  # fmt: skip
"""No exception passes a kernel, which the driver leaves by another stack: tables to unwind it are a sixteenth of the time."""
_HEADER = "scalar/module.h"
_LIBRARIES = ("-nostdlib", "-lm", "-lgcc")
"""A module needs no start-up files and nothing of the C++ library, without which it is linked in a fifth of the time."""
_UNASSEMBLED = ("-Xptxas", "--version")
"""nvcc has ptxas read PTX that it only writes, which takes a tenth of its time: here that prints its version instead. Kernels are
assembled for the static gates, and what cannot be translated fails by its name."""
_MODE_FLAGS = {
    "check": ("-O0", "-DEMU_CHECK=1"),
    "fast": ("-O1", "-DEMU_CHECK=0"),
}
"""A checked kernel is launched a few times and spends them in the checks, which the driver has: -O1 takes three times as long to
compile, and makes the longest launches a quarter shorter. An unchecked one serves in tests of servers: -O2 takes twice as long as
-O1 to compile, and their few requests no less time."""


class CommandError(Exception):
    """A step failed; the message is what it printed."""


@dataclass(frozen=True, slots=True)
class _Command:
    """What the command line asks for. Immutable.

    Args:
        options: For the real nvcc: everything but the source, the output and the kind of output.
    """

    source: Path
    output: Path
    options: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    """Run as nvcc would be; the result is the exit status."""
    try:
        if "--version" in arguments or "-V" in arguments:
            print(_version())
        elif any(argument in _PASSED_ON for argument in arguments):
            return subprocess.run([real_nvcc(), *arguments], check=False).returncode
        else:
            _compile(_parsed(arguments))
    except (CommandError, ToolkitError) as error:
        print(f"nvcc-emu: {error}", file=sys.stderr)
        return 1
    return 0


def build_module(
    text: str, output: Path, file: str = "", runtime: Path | None = None, headers: Path | None = None
) -> tuple[str, ...]:
    """Translate PTX and compile it to a shared object.

    Args:
        file: Name for messages about instructions without a source line.
        runtime: What to link instead of libcuda.so.1.
        headers: Where `precompile` has put what every module includes; who compiles many saves a tenth of the time.

    Returns:
        What will fail at launch, a line each.

    Raises:
        CommandError: it cannot be read, or g++ failed.
    """
    from emulator.ptx.errors import PtxError  # not needed for --version, which every process asks for
    from emulator.ptx.translate import translate

    mode = _mode()
    try:
        translation = translate(text, file, checked=mode == "check")
    except PtxError as error:
        raise CommandError(f"{file or 'PTX'}: {error}") from error
    _keep(text, translation.source)
    with tempfile.TemporaryDirectory(prefix="nvcc-emu-") as scratch:
        source = Path(scratch, "module.cpp")
        source.write_text(translation.source)
        library = [str(runtime)] if runtime else _library()
        folders = [f"-I{folder}" for folder in (headers, _HERE) if folder]
        _run(["g++", *_flags(mode), *folders, str(source), "-o", str(output), *library, *_LIBRARIES])
    return translation.warnings


def precompile(folder: Path) -> None:
    """Put what every module includes into a folder, read already, for `build_module` in the mode that EMU_BUILD names.

    Raises:
        CommandError: g++ failed.
    """
    header = Path(folder, f"{_HEADER}.gch")
    header.parent.mkdir(parents=True, exist_ok=True)
    _run(["g++", *_flags(_mode()), f"-I{_HERE}", "-x", "c++-header", str(_HERE / _HEADER), "-o", str(header)])


def _flags(mode: str) -> tuple[str, ...]:
    return (*_COMMON_FLAGS, *_MODE_FLAGS[mode])


def _compile(command: _Command) -> None:
    if command.source.suffix == ".ptx":
        try:
            text = command.source.read_text()
        except OSError as error:
            raise CommandError(str(error)) from error
    else:
        text = ptx_of(command.source, command.options)
    for warning in build_module(text, command.output, command.source.name):
        print(f"nvcc-emu: warning: {warning}", file=sys.stderr)


def ptx_of(source: Path, options: Sequence[str]) -> str:
    """Have the real nvcc make PTX of CUDA C++.

    Raises:
        CommandError: it failed.
        ToolkitError: there is none.
    """
    with tempfile.TemporaryDirectory(prefix="nvcc-emu-") as scratch:
        result = Path(scratch, "module.ptx")
        _run([str(real_nvcc()), "-ptx", "-lineinfo", *_UNASSEMBLED, *options, str(source), "-o", str(result)])
        return result.read_text()


def _parsed(arguments: Sequence[str]) -> _Command:
    sources, options, output, target = [], [], None, "cubin"
    rest = iter(arguments)
    for argument in rest:
        name = argument.lstrip("-")
        if name in _TARGETS:
            target = name
        elif argument in ("-o", "--output-file"):
            output = next(rest, None)
        elif argument.endswith((".cu", ".ptx")) and not argument.startswith("-"):
            sources.append(Path(argument))
        else:
            options.append(argument)
    if len(sources) != 1:
        raise CommandError(f"{len(sources)} sources: name one .cu or .ptx file")
    if output is None:
        output = sources[0].with_suffix(f".{target}").name
    return _Command(sources[0], Path(output), tuple(options))


def _run(command: Sequence[str]) -> None:
    try:
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise CommandError(f"{command[0]} could not be run: {error}") from error
    if run.returncode != 0:
        raise CommandError(f"{command[0]} ended with {run.returncode}\n{run.stdout}{run.stderr}")
    sys.stderr.write(run.stderr)


def _mode() -> str:
    mode = os.environ.get("EMU_BUILD", "check")
    if mode not in _MODE_FLAGS:
        raise CommandError(f"EMU_BUILD is {mode!r}: it must be check or fast")
    return mode


def _library() -> list[str]:
    """Linker flags that make libcuda.so.1 a need of the module; without a folder its functions stay unresolved."""
    folder = os.environ.get("EMU_LIB_DIR")
    if folder is None and "DNN_EMU_LIB" in os.environ:
        folder = str(Path(os.environ["DNN_EMU_LIB"]).parent)
    return [f"-L{folder}", "-Wl,--no-as-needed", "-l:libcuda.so.1"] if folder else []


def _keep(text: str, source: str) -> None:
    folder = os.environ.get("EMU_KEEP")
    if folder:
        kernel = re.search(r"\.entry\s+([\w$]+)", text)
        path = Path(folder, kernel[1] if kernel else "module")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".ptx").write_text(text)
        path.with_suffix(".cpp").write_text(source)


def translator() -> str:
    """Our name, a hash of everything that the module of a PTX text depends on, and the mode.

    Raises:
        CommandError: there is no g++.
    """
    digest = hashlib.sha256(_host_compiler().encode())
    for path in sorted(path for pattern in _SOURCES for path in _HERE.glob(pattern)):
        digest.update(path.read_bytes())
    return f"nvcc-emu {digest.hexdigest()[:16]} {_mode()}"


def _host_compiler() -> str:
    """The version of g++ and what it compiles for."""
    try:
        run = subprocess.run(["g++", "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CommandError(f"g++ does not say its version: {error}") from error
    return run.stdout


def _version() -> str:
    """What translates PTX, and what the real nvcc, which makes it, says of itself."""
    run = subprocess.run([real_nvcc(), "--version"], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise CommandError(f"{real_nvcc()} --version ended with {run.returncode}\n{run.stderr}")
    return f"{translator()}\n{run.stdout}"
