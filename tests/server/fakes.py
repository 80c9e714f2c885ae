"""Fakes with rules for the serving tests: a clock that is set by hand, and devices whose faults and pauses are programmed.

A fake instance scores class j of a row by (j + 1) times the row's sum, so every client knows its own answer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from dnnserve.catalog import ModelSpec
from dnnserve.engine.host import Fresh
from dnnserve.engine.pipeline import LocalPipeline, Pipeline
from dnnserve.engine.slot import Apart, Slot
from dnnserve.envelope import Completion, InferenceRequest, ModelKey, OwnBlock
from dnnserve.signature import Signature, TensorSpec

from dnncore.dtypes import DType
from dnncore.errors import DeviceFaultError, OutOfMemoryError
from dnncore.preprocessing import Preprocessing

CLASSES = 3
PATIENCE_S = 20.0  # far more than anything here takes; only a defect waits it out


def make_spec(name: str = "toy", version: int = 1, max_batch_rows: int = 8) -> ModelSpec:
    preprocessing = Preprocessing.squash("rgb", 2, 4, 1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), max_pixels=10_000)
    channels, height, width = preprocessing.input_shape
    signature = Signature(
        (TensorSpec("data", DType.FLOAT32, (channels, height, width)),),
        (TensorSpec("scores", DType.FLOAT32, (CLASSES,)),),
    )
    return ModelSpec(
        ModelKey(name, version),
        signature,
        ("ant", "bee", "cat"),
        preprocessing,
        max_batch_rows,
    )


def make_rows(value: float, count: int = 1) -> np.ndarray:
    """Rows whose sum is `value`."""
    rows = np.zeros((count, 3, 2, 4), np.float32)
    rows[:, 1, 1, 2] = value
    return rows


def block_of(rows: np.ndarray) -> OwnBlock:
    """Rows or pixels of a model of one input."""
    return OwnBlock([rows], pixels=rows.dtype == np.uint8)


def outputs_of(request: InferenceRequest) -> np.ndarray:
    """What a request of this process was answered, by a model of one output."""
    assert isinstance(request.block, OwnBlock)
    (outputs,) = request.block.outputs.values()
    return outputs


def run_blocks(pipeline: Pipeline, *blocks: OwnBlock) -> None:
    """Have a batch computed, as a runner does."""
    pipeline.stage(blocks)
    pipeline.begin()
    pipeline.finish()
    pipeline.deliver()


def run(pipeline: Pipeline, *rows: np.ndarray) -> np.ndarray:
    """The first output of a batch of requests of one input."""
    blocks = list(map(block_of, rows))
    run_blocks(pipeline, *blocks)
    return np.concatenate([block.outputs[0] for block in blocks])


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread or process brings about and does not announce."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


class FakeClock:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def advance_ms(self, milliseconds: float) -> None:
        self.now_ns += int(milliseconds * 1e6)


class Inbox:
    """A sink that keeps what it gets, one list a call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.deliveries: list[list[Completion]] = []

    def deliver(self, completions: Sequence[Completion]) -> None:
        with self._changed:
            self.deliveries.append(list(completions))
            self._changed.notify_all()

    @property
    def completions(self) -> list[Completion]:
        return [completion for delivery in self.deliveries for completion in delivery]

    def of(self, request: InferenceRequest) -> Completion:
        (completion,) = (c for c in self.completions if c.request.ticket == request.ticket)
        return completion

    def wait(self, count: int) -> list[Completion]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.completions) >= count, PATIENCE_S), "no completion came"
        return self.completions


class Lab:
    """All fake devices of a test. Programmed by the test's thread, obeyed by the runners'."""

    def __init__(self, max_batch_rows: dict[str, int] | None = None, slots: int = 1) -> None:
        self.slots = slots
        self.killable = False
        self.begun: list[str] = []
        self.on_loss: dict[str, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._paused: set[str] = set()
        self._running: dict[str, int] = {}
        self._faults: dict[str, deque[Exception]] = {}
        self._max_batch_rows = max_batch_rows or {}
        self.batches: list[tuple[str, int]] = []
        self.first_sums: list[float] = []
        self.closed: list[str] = []
        self.opening = threading.Event()  # cleared: devices cannot be opened yet
        self.opening.set()
        self.load_error: Exception | None = None
        self.loads: list[tuple[str, ModelKey]] = []
        self.unloaded: list[tuple[str, ModelKey]] = []
        self.unload_error: Exception | None = None

    def open_host(self, device: str) -> FakeHost:
        assert self.opening.wait(PATIENCE_S), "never allowed"
        return FakeHost(self, device)

    def open_slowly(self, device: str) -> FakeHost:
        """Open once "loading" is not paused any more."""
        with self._changed:
            assert self._changed.wait_for(lambda: "loading" not in self._paused, PATIENCE_S), "never resumed"
        return FakeHost(self, device)

    def pause(self, device: str) -> None:
        """Batches on this device stand still until `resume`."""
        with self._changed:
            self._paused.add(device)

    def resume(self, device: str | None = None) -> None:
        """Let this device go on, or all."""
        with self._changed:
            self._paused -= {device} if device else self._paused
            self._changed.notify_all()

    def fail_next(self, device: str, error: Exception) -> None:
        with self._changed:
            self._faults.setdefault(device, deque()).append(error)

    def is_paused(self, device: str) -> bool:
        with self._changed:
            return device in self._paused

    @property
    def running(self) -> list[str]:
        """Devices that have a batch."""
        with self._changed:
            return [device for device, batches in self._running.items() if batches]

    def wait_running(self, device: str) -> None:
        """Wait until a batch is on the device."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._running.get(device, 0) > 0, PATIENCE_S), "no batch came"

    def run(self, device: str, rows: np.ndarray) -> np.ndarray:
        with self._changed:
            self.batches.append((device, len(rows)))
            self.first_sums.append(float(rows[0].sum()))
            self._running[device] = self._running.get(device, 0) + 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: device not in self._paused, PATIENCE_S), "never resumed"
            self._running[device] -= 1
            faults = self._faults.get(device)
            if faults:
                raise faults.popleft()
        sums: np.ndarray = rows.reshape(len(rows), -1).sum(axis=1, keepdims=True)
        return sums * np.arange(1, CLASSES + 1, dtype=np.float32)

    def began(self, device: str) -> None:
        with self._changed:
            self.begun.append(device)
            self._changed.notify_all()

    def wait_begun(self, count: int) -> None:
        """Wait until so many batches have been begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, PATIENCE_S), "no batch was begun"

    def kill(self, device: str) -> bool:
        """What hangs on this device fails with a fault, if it may."""
        with self._changed:
            if self.killable:
                self._faults.setdefault(device, deque()).append(DeviceFaultError("killed"))
                self._paused -= {device}
                self._changed.notify_all()
        return self.killable

    def shrink(self, device: str, max_batch_rows: int) -> None:
        """What is loaded on this device from now on has room for so many rows."""
        self._max_batch_rows[device] = max_batch_rows

    def limit(self, device: str, max_batch_rows: int) -> int:
        return min(max_batch_rows, self._max_batch_rows.get(device, max_batch_rows))


class FakeHost:
    """A device that insists, as CUDA does, on being used and closed by the thread that opened it."""

    def __init__(self, lab: Lab, device: str) -> None:
        self._lab, self._device, self._thread = lab, device, threading.get_ident()
        self._loading: dict[ModelKey, int] = {}

    def load(self, model: ModelKey, max_batch_rows: int) -> LocalPipeline:
        if self._lab.load_error is not None:
            raise self._lab.load_error
        self._lab.loads.append((self._device, model))
        return LocalPipeline(FakeInstance(self._lab, self._device, self._lab.limit(self._device, max_batch_rows)))

    def begin_load(self, model: ModelKey, max_batch_rows: int, warm_up_ns: int) -> None:
        assert warm_up_ns >= 0
        self._loading[model] = max_batch_rows

    def loaded(self, model: ModelKey) -> Fresh | None:
        if self._lab.is_paused("loading"):
            return None
        rows = self._loading.pop(model)
        if self._lab.limit(self._device, rows) < rows:
            raise OutOfMemoryError(f"no room for batches of {rows} rows")
        return Fresh(self.load(model, rows), {})

    def unload(self, model: ModelKey) -> None:
        assert threading.get_ident() == self._thread
        self._lab.unloaded.append((self._device, model))
        if self._lab.unload_error is not None:
            raise self._lab.unload_error

    def watch(self, on_end: Callable[[], None], on_loss: Callable[[], None]) -> None:
        self._lab.on_loss[self._device] = on_loss

    def look(self) -> None:
        pass

    def kill(self) -> bool:
        return self._lab.kill(self._device)

    def close(self) -> None:
        assert threading.get_ident() == self._thread
        self._lab.closed.append(self._device)


class FakeInstance:
    signature = make_spec().signature
    computed_ns = 1_000

    def __init__(self, lab: Lab, device: str, max_batch_rows: int) -> None:
        self._lab, self._device, self._thread = lab, device, threading.get_ident()
        self.max_batch_rows = max_batch_rows
        self.slots = [self._slot(max_batch_rows) for _ in range(lab.slots)]
        self._begun: deque[np.ndarray] = deque()

    @staticmethod
    def _slot(rows: int) -> Slot:
        spec = make_spec()
        memory = np.zeros(Slot.nbytes(rows, spec.signature), np.uint8)
        return Slot(memory, rows, spec.signature, spec.preprocessing)

    def begin(
        self, slot: int, rows: int, pixels: bool, wanted: Sequence[int], apart: Sequence[Sequence[Apart]] = ()
    ) -> None:
        assert not any(apart), "memory that this device has not locked"
        assert threading.get_ident() == self._thread
        assert rows <= self.max_batch_rows
        self._lab.began(self._device)
        (filled,), preprocessing = self.slots[slot].read(pixels=pixels), self.slots[slot].preprocessing
        if pixels:
            assert preprocessing is not None
            self._begun.append(preprocessing.normalize(filled[:rows]))
        else:
            self._begun.append(filled[:rows])

    def finish(self) -> Mapping[int, np.ndarray]:
        return {0: self._lab.run(self._device, self._begun.popleft())}
