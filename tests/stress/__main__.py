"""Mixed operations from many threads on many devices, each result compared bit for bit with the serial one.

python -m tests.stress --devices 4 --threads 8 --jobs 200

The devices are real ones, or the emulated driver's where that is found as libcuda.so.1 (EMU_DEVICES says how many).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from dnncore import Handle, Tensor, TensorDescriptor, devices
from dnncore.errors import DnncoreError
from dnncore.problems.optimizer import num_blended
from tests.cases import CASES, Case
from tests.ops.oracle import make_inputs

SEEDS = 2
"""Different inputs a case."""

HANDLES = 2
"""A thread."""

MAX_BYTES = 1 << 16
"""Of a case's operands: the threads are to get into each other's way, not to compute for long."""


@dataclass
class Report:
    devices: int
    threads: int
    cases: int
    results: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0


def chosen() -> list[Case]:
    """The largest small case of each kind of problem and dtype, without operands whose elements share memory."""
    found: dict[tuple[object, ...], tuple[int, Case]] = {}
    for case in CASES:
        operands = (*case.problem.inputs, *case.problem.outputs)
        nbytes = sum(descriptor.nbytes for descriptor in operands)
        if nbytes > MAX_BYTES or any(descriptor.overlaps for descriptor in operands):
            continue
        kind = type(case.problem), getattr(case.problem, "direction", None), case.problem.outputs[0].dtype
        if kind not in found or found[kind][0] < nbytes:
            found[kind] = nbytes, case
    return [case for _, case in found.values()]


def digest(source: Handle, handle: Handle, case: Case, seed: int) -> str:
    """Solve a case; inputs are uploaded by one handle and shared with the one that computes."""
    random = np.random.default_rng([seed, *case.name.encode()])
    problem = case.problem
    values = make_inputs(problem, random)
    blended = problem.outputs[: num_blended(problem)]
    before = [random.uniform(-1, 1, descriptor.shape) for descriptor in blended]
    with ExitStack() as closing:

        def filled(owner: Handle, descriptor: TensorDescriptor, value: np.ndarray) -> Tensor:
            tensor = closing.enter_context(owner.tensor(descriptor))
            tensor.assign(value.astype(descriptor.dtype.numpy))
            return tensor

        uploaded = [filled(source, d, v) for d, v in zip(problem.inputs, values, strict=True)]
        inputs = uploaded
        if source is not handle:
            handle.wait(source.record_event())
            inputs = [closing.enter_context(handle.from_dlpack(tensor)) for tensor in uploaded]
        others = problem.outputs[len(blended) :]
        outputs = [filled(handle, d, v) for d, v in zip(blended, before, strict=True)]
        outputs += [closing.enter_context(handle.tensor(d)) for d in others]
        # Sharing does not keep strides of dimensions that have one element; the plan wants the very descriptor.
        inputs = [tensor.view(descriptor) for tensor, descriptor in zip(inputs, problem.inputs, strict=True)]
        handle.run(handle.plan(problem), case.alpha, inputs, case.beta, outputs)
        found = hashlib.sha256()
        for tensor in outputs:
            found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def jobs_of(cases: Sequence[Case], count: int, *seed: int) -> list[tuple[Case, int]]:
    random = np.random.default_rng(seed)
    return [
        (cases[i], int(s))
        for i, s in zip(random.integers(0, len(cases), count), random.integers(0, SEEDS, count), strict=True)
    ]


def stress(device_count: int, thread_count: int, job_count: int) -> Report:
    """Run it all: `thread_count` threads per device, each with several handles that it closes and opens again."""
    cases = chosen()
    report = Report(device_count, thread_count, len(cases))
    started = time.monotonic()
    with Handle("cuda:0") as handle:
        serial = {(case.name, seed): digest(handle, handle, case, seed) for case in cases for seed in range(SEEDS)}
    gate = threading.Barrier(device_count * thread_count)
    lock = threading.Lock()  # guards report

    def work(device: int, index: int) -> None:
        gate.wait()
        name = f"cuda:{device}"
        handles = [Handle(name) for _ in range(HANDLES)]
        try:
            for step, (case, seed) in enumerate(jobs_of(cases, job_count, device, index)):
                source, handle = handles[step % HANDLES], handles[(step // 2) % HANDLES]
                same = digest(source, handle, case, seed) == serial[case.name, seed]
                with lock:
                    report.results += 1
                    if not same:
                        report.wrong.append(f"{case.name} with seed {seed} on {name}")
                if step % 5 == 4:
                    handles[step % HANDLES].close()
                    handles[step % HANDLES] = Handle(name)
        except DnncoreError as error:
            with lock:
                report.errors.append(f"{name}: {type(error).__name__}: {error}")
        finally:
            for handle in handles:
                handle.close()

    threads = [
        threading.Thread(target=work, args=(device, index))
        for device in range(device_count)
        for index in range(thread_count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.seconds = round(time.monotonic() - started, 1)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=None, help="how many CUDA devices; all by default")
    parser.add_argument("--threads", type=int, default=8, help="a device")
    parser.add_argument("--jobs", type=int, default=200, help="a thread")
    options = parser.parse_args()
    report = stress(options.devices or devices.cuda_count(), options.threads, options.jobs)
    print(json.dumps(vars(report), indent=1))
    expected = report.devices * report.threads * options.jobs
    return 0 if report.results == expected and not report.wrong and not report.errors else 1


if __name__ == "__main__":
    sys.exit(main())
