"""One thread a device: opens it, loads the models, takes batches, and closes it again in the same thread.

PyCUDA aborts the process when a context outlives its thread's work, so nothing here leaves the thread without `host.close()`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dnncore.errors import DeviceFaultError
from dnnserve.envelope import Answer, BatchTimes, ModelKey
from dnnserve.errors import DeviceLostError, ExecutionError, RequestError
from dnnserve.instance import Host, HostFactory, Instance
from dnnserve.scheduler import Batch, Scheduler

__all__ = ["DeviceLost", "Runner"]

_log = logging.getLogger(__name__)

DeviceLost = Callable[[str, str], None]
"""Called with a device's label and the reason, after the scheduler has counted it out."""


class Runner:
    """Runs batches on one device. Thread-safe: `_lock` guards `_running` and `_given_up`; the device itself is touched by its own
    thread alone.

    Args:
        label: The device's name in logs and metrics, unique among runners.
        device: The device's name for `open_host`.
        models: What to load, with the rows of a batch asked for.
        open_host: Opens the device; called in the runner's thread.
        scheduler: Where batches come from and completions go.
        on_lost: Told when the device is lost while serving.
        clock: The scheduler's clock.
    """

    def __init__(
        self,
        label: str,
        device: str,
        models: Mapping[ModelKey, int],
        open_host: HostFactory,
        scheduler: Scheduler,
        on_lost: DeviceLost = lambda _label, _reason: None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.label = label
        self.device = device
        self._models = models
        self._open_host = open_host
        self._scheduler = scheduler
        self._on_lost = on_lost
        self._clock = clock
        self._loaded = threading.Event()
        self._load_error: Exception | None = None
        self._limits: Mapping[ModelKey, int] = {}
        self._lock = threading.Lock()
        self._running: Batch | None = None
        self._given_up = False
        self._busy_ns = 0  # written by the runner's thread alone
        # A daemon, so that a device that hangs cannot keep a process alive which has been told to stop.
        self._thread = threading.Thread(target=self._main, name=f"dnnserve-{label}", daemon=True)

    @property
    def busy_seconds(self) -> float:
        """Time spent on batches since the start."""
        return self._busy_ns / 1e9

    @property
    def given_up(self) -> bool:
        """Whether the device was taken out of service because its batch did not end."""
        with self._lock:
            return self._given_up

    def start(self) -> None:
        """Open the device and load the models, in the runner's thread; returns at once."""
        self._thread.start()

    def wait_loaded(self, timeout_s: float | None = None) -> Mapping[ModelKey, int] | None:
        """Wait until the models are loaded and warm.

        Returns:
            Rows that a batch of each model may have on this device; None: not loaded within the time given.

        Raises:
            Exception: whatever opening the device or loading a model raised.
        """
        if not self._loaded.wait(timeout_s):
            return None
        if self._load_error is not None:
            raise self._load_error
        return self._limits

    def give_up_when_stuck(self, limit_ns: int) -> bool:
        """Take the device out of service if its batch has run for longer than this: a kernel that never ends raises no error.

        The batch goes to other devices. The runner's thread stays where it is; should it ever come back, it ends.
        """
        with self._lock:
            batch = self._running
            if batch is None or self._given_up or self._clock() - batch.taken_ns < limit_ns:
                return False
            self._given_up = True
        seconds = (self._clock() - batch.taken_ns) / 1e9
        self._hand_over(batch, f"a batch of {batch.model} with {batch.rows} rows has not ended for {seconds:.1f} s")
        return True

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end, after `Scheduler.stop`; False: it still runs. One that was given up is not waited for."""
        if self.given_up:
            return True
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        host: Host | None = None
        try:
            try:
                host = self._open_host(self.device)
                instances = {model: host.load(model, rows) for model, rows in self._models.items()}
                self._limits = {model: instance.max_batch_rows for model, instance in instances.items()}
                self._scheduler.add_device(self.label)
            except Exception as error:  # noqa: BLE001 - handed over to wait_loaded
                self._load_error = error
                return
            finally:
                self._loaded.set()
            self._serve(instances)
        except Exception as error:  # noqa: BLE001 - a runner that ends for any reason takes its device out of service
            _log.exception("the runner of device %s failed", self.label)
            self._lose(f"its runner failed: {error}")
        finally:
            if host is not None:
                self._close(host)

    def _serve(self, instances: Mapping[ModelKey, Instance]) -> None:
        while (batch := self._scheduler.take()) is not None:
            outcomes: Sequence[Answer | RequestError] = ()
            fault: DeviceFaultError | None = None
            with self._lock:
                self._running = batch
            try:
                outcomes = self._run(instances[batch.model], batch)
            except DeviceFaultError as error:
                _log.exception("device %s is lost", self.label)
                fault = error
            except Exception:  # noqa: BLE001 - whatever a batch does, the next one gets its chance
                _log.exception("a batch of %s with %d rows failed on %s", batch.model, batch.rows, self.label)
                failed = f"the batch of model {batch.model} failed on {self.label}; the server's log has the cause"
                outcomes = [ExecutionError(failed) for _ in batch.requests]
            self._busy_ns += self._clock() - batch.taken_ns
            with self._lock:
                self._running = None
                if self._given_up:
                    return
            if fault is not None:
                self._hand_over(batch, str(fault))
                return
            self._scheduler.complete(batch, outcomes)

    def _hand_over(self, batch: Batch, reason: str) -> None:
        """Let other devices run what this one could not."""
        self._lose(reason)  # first: neither the batch nor a client that retries must meet this device again
        lost = f"device {self.label} failed while it ran the batch; retry: other devices and replicas go on"
        again = self._scheduler.put_back(batch, DeviceLostError(lost))
        total = len(batch.requests)
        _log.warning("of %d requests of %s on %s, %d go to other devices", total, batch.model, self.label, again)

    def _lose(self, reason: str) -> None:
        self._scheduler.lose_device(self.label, reason)
        self._on_lost(self.label, reason)

    def _run(self, instance: Instance, batch: Batch) -> list[Answer]:
        instance.stage([request.rows for request in batch.requests])
        staged_ns = self._clock()
        outputs = instance.infer()
        inferred_ns = self._clock()
        # One copy frees the executor's buffer; the requests share it.
        parts = np.split(outputs.copy(), np.cumsum([len(request.rows) for request in batch.requests])[:-1])
        times = BatchTimes(batch.taken_ns, staged_ns, inferred_ns, self._clock())
        return [Answer(part, self.label, batch.rows, times) for part in parts]

    def _close(self, host: Host) -> None:
        try:
            host.close()
        except Exception:  # noqa: BLE001 - after a fault even giving back fails; the process still has to end in order
            _log.exception("closing device %s failed", self.label)
