"""Errors that stay: each in a process of its own, for the context is lost afterwards."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance.checks import Family
from emulator.conformance.families.driver import words
from emulator.conformance.sources import cuda_library

if TYPE_CHECKING:
    from emulator.conformance.bench import Bench
    from emulator.conformance.cuda import Argument
    from emulator.conformance.values import Array


def _fault(bench: Bench, name: str, more: list[Argument]) -> Array:
    """The codes of the launch, of the wait, of a second wait, and of an allocation afterwards."""
    driver = bench.driver
    function = bench.kernel(cuda_library("driver"), name)
    out = bench.upload(np.zeros(16, np.uint32))
    driver.launch(function, 1, 1, [out, *more])
    address = ctypes.c_uint64()
    return words(
        driver.code("cuCtxSynchronize"),
        driver.code("cuCtxSynchronize"),
        driver.code("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(64)),
        driver.code(
            "cuMemcpyDtoH_v2", ctypes.create_string_buffer(4), ctypes.c_uint64(out.address), ctypes.c_size_t(4)
        ),
    )


def family() -> Family:
    """The checks."""
    made = Family("faults")
    rows: list[tuple[str, int, list[Argument]]] = [
        ("illegal_address", 700, [ctypes.c_uint64(0x10)]),
        ("misaligned", 716, []),
        ("trapped", 719, []),
        ("shared_overrun", 700, []),
    ]
    for name, code, more in rows:
        made.add(
            name,
            "trap" if name == "trapped" else "cuCtxSynchronize",
            lambda bench, name=name, more=more: _fault(bench, name, more),  # type: ignore[misc]
            "u32",
            lambda code=code: words(code, code, code, code),  # type: ignore[misc]
            alone=True,
        )
    made.add("breakpoint", "brkpt", lambda bench: _fault(bench, "breakpoint", []), alone=True)
    return made
