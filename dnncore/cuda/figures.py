"""Which figures a CUDA device has: those of its model where it is known, else what its driver says of it."""

from __future__ import annotations

import functools
from dataclasses import replace

from dnncore.cuda.runtime import driver, jit
from dnncore.figures import A100, H100, H200, DeviceFigures

__all__ = ["of_device"]

_MODELS = (H200, H100, A100)
_COPY_SHARE = 0.89
"""Of the datasheet's memory rate, what a large copy reaches [measured on an H200: 4.26 of 4.8 TB/s]."""


@functools.cache
def of_device(index: int, architecture: str) -> DeviceFigures:
    """The figures of a device.

    A model is known by its compute capability, its multiprocessors and its memory clock: an H100 is an H200 with slower memory. Any
    other, also one that is newer than this library, has the products per clock and the time of a launch of the nearest model that
    is no newer, and the rest from its driver; where it does not tell a clock or the cache (0), they are that model's, the memory's
    rate in proportion to the multiprocessors.

    Args:
        index: Of the device.
        architecture: What its kernels are compiled for (`jit.target`).
    """
    capability = driver.compute_capability(index)
    native = jit.architecture(capability)
    multiprocessors = driver.attribute(index, "MULTIPROCESSOR_COUNT")
    nearest = H100 if capability >= (9, 0) else A100
    bits, hertz = (driver.attribute(index, name) for name in ("GLOBAL_MEMORY_BUS_WIDTH", "MEMORY_CLOCK_RATE"))
    rate = _COPY_SHARE * 2 * hertz * 1e3 * bits / 8
    rate = rate or nearest.bytes_per_second * multiprocessors / nearest.multiprocessors
    alike = [m for m in _MODELS if (m.architecture, m.multiprocessors) == (native, multiprocessors)]
    if alike:
        return replace(min(alike, key=lambda model: abs(model.bytes_per_second - rate)), architecture=architecture)
    return DeviceFigures(
        architecture=architecture,
        multiprocessors=multiprocessors,
        threads_per_multiprocessor=driver.attribute(index, "MAX_THREADS_PER_MULTIPROCESSOR"),
        registers_per_multiprocessor=driver.attribute(index, "MAX_REGISTERS_PER_MULTIPROCESSOR"),
        clock_hz=driver.attribute(index, "CLOCK_RATE") * 1e3 or nearest.clock_hz,
        products_per_clock=nearest.products_per_clock,
        shared_bytes=driver.attribute(index, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        l2_bytes=driver.attribute(index, "L2_CACHE_SIZE") or nearest.l2_bytes,
        bytes_per_second=rate,
        launch_seconds=nearest.launch_seconds,
    )
