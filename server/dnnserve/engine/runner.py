"""One thread per device: opens it, loads the models, runs batches, and closes it again in the same thread.

PyCUDA aborts the process when a context outlives its thread's work, so nothing here leaves the thread without `host.close()`.

Where a host runs batches beside this thread, the next one is copied in while one runs, and the last one is answered while the next
runs. What is taken ahead of time is full: a batch that could still grow waits for the device in its queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dnncore.errors import DeviceFaultError, OutOfMemoryError
from dnnserve.batch import Batch
from dnnserve.engine.host import Host, HostFactory
from dnnserve.engine.inventory import Inventory, LoadEnd
from dnnserve.engine.pipeline import Pipeline, Timing
from dnnserve.envelope import Answer, BatchTimes, ModelKey
from dnnserve.errors import DeviceLostError, DeviceMemoryError, ExecutionError
from dnnserve.processes.restarts import Restarts
from dnnserve.scheduler import Scheduler

__all__ = ["DeviceChanged", "Runner"]

_log = logging.getLogger(__name__)

_SHORTAGES = 5
"""So many batches in a row for which there was no memory, and a device that can be opened again is: what its context keeps goes."""
_SHORTAGE_S, _LONGEST_SHORTAGE_S, _DOUBLINGS = 0.02, 1.0, 6
"""A device without memory takes no batch for so long, twice as long each time: failing at once, it would draw all requests that
others could answer."""

_OPENING_NS = 3_000_000_000
"""What opening a lost device again takes, until one was: a process with its context and a model took 1.5 to 3 s."""

_LONGEST_OPENING_NS = 300_000_000_000
"""For which a lost device may take to be opened again before what waits for it is told that it does not come back: imports, a
context and weights from a slow disk take seconds, a driver that hangs takes for ever."""

DeviceChanged = Callable[[str, str | None], None]
"""Called with a device's label and the reason for which it is out of service, after the scheduler has counted it out; with None
once it is back."""


@dataclass(slots=True)
class _Flight:
    """A batch on its way through the device. Owned by one thread."""

    batch: Batch
    pipeline: Pipeline


class Runner:
    """Runs batches on one device. Thread-safe: `_lock` guards `_flights`, `_alone_ns`, `_hung`, `_lost_host` and `_given_up`; the
    device itself is touched by its own thread alone, which alone changes `_flights` and may read them without the lock.

    Models come and go between batches: what is loaded meanwhile is made beside them by the host.

    Args:
        label: The device's name in logs and metrics, unique among runners.
        device: The device's name for `open_host`.
        models: What to load, with the rows of a batch asked for.
        open_host: Opens the device; called in the runner's thread.
        scheduler: Where batches come from and completions go.
        on_change: Told when the device goes out of service, and when it is back.
        restarts: When a lost device is opened again; None: never, because its context ends only with this process.
        clock: The scheduler's clock.
        warm_up_ns: How long batches of all models are timed before the device takes requests.
    """

    def __init__(
        self,
        label: str,
        device: str,
        models: Mapping[ModelKey, int],
        open_host: HostFactory,
        scheduler: Scheduler,
        on_change: DeviceChanged = lambda _label, _reason: None,
        restarts: Restarts | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        warm_up_ns: int = 0,
    ) -> None:
        self.label = label
        self.device = device
        self._inventory = Inventory(label, models, scheduler, clock, warm_up_ns)
        self._open_host = open_host
        self._scheduler = scheduler
        self._on_change = on_change
        self._restarts = Restarts(limit=0) if restarts is None else restarts
        self._clock = clock
        self._warm_up_ns = warm_up_ns
        self._loaded = threading.Event()
        self._ending = threading.Event()
        self._load_error: Exception | None = None
        self._limits: Mapping[ModelKey, int] = {}
        self._host: Host | None = None
        self._lost_host: Host | None = None
        self._lock = threading.Lock()
        self._flights: deque[_Flight] = deque()  # what the device runs, and behind it what was taken ahead
        self._alone_ns: int | None = None  # since when the first has had the device to itself; None: it has ended
        self._hung = ""
        self._given_up = False
        self._entered_ns = 0  # when it went into service, or failed to; this, too, and what follows
        self._pause_s: float | None = None  # before a lost device is opened again; None: it is not
        self._opening_ns = _OPENING_NS
        self._opening_since_ns: int | None = None  # guarded by `_lock`, as `_host` is
        self._shortages = 0  # batches in a row for which there was no memory; of the runner's thread alone
        self._busy_ns = 0  # written by the runner's thread alone, as the next two are
        self._slot_bytes = self._apart_bytes = 0
        # A daemon, so that a device that hangs cannot keep a process alive which has been told to stop.
        self._thread = threading.Thread(target=self._main, name=f"dnnserve-{label}", daemon=True)

    @property
    def busy_seconds(self) -> float:
        """Time that the device computed batches since the start, with copies to it and from it."""
        return self._busy_ns / 1e9

    @property
    def input_bytes(self) -> Mapping[str, int]:
        """Bytes of the rows that the device was given, by where it read them: in a "slot" of page-locked memory that they had been
        copied into, or in the "arena" where a front end had put them.
        """
        return {"slot": self._slot_bytes, "arena": self._apart_bytes}

    @property
    def restarts(self) -> int:
        """How often the device was opened again."""
        return self._restarts.total

    @property
    def given_up(self) -> bool:
        """Whether the device was left alone in a batch that did not end."""
        with self._lock:
            return self._given_up

    @property
    def in_service(self) -> bool:
        """Whether the device is open and takes batches."""
        return self._inventory.in_service

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

    def load(self, model: ModelKey, rows: int, end: LoadEnd) -> None:
        """Load one more model beside those that run, and take its batches as soon as there are any; returns at once.

        Args:
            model: Which.
            rows: Of a batch; less is not enough.
            end: Told how it ended.
        """
        self._inventory.load(model, rows, end)

    def unload(self, model: ModelKey, end: Callable[[], None]) -> None:
        """Give the memory of a model back of which nothing runs or will; returns at once. One that is not there is no error.

        Args:
            model: Which.
            end: Told when it is done, in any thread.
        """
        self._inventory.unload(model, end)

    def look(self) -> None:
        """Find out whether what has the device still does anything; what stands still is killed, and the device opened again."""
        with self._lock:
            host, since_ns = self._host, self._opening_since_ns
            hangs = since_ns is not None and self._clock() - since_ns > _LONGEST_OPENING_NS
            if hangs:
                self._opening_since_ns = None
        if hangs:
            _log.error("device %s hangs while it is opened again", self.label)
            self._scheduler.lose_device(self.label, "it hangs while it is opened again")
            if host is not None:
                host.kill()
        elif host is not None and self.in_service:
            host.look()

    def give_up_when_stuck(self, limit_ns: int) -> bool:
        """Take the device out of service if its batch has run for longer than this: a kernel that never ends raises no error.

        Its batch and those that were taken ahead go to other devices. A host that can be killed is, and opened again; else the
        runner's thread stays where it is, and should it ever come back, it ends.
        """
        with self._lock:
            since_ns, now_ns = self._alone_ns, self._clock()
            if since_ns is None or self._given_up or now_ns - since_ns < limit_ns:
                return False
            batches = [flight.batch for flight in self._flights]
            hung, seconds = batches[0], (now_ns - since_ns) / 1e9
            self._hung = f"a batch of {hung.model} with {hung.rows} rows has not ended for {seconds:.1f} s"
            self._alone_ns = None
            if self._host is not None and self._host.kill():
                return True  # the runner's thread wakes up and finds out
            self._given_up = True
        self._hand_over(batches, self._hung, None)
        self._inventory.leave_service()
        return True

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end, after `Scheduler.stop`; False: it still runs. One that was given up is not waited for."""
        self._ending.set()
        if self.given_up:
            return True
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        pipelines: dict[ModelKey, Pipeline] | None
        try:
            try:
                pipelines = self._open()
                self._limits = {model: each.max_batch_rows for model, each in pipelines.items()}
                self._enter_service(pipelines)
            except Exception as error:  # noqa: BLE001 - handed over to wait_loaded
                self._load_error = error
                return
            finally:
                self._loaded.set()
            while pipelines is not None:
                try:
                    lost = self._serve()
                finally:
                    self._inventory.leave_service()
                if not lost:
                    return
                self._close()
                pipelines = self._open_again()
        except Exception as error:  # noqa: BLE001 - a runner that ends for any reason takes its device out of service
            _log.exception("the runner of device %s failed", self.label)
            self._lose(f"its runner failed: {error}", None)
        finally:
            self._close()

    def _open(self) -> dict[ModelKey, Pipeline]:
        host = self._open_host(self.device)
        with self._lock:
            self._host = host
        host.watch(lambda: self._scheduler.wake(self.label), lambda: self._on_loss(host))
        return {model: host.load(model, rows) for model, rows in self._inventory.wanted.items()}

    def _enter_service(self, pipelines: dict[ModelKey, Pipeline]) -> None:
        self._scheduler.add_device(self.label, self._time(pipelines))
        assert self._host is not None
        self._inventory.enter_service(self._host, pipelines)
        self._entered_ns = self._clock()

    def _interrupted(self) -> bool:
        """Whether there is something to do but batches."""
        return self._inventory.due or self._gone()

    def _expected_ns(self) -> int | None:
        """Count a loss, and say when the device will be in service again; None: it is not tried any more."""
        self._pause_s = self._restarts.after((self._clock() - self._entered_ns) / 1e9)
        return None if self._pause_s is None else self._clock() + int(self._pause_s * 1e9) + self._opening_ns

    def _open_again(self) -> dict[ModelKey, Pipeline] | None:
        """Bring a lost device back; None: it is not tried any more, or the server ends."""
        while (pause_s := self._pause_s) is not None:
            if self._ending.wait(pause_s):
                return None
            began_ns = self._clock()
            with self._lock:
                self._opening_since_ns = began_ns
            try:
                pipelines = self._open()
                self._check_room(pipelines)
                self._enter_service(pipelines)
                with self._lock:
                    self._opening_since_ns = None
            except Exception as error:  # noqa: BLE001 - whatever it was may be over the next time
                _log.exception("device %s could not be opened again", self.label)
                with self._lock:
                    self._opening_since_ns = None
                self._close()
                self._entered_ns = self._clock()
                self._scheduler.lose_device(self.label, f"it cannot be opened: {error}", self._expected_ns())
                continue
            self._opening_ns = self._clock() - began_ns
            self._on_change(self.label, None)
            return pipelines
        return None

    def _time(self, pipelines: Mapping[ModelKey, Pipeline]) -> Mapping[ModelKey, Mapping[int, int]]:
        """What batches take, by model and rows."""
        budget_ns = self._warm_up_ns // max(1, len(pipelines))
        return {model: each.time(budget_ns) for model, each in pipelines.items()}

    def _on_loss(self, host: Host) -> None:
        with self._lock:
            if self._host is not host:
                return  # it was closed
            self._lost_host = host
        self._scheduler.wake(self.label)

    def _gone(self) -> bool:
        """Whether the device was lost beside its batches."""
        return self._lost_host is not None and self._lost_host is self._host

    def _check_room(self, pipelines: Mapping[ModelKey, Pipeline]) -> None:
        """Requests were let in for the batches of the first start, and for those of models that were loaded later."""
        limits = {**self._inventory.wanted, **self._limits}
        smaller = [str(model) for model, each in pipelines.items() if each.max_batch_rows < limits.get(model, 0)]
        if smaller:
            raise OutOfMemoryError(f"no room any more for the batches of {', '.join(smaller)}")

    def _serve(self) -> bool:
        """Run batches until the scheduler has stopped, or the device was left alone (False), or it is lost (True)."""
        flights = self._flights
        while True:
            try:
                if not flights and self._interrupted() and not self._gone():
                    self._inventory.obey()
                batch = self._next()
                if batch is None and not flights:
                    if self._gone():
                        self._lose("it ended while nothing ran on it", self._expected_ns())
                        return True
                    if self._scheduler.stopped:
                        return False
                    continue
                if batch is not None:
                    if not self._begin(batch):
                        return False
                    continue
                ended = self._finish(flights[0])
                done = self._pass_on(None if isinstance(ended, Exception) else ended)
                if done is None:
                    return False
                if isinstance(ended, Exception):
                    self._fail(done.batch, ended)
                    continue
            except DeviceFaultError as error:
                with self._lock:
                    if self._given_up:
                        return False
                    reason, self._hung, self._alone_ns = self._hung or str(error), "", None
                    batches = [flight.batch for flight in flights]
                    flights.clear()
                _log.error("device %s is lost: %s", self.label, reason)
                self._hand_over(batches, reason, self._expected_ns())
                return True
            self._shortages = 0
            self._scheduler.complete(done.batch, self._answers(done, ended))

    def _next(self) -> Batch | None:
        """Wait for the batch to run next; None: what runs has ended, or there is something else to do before."""
        flights = self._flights
        if not flights:
            return self._scheduler.take(self.label, self._interrupted)
        oldest = flights[0].pipeline
        if self._shortages or len(flights) >= flights[-1].pipeline.depth:
            return None  # of a device that has no memory for one batch, none is taken ahead: it would never pause
        return self._scheduler.take_ahead(self.label, lambda: oldest.ended, self._interrupted)

    def _begin(self, batch: Batch) -> bool:
        """Stage a batch and begin to run it, behind those that are there; where that fails, it is answered so.

        Returns:
            Whether the device goes on; False: it was given up meanwhile.
        """
        with self._lock:
            given_up = self._given_up
            if not given_up:
                self._flights.append(flight := _Flight(batch, self._inventory.pipelines[batch.model]))
                if len(self._flights) == 1:
                    self._alone_ns = batch.taken_ns
        if given_up:  # between the moment in which it was taken and this one
            self._put_back([batch])
            return False
        try:
            flight.pipeline.stage([request.block for request in batch.requests])
            flight.pipeline.begin()
        except DeviceFaultError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a batch does, the next one gets its chance
            with self._lock:
                if self._given_up:
                    return False
                self._flights.pop()
                if not self._flights:
                    self._alone_ns = None
            self._fail(batch, error)
        return True

    def _finish(self, flight: _Flight) -> Timing | Exception:
        """Wait for a batch; why it failed, where it did."""
        try:
            return flight.pipeline.finish()
        except DeviceFaultError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return error

    def _answers(self, flight: _Flight, timing: Timing) -> Sequence[Answer]:
        """What each request of a batch is answered; outputs are in the blocks then."""
        batch, inferred_ns = flight.batch, self._clock()
        flight.pipeline.deliver()
        times = BatchTimes(batch.taken_ns, timing.staged_ns, inferred_ns, self._clock())
        return [Answer(self.label, batch.rows, times)] * len(batch.requests)

    def _fail(self, batch: Batch, error: Exception) -> None:
        """Answer a batch that failed alone, or have it repeated."""
        if isinstance(error, OutOfMemoryError):
            self._repeat(batch, error)
            return
        _log.error("a batch of %s with %d rows failed on %s", batch.model, batch.rows, self.label, exc_info=error)
        failed = f"the batch of model {batch.model} failed on {self.label}; the server's log has the cause"
        self._scheduler.complete(batch, [ExecutionError(failed) for _ in batch.requests])

    def _repeat(self, batch: Batch, error: OutOfMemoryError) -> None:
        """Queue a batch again for which there was no memory: that says nothing about its requests.

        Raises:
            DeviceFaultError: there was none for too many in a row.
        """
        full = f"device {self.label} had no memory for the batch; retry: other devices and replicas go on"
        again = self._scheduler.put_back(batch, DeviceMemoryError(full))
        counts = len(batch.requests), batch.model, self.label, again
        _log.warning("no memory for %d requests of %s on %s, of which %d are tried again: %s", *counts, error)
        self._shortages += 1
        if self._shortages >= _SHORTAGES and self._restarts.limit:
            in_a_row, self._shortages = self._shortages, 0
            self._close()  # first: it may be at work on the next batch, whose blocks go to others
            raise DeviceFaultError(f"it had no memory for {in_a_row} batches in a row: {error}")
        if not self._flights:
            doubled = min(self._shortages - 1, _DOUBLINGS)
            self._ending.wait(min(_SHORTAGE_S * 2**doubled, _LONGEST_SHORTAGE_S))

    def _pass_on(self, timing: Timing | None) -> _Flight | None:
        """Let the next batch be the one that runs; the one that has ended, or None: the device was given up meanwhile, and others
        answer.
        """
        now_ns = self._clock()
        with self._lock:
            if self._given_up:
                return None
            if timing is not None:
                self._busy_ns += timing.computed_ns
                self._slot_bytes += timing.slot_bytes
                self._apart_bytes += timing.apart_bytes
            done = self._flights.popleft()
            self._alone_ns = now_ns if self._flights else None
        return done

    def _hand_over(self, batches: Sequence[Batch], reason: str, back_ns: int | None) -> None:
        """Let other devices run what this one could not, or this one when it is back."""
        self._lose(reason, back_ns)  # first: neither the batches nor a client that retries must meet this device again
        self._put_back(batches)

    def _put_back(self, batches: Sequence[Batch]) -> None:
        lost = f"device {self.label} failed while it ran the batch; retry: other devices and replicas go on"
        for batch in reversed(batches):  # each goes to the head of its queue
            again = self._scheduler.put_back(batch, DeviceLostError(lost))
            total = len(batch.requests)
            _log.warning("of %d requests of %s on %s, %d are tried again", total, batch.model, self.label, again)

    def _lose(self, reason: str, back_ns: int | None) -> None:
        """Count the device out until a moment, or for good."""
        self._scheduler.lose_device(self.label, reason, back_ns)
        self._on_change(self.label, reason)

    def _close(self) -> None:
        with self._lock:
            host, self._host = self._host, None
        try:
            if host is not None:
                host.close()
        except Exception:  # noqa: BLE001 - after a fault even giving back fails; the process still has to end in order
            _log.exception("closing device %s failed", self.label)
