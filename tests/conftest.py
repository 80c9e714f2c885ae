"""Fixtures for every test: which devices there are, and the emulated driver where it stands in for a real one.

With DNN_EMU_LIB set (`make test` sets it once the emulator is built), the emulated libcuda is loaded before anything imports
PyCUDA, and "cuda:N" are fake GPUs on the CPU. With DNNCORE_TEST_GPU=1 (`make test-gpu`) they are real ones.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest

EMULATOR = os.environ.get("DNN_EMU_LIB")
GPU = os.environ.get("DNNCORE_TEST_GPU") == "1"

if EMULATOR:
    ctypes.CDLL(EMULATOR, ctypes.RTLD_GLOBAL)

from dnncore import Handle, devices  # noqa: E402 (the emulated driver comes first)

CUDA_DEVICES = tuple(f"cuda:{index}" for index in range(devices.cuda_count())) if EMULATOR or GPU else ()
DEVICES = ("cpu", *CUDA_DEVICES[:1])


def pytest_report_header() -> str:
    where = "emulated driver" if EMULATOR else "real GPUs" if GPU else "none: run `make emulator` or `make test-gpu`"
    return f"CUDA devices: {', '.join(CUDA_DEVICES) or '-'} ({where})"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("cuda") and not CUDA_DEVICES:
            item.add_marker(pytest.mark.skip(reason="no CUDA device: run `make emulator`, or `make test-gpu` on a GPU"))


@pytest.fixture(scope="session")
def handles() -> Iterator[dict[str, Handle]]:
    """One handle a device, kept for the whole run: plans and kernels are made once."""
    opened = {name: Handle(name) for name in DEVICES}
    yield opened
    for handle in opened.values():
        handle.close()


@pytest.fixture(params=DEVICES)
def handle(request: pytest.FixtureRequest, handles: dict[str, Handle]) -> Handle:
    found: Handle = handles[request.param]
    return found
