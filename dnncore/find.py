"""Timing every algorithm that can solve a problem, on the device, as cuDNN's Find functions do."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from dnncore.backend import Address, Device, Stream
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BackendUnavailableError, CompilationError, DeviceError, DeviceFaultError
from dnncore.measured import MOST_KEPT, MeasuredChoice, names_digest, problem_text
from dnncore.plan import AlgorithmPerformance, Plan
from dnncore.problems import Problem
from dnncore.workspace import Workspace

__all__ = ["find_algorithms", "measured_choice"]

_SAMPLE_MS = 1.0
"""Launches between two events are repeated until they take this long, so that the events themselves do not count."""

_MOST_LAUNCHES = 32
"""In one sample."""

_MOST_SAMPLES, _FEWEST_SAMPLES = 15, 3
_TOTAL_MS = 50.0
"""What the samples of one algorithm take together, unless the fewest take longer."""


def find_algorithms(
    ranked: Sequence[AlgorithmPerformance],
    problem: Problem,
    device: Device,
    stream: Stream,
    plan: Callable[[str], Plan],
    operands: tuple[Sequence[Address], Sequence[Address]] | None,
    most: int | None = None,
) -> list[AlgorithmPerformance]:
    """Time what can be used; `Handle.find_algorithms` says the rest.

    Args:
        ranked: What `plan.rank` gave.
        problem: What is solved.
        device: Where.
        stream: On which launches and events are enqueued.
        plan: Makes the plan of an algorithm, by name.
        operands: Addresses of the inputs and of the outputs, which are overwritten; None for memory of our own.
        most: How many are timed, the first of the ranked; None for all.
    """
    found = []
    with ExitStack() as scratch:
        workspace = Workspace(device, stream)
        scratch.callback(workspace.close)
        inputs, outputs = operands or (
            [_scratch(device, stream, descriptor, scratch) for descriptor in problem.inputs],
            [_scratch(device, stream, descriptor, scratch) for descriptor in problem.outputs],
        )
        for place, algorithm in enumerate(ranked):  # those that can be used are first
            if algorithm.status is not None or (most is not None and place >= most):
                found.append(algorithm)
                continue
            try:
                time_ms = _time_ms(plan(algorithm.name), stream, inputs, outputs, workspace)
            except DeviceFaultError:
                raise  # the device is lost to every other algorithm too
            except (DeviceError, CompilationError, BackendUnavailableError) as error:
                found.append(replace(algorithm, status=f"{type(error).__name__}: {error}"))
            else:
                found.append(replace(algorithm, time_ms=time_ms))
    return sorted(found, key=lambda algorithm: (algorithm.time_ms is None, algorithm.time_ms))


def measured_choice(found: Sequence[AlgorithmPerformance], problem: Problem, device: Device) -> MeasuredChoice | None:
    """What `find_algorithms` has found, as it is kept; None where nothing could be timed.

    What the caller did not permit, or failed, was not among those to choose from: it may be faster than what was.
    """
    seconds = [(each.name, each.time_ms * 1e-3) for each in found if each.time_ms]
    if not seconds:
        return None
    names = [each.name for each in found if each.status is None or each.offer is None]
    where = device.info.model, device.figures.architecture
    return MeasuredChoice(problem_text(problem), *where, names_digest(names), tuple(seconds[:MOST_KEPT]))


def _scratch(device: Device, stream: Stream, descriptor: TensorDescriptor, closing: ExitStack) -> Address:
    """An operand of numbers in [-1, 1), or of zeros where they are integers: these may be indices."""
    memory = device.allocate(max(descriptor.nbytes, 1))
    closing.callback(memory.close)
    pattern = np.zeros(min(descriptor.extent, 1 << 16))
    if descriptor.dtype.is_floating:
        pattern = np.random.default_rng(0).uniform(-1, 1, pattern.size)
    device.copy_to_device(
        stream, memory.at(0), np.resize(pattern.astype(descriptor.dtype.numpy), descriptor.extent).view(np.uint8)
    )
    stream.synchronize()
    return memory.at(0)


def _time_ms(
    plan: Plan, stream: Stream, inputs: Sequence[Address], outputs: Sequence[Address], workspace: Workspace
) -> float:
    addresses = (*inputs, *outputs, workspace.reserve(plan.workspace_bytes))

    def sample(launches: int) -> float:
        start = stream.record_event()
        for _ in range(launches):
            plan.launch(stream, 1.0, 0.0, addresses)
        return stream.record_event().elapsed_ms(start) / launches

    sample(1)  # the first launch loads the kernel
    once = max(sample(1), _SAMPLE_MS / _MOST_LAUNCHES)
    launches = max(1, round(_SAMPLE_MS / once))
    samples = min(max(round(_TOTAL_MS / (launches * once)), _FEWEST_SAMPLES), _MOST_SAMPLES)
    return statistics.median(sample(launches) for _ in range(samples))
