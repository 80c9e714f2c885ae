"""Fixtures for every test: which devices there are, and the emulated driver where it stands in for a real one.

With DNN_EMU_LIB set (`make test` sets it once the emulator is built), the emulated libcuda is loaded before anything imports
PyCUDA, and "cuda:N" are fake GPUs on the CPU. With DNNCORE_TEST_GPU=1 (`make test-gpu`) they are real ones.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

EMULATOR = os.environ.get("DNN_EMU_LIB")
GPU = os.environ.get("DNNCORE_TEST_GPU") == "1"
OTHER_ORDER = "EMU_SCHED" in os.environ
"""This is the second pass over the kernel tests, which looks for what depends on the order of threads and copies."""

# A machine under load is slow, which says nothing about the code.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

if EMULATOR:
    ctypes.CDLL(EMULATOR)  # kept under its soname: whoever needs libcuda.so.1 from now on gets this one

from dnncore import Handle, devices  # noqa: E402 (the emulated driver comes first)
from tests.cuda.gates import summary  # noqa: E402

CUDA_DEVICES = tuple(f"cuda:{index}" for index in range(devices.cuda_count())) if EMULATOR or GPU else ()
DEVICES = ("cpu", *CUDA_DEVICES[:1])
_RUNS_KERNELS = ("runs", "kernels")  # a user property, because markers do not travel with a worker's reports


def pytest_report_header() -> str:
    where = "emulated driver" if EMULATOR else "real GPUs" if GPU else "none: run `make test` or `make test-gpu`"
    return f"CUDA devices: {', '.join(CUDA_DEVICES) or '-'} ({where})"


_YOUNG = 20_000
"""So many objects more than there were are looked at for garbage. Looking at 700 took a twentieth of small tests' time."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are objects that stay: the collector is not to look at them, now or in every test that calls it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
        gc.enable()
        _let_loggers_pass_on()


def _let_loggers_pass_on() -> None:
    """To the root, where pytest listens: each of PyTorch's fifty that do not would get two handlers at each step of a test."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "torch":
            logger.propagate = True


@pytest.hookimpl(trylast=True)  # what fixtures held is let go of first
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor at what a file's tests have loaded and keep, among which each look takes up to a second in the end: garbage goes here."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before `-m cuda` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs kernels because a device among its parameters is CUDA's; skip all such where there is no device."""
    for item in items:
        params = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        if any(value in CUDA_DEVICES for value in params if isinstance(value, str)):
            item.add_marker(pytest.mark.cuda)
        if item.get_closest_marker("cuda"):
            item.user_properties.append(_RUNS_KERNELS)
        if item.get_closest_marker("cuda") and not CUDA_DEVICES:
            item.add_marker(pytest.mark.skip(reason="no CUDA device: run `make test`, or `make test-gpu` on a GPU"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where kernels ran: a green suite must not be taken for one that a GPU has seen."""
    ran = sum(_RUNS_KERNELS in report.user_properties for report in terminalreporter.getreports("passed"))
    emulated, on_gpu = (ran, 0) if EMULATOR else (0, ran)
    how = ", ".join(
        f"{name}={os.environ[name]}"
        for name in ("EMU_BUILD", "EMU_SCHED", "EMU_BLOCKS", "EMU_ASYNC")
        if name in os.environ
    )
    terminalreporter.write_line(
        f"kernel tests passed: {emulated} on the emulated driver{f' ({how})' if how and emulated else ''}, "
        f"{on_gpu or 'none'} on a GPU"
    )
    summary.write(terminalreporter)


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
