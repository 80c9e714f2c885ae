"""Compiles PTX, and calls its kernels as one thread over tests/translator_stub.cpp."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from emulator import nvcc

_ROOT = Path(nvcc.__file__).parent
_BITS = {"pred": "b64", "b16": "b16", "b32": "b32", "b64": "b64"}
_ROW = 40
PROLOGUE = ".version 9.0\n.target sm_90a\n.address_size 64\n"


class _Kernel(ctypes.Structure):
    """EmuKernel."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("run", ctypes.c_void_p), ("params", ctypes.c_void_p), ("num_params", ctypes.c_uint32),
        ("param_bytes", ctypes.c_uint32), ("shared", ctypes.c_void_p), ("num_shared", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32), ("shared_end", ctypes.c_uint32), ("dynamic_alignment", ctypes.c_uint32),
        ("max_threads", ctypes.c_uint32), ("required_threads", ctypes.c_uint32 * 3), ("cluster", ctypes.c_uint32 * 3),
        ("max_cluster", ctypes.c_uint32),
    )  # fmt: skip


class Stub:
    """The stub library."""

    def __init__(self, folder: Path) -> None:
        self.path = path = folder / "libstub.so"
        command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{_ROOT}"]
        subprocess.run([*command, str(_ROOT / "tests" / "translator_stub.cpp"), "-o", str(path)], check=True)
        self.library = ctypes.CDLL(str(path))
        self.library.stub_run.restype = ctypes.c_char_p
        self.library.stub_kernel.restype = ctypes.POINTER(_Kernel)


class PtxModule:
    """A compiled module."""

    def __init__(self, stub: Stub, ptx: str, folder: Path) -> None:
        path = folder / "module.so"
        self._stub = stub.library
        self.warnings = nvcc.build_module(PROLOGUE + ptx, path, "test.ptx", runtime=stub.path)
        # In a process that has loaded the emulated driver too, its functions of the same names come first without this.
        self._library = ctypes.CDLL(str(path), os.RTLD_DEEPBIND)
        self._module = ctypes.c_char.in_dll(self._library, "emu_module")

    def kernel(self, name: str) -> _Kernel:
        """A kernel's description."""
        found: _Kernel = self._stub.stub_kernel(ctypes.byref(self._module), name.encode()).contents
        return found

    def run(self, name: str, params: bytes = b"", globals_: Sequence[int] = ()) -> str | None:
        """Run a kernel as one thread; the result is why it failed."""
        pointers = (ctypes.c_void_p * max(len(globals_), 1))(*globals_)
        # Strings end at zeros, buffers do not.
        buffer = ctypes.create_string_buffer(params, max(len(params), 1))
        message = self._stub.stub_run(ctypes.byref(self._module), name.encode(), buffer, pointers)
        return message.decode() if message is not None else None


def operation_kernel(name: str, text: str, types: Sequence[str]) -> str:
    """PTX of a kernel that applies an instruction to rows of operands.

    Args:
        text: The instruction, with results d (and q) and inputs a, b, c, e.
        types: Of the results and inputs, in that order, by the letters that `text` has.
    """
    letters = [
        letter for letter in "dqabce" if f" {letter}" in text.replace("|", " ").replace("{", " ").replace("!", " ")
    ]
    lines = [f".reg .{kind} {letter};" for letter, kind in zip(letters, types, strict=True)]
    for letter, kind in zip(letters, types, strict=True):
        if letter in "dq":
            continue
        offset = 8 * "abce".index(letter)
        if kind == "pred":
            lines += [f"ld.global.b64 wide, [from+{offset}];", f"setp.ne.b64 {letter}, wide, 0;"]
        else:
            lines.append(f"ld.global.{_BITS[kind]} {letter}, [from+{offset}];")
    lines += [f"{text};"]
    for index, (letter, kind) in enumerate(zip(letters, types, strict=True)):
        if letter not in "dq":
            continue
        lines.append(f"selp.b64 wide, 1, 0, {letter};" if kind == "pred" else f"cvt.u64.u{kind[1:]} wide, {letter};")
        lines.append(f"st.global.b64 [to+{8 * index}], wide;")
    body = "\n  ".join(lines)
    return f"""
.visible .entry {name}(.param .u64 out, .param .u64 rows, .param .u32 number) {{
  .reg .b64 to, from, wide; .reg .b32 left; .reg .pred more;
  ld.param.u64 to, [out]; ld.param.u64 from, [rows]; ld.param.u32 left, [number];
loop:
  {body}
  add.s64 to, to, 16; add.s64 from, from, {_ROW};
  sub.s32 left, left, 1; setp.ne.s32 more, left, 0;
  @more bra loop;
  ret;
}}
"""


def apply(module: PtxModule, name: str, rows: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Results d and q of an operation kernel for every row of inputs, as bits."""
    packed = b"".join(struct.pack("<5Q", *[*row, 0, 0, 0, 0, 0][:5]) for row in rows)
    source = ctypes.create_string_buffer(packed, len(packed))
    result = ctypes.create_string_buffer(16 * len(rows))
    params = struct.pack("<QQI", ctypes.addressof(result), ctypes.addressof(source), len(rows))
    message = module.run(name, params)
    if message is not None:
        raise AssertionError(f"{name}: {message}")
    return [struct.unpack_from("<QQ", result.raw, 16 * i) for i in range(len(rows))]
