"""Numbers of compiled kernels: what they occupy, by cuobjdump, and which instructions they have, by nvdisasm."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from emulator import toolkit

__all__ = ["LOCAL", "OCCUPIED", "Figures", "figures", "is_tensor", "parse"]

Figures = Mapping[str, int]
"""Registers and bytes of stack a thread, static shared bytes, all instructions, and those of a kind; what is absent is 0."""

OCCUPIED = ("registers", "stack", "shared")
LOCAL = ("stack", "STL", "LDL")
"""What spilled registers and arrays that are no registers show up as: bytes of local memory, stores to it and loads from it."""
_ARITHMETIC = ("DFMA", "FFMA", "FFMA2")
_MEMORY = ("LDG", "STG", "LDS", "STS", "LDL", "STL", "LDSM", "STSM")
_ASYNCHRONOUS = ("LDGSTS", "UBLKCP", "UTMALDG", "UTMASTG", "UTMAREDG", "WARPGROUP")
_COUNTED = frozenset((*_ARITHMETIC, *_MEMORY, *_ASYNCHRONOUS))
"""Kinds that are told apart beside those of the tensor cores; WARPGROUP is what orders wgmma, and grows where it is serialized."""
_RESERVED = 1024
"""Shared memory that the system keeps of each block; from sm_90 on, addresses start behind it, and cuobjdump adds it."""
_USAGE = re.compile(r"^ Function (?P<name>\S+):\s+REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) "
                    r"LOCAL:(?P<local>\d+)", re.MULTILINE)  # fmt: skip


def is_tensor(kind: str) -> bool:
    """Whether a kind of instruction runs on the tensor cores: HMMA, HGMMA, IMMA, QGMMA, DMMA, UTCHMMA, ..."""
    return kind.endswith("MMA")


def figures(cubin: Path) -> dict[str, Figures]:
    """Figures of every kernel in a cubin, by its name."""
    usage = _output("cuobjdump", "--dump-resource-usage", str(cubin))
    # No data flow: it infers where indirect branches go, which nobody counts.
    disassembly = _output("nvdisasm", "--emit-json", "--no-dataflow", str(cubin))
    return parse(usage, disassembly, _RESERVED if b".nv.shared.reserved" in cubin.read_bytes() else 0)


def parse(usage: str, disassembly: str, reserved: int) -> dict[str, Figures]:
    """Figures by kernel, of cuobjdump's text, in which `reserved` bytes of shared memory are not the kernel's, and nvdisasm's JSON.

    Raises:
        ValueError: the two do not speak of the same kernels, or a name is there twice.
    """
    occupied = _occupied(usage, reserved)
    instructions = _instructions(disassembly)
    if occupied.keys() != instructions.keys():
        raise ValueError(f"cuobjdump speaks of {sorted(occupied)}, nvdisasm of {sorted(instructions)}")
    return {name: occupied[name] | instructions[name] for name in occupied}


def _occupied(usage: str, reserved: int) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for match in _USAGE.finditer(usage):
        if match["name"] in found:
            raise ValueError(f"{match['name']} is twice in one cubin")
        found[match["name"]] = {
            "registers": int(match["registers"]),
            "stack": int(match["stack"]) + int(match["local"]),  # one kind of memory; LOCAL is that of an older ABI
            # A kernel without shared memory has none of these bytes, unless others in its cubin have some.
            "shared": max(int(match["shared"]) - reserved, 0),
        }
    return found


def _instructions(disassembly: str) -> dict[str, dict[str, int]]:
    _, functions = json.loads(disassembly)
    found: dict[str, Counter[str]] = {}
    kernel = ""
    for function in functions:
        # Each kernel has a section, and starts it. Subroutines that were not inlined follow in the same one, a copy a kernel.
        if function["start"] == 0:
            kernel = function["function-name"]
            if kernel in found:
                raise ValueError(f"{kernel} is twice in one cubin")
            found[kernel] = Counter()
        # "HMMA.16816.F32" is an HMMA; NOPs only fill the section up.
        kinds = Counter(instruction["opcode"].partition(".")[0] for instruction in function["sass-instructions"])
        found[kernel] += Counter({"instructions": kinds.total() - kinds["NOP"]})
        found[kernel] += Counter({kind: n for kind, n in kinds.items() if kind in _COUNTED or is_tensor(kind)})
    return {name: dict(counts) for name, counts in found.items()}


def _output(tool: str, *arguments: str) -> str:
    run = subprocess.run([_path(tool), *arguments], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{tool} {' '.join(arguments)} ended with {run.returncode}\n{run.stdout}{run.stderr}")
    return run.stdout


@functools.cache
def _path(tool: str) -> str:
    """Where a tool of the CUDA toolkit is: its wheel leaves it in a folder that is not on PATH."""
    package = f"nvidia-cuda-{tool}"
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in (tool, f"{tool}.exe"):
            return str(file.locate())
    found = shutil.which(tool) or shutil.which(tool, path=toolkit.cuda_root() / "bin")
    if found is None:
        raise RuntimeError(f"no {tool}: install {package} from PyPI (dnncore[test] asks for it), or the CUDA toolkit")
    return found
