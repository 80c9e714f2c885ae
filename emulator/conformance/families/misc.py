"""Special registers, clocks, programmatic launches and what nvcc makes of functions and local memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.families.barriers import simple
from emulator.conformance.sources import cuda_library

if TYPE_CHECKING:
    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array

SOURCE = values.bits("misc", "u32", 384)
GRID, BLOCK = (3, 2, 2), (5, 3, 2)


def _places() -> Array:
    found = []
    for bz in range(GRID[2]):
        for by in range(GRID[1]):
            for bx in range(GRID[0]):
                z, y, x = np.meshgrid(*(np.arange(n) for n in reversed(BLOCK)), indexing="ij")
                found.append((x + 16 * y + 256 * z + 4096 * bx + 65536 * by + 1048576 * bz).reshape(-1))
    return (np.concatenate(found) + 9).astype(np.uint32)


def _run_places(bench: Bench) -> Array:
    out = bench.output(360)
    bench.launch(cuda_library("misc"), "places", GRID, BLOCK, [bench.upload(np.array([9], np.uint32)), out])
    return bench.read(out)


def _run_programmatic(bench: Bench) -> Array:
    driver, library = bench.driver, cuda_library("misc")
    source, middle, out = bench.upload(SOURCE[:256]), bench.output(256), bench.output(256)
    stream = driver.stream()
    driver.launch(bench.kernel(library, "primary"), 2, 128, [source, middle], stream=stream)
    driver.launch(bench.kernel(library, "secondary"), 2, 128, [middle, out], stream=stream, programmatic=True)
    driver.synchronize()
    return bench.read(out)


def _local_arrays() -> Array:
    found = []
    for t in range(128):
        held = [int(SOURCE[(t + i) % 128]) for i in range(16)]
        at = t
        for i in range(40):
            at = (held[at % 16] + i) & 0xFFFFFFFF
            held[(at >> 7) % 16] ^= at
        total = 0
        for x in held:
            total = (total * 33 + x) & 0xFFFFFFFF
        found.append(total)
    return np.array(found, np.uint32)


def _early_exit() -> Array:
    mirrored = SOURCE[127 - np.arange(96)]
    return np.concatenate([mirrored[(np.arange(96) + 1) % 96], np.full(32, 5, np.uint32)])


def _pointers() -> Array:
    x = SOURCE[:128]
    return np.where(x % 3 == 0, x * np.uint32(2), np.where(x % 3 == 1, x * x, ~x))


def family() -> Family:
    """The checks."""
    made = Family("misc")
    made.add("places", "mov.u32", _run_places, "u32", _places)
    one = SOURCE[:1] | np.uint32(2)
    facts = np.array([32, 1, 1, 1, 2048, 1, 0], np.uint32)
    simple(made, "misc", "machine", "mov.u32 mov.u64", one, 7, lambda: facts, block=64, shared=2048)
    steady = np.array([1, 1, 1, one[0]], np.uint32)
    simple(made, "misc", "clocks", "nanosleep.u32 mov.u64", one, 4, lambda: steady, block=1)
    simple(made, "misc", "early_exit", "exit pmevent", SOURCE[:128], 128, _early_exit)
    counted = np.concatenate([SOURCE[:128] + np.uint32(1), SOURCE[128:] * np.uint32(3)])
    covers = "setmaxnreg.dec.sync.aligned.u32 setmaxnreg.inc.sync.aligned.u32"
    simple(made, "misc", "register_counts", covers, SOURCE, 384, lambda: counted, block=384)
    chained = (SOURCE[:256] * np.uint32(7))[::-1] + np.uint32(1)
    covers = "griddepcontrol.launch_dependents griddepcontrol.wait cuLaunchKernelEx"
    made.add("programmatic", covers.split(), _run_programmatic, "u32", lambda: chained)
    simple(made, "misc", "printing", "call.uni", one, 1, lambda: np.array([2], np.uint32), block=32)
    simple(made, "misc", "local_arrays", "ld.local st.local", SOURCE[:128], 128, _local_arrays)
    # A(2, n) = 2 n + 3
    simple(made, "misc", "recursion", "call.uni", SOURCE[:128], 128, lambda: SOURCE[:128] % 4 * 2 + np.uint32(3))
    simple(made, "misc", "pointers", "call", SOURCE[:128], 128, _pointers)
    return made
