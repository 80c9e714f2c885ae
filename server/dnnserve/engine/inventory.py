"""The models of one device: those that are there, those that are being loaded beside them, and what was ordered."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from dnncore.errors import DeviceFaultError
from dnnserve.engine.host import Host
from dnnserve.engine.pipeline import Pipeline
from dnnserve.envelope import ModelKey
from dnnserve.errors import DeviceLostError
from dnnserve.scheduler import Scheduler

__all__ = ["Inventory", "LoadEnd"]

LoadEnd = Callable[[int | Exception | None], None]
"""Called, in any thread, at the end of a load: with the rows that a batch may have, or with the error; with None where the device
is not in service, and will have the model when it is back."""

_LOOK_NS = 20_000_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Load:
    """A model to be loaded. Immutable."""

    model: ModelKey
    rows: int
    end: LoadEnd


@dataclass(frozen=True, slots=True)
class _Unload:
    """A model to be unloaded. Immutable."""

    model: ModelKey
    end: Callable[[], None]


class Inventory:
    """Takes orders and carries them out between batches. Thread-safe: `_lock` guards `_wanted`, `_late`, `_orders` and
    `_in_service`; the rest belongs to the device's thread.

    A model that is ordered while the device is out of service is loaded when it is back, as one that is ordered in service: there
    must be room for all its batches. Where there is none the device goes on without it, and the log says so.

    Args:
        label: Of the device.
        models: What it has when it is opened, with the rows of a batch asked for.
        scheduler: Told which batches the device takes.
        clock: Monotonic nanoseconds.
        warm_up_ns: How long the batches of a model that comes later are timed.
    """

    def __init__(
        self,
        label: str,
        models: Mapping[ModelKey, int],
        scheduler: Scheduler,
        clock: Callable[[], int],
        warm_up_ns: int,
    ) -> None:
        self.pipelines: dict[ModelKey, Pipeline] = {}
        """What is there, while the device is in service."""
        self._label = label
        self._scheduler = scheduler
        self._clock = clock
        self._warm_up_ns = warm_up_ns
        self._lock = threading.Lock()
        self._wanted = dict(models)
        self._late: dict[ModelKey, int] = {}  # ordered while the device was out of service, with the rows of a batch
        self._orders: deque[_Load | _Unload] = deque()
        self._in_service = False
        self._loading: dict[ModelKey, _Load] = {}
        self._looked_ns = 0
        self._host: Host | None = None

    @property
    def wanted(self) -> dict[ModelKey, int]:
        """What the device had and shall have again when it is opened, with the rows of a batch."""
        with self._lock:
            return dict(self._wanted)

    @property
    def in_service(self) -> bool:
        """Whether orders are carried out; else they wait until the device is back."""
        return self._in_service

    def load(self, model: ModelKey, rows: int, end: LoadEnd) -> None:
        """Load one more model beside those that run; returns at once."""
        with self._lock:
            in_service = self._in_service
            if in_service:
                self._orders.append(_Load(model, rows, end))
            else:
                self._late[model] = rows
        if in_service:
            self._scheduler.wake(self._label)
        else:
            end(None)

    def unload(self, model: ModelKey, end: Callable[[], None]) -> None:
        """Give a model's memory back of which nothing runs or will; returns at once. One that is not there is no error."""
        with self._lock:
            in_service = self._in_service
            self._wanted.pop(model, None)
            self._late.pop(model, None)
            if in_service:
                self._orders.append(_Unload(model, end))
        if in_service:
            self._scheduler.wake(self._label)
        else:
            end()

    # What follows is called in the device's thread.

    @property
    def due(self) -> bool:
        """Whether there is something to do."""
        return bool(self._orders) or (bool(self._loading) and self._clock() - self._looked_ns >= _LOOK_NS)

    def enter_service(self, host: Host, pipelines: dict[ModelKey, Pipeline]) -> None:
        """Carry orders out from now on; what was ordered while the device was out of service comes first."""
        self._host, self.pipelines = host, pipelines
        with self._lock:
            self._in_service = True
            self._orders += [
                _Load(model, rows, partial(self._end_late, model, rows)) for model, rows in self._late.items()
            ]
            self._late.clear()
            for model in pipelines.keys() - self._wanted.keys():
                self._orders.append(_Unload(model, lambda: None))

    def leave_service(self) -> None:
        """The device is lost, or the server ends: loads have failed with it, and models are unloaded. A second call does nothing;
        of a device that hangs, another thread says so."""
        with self._lock:
            self._in_service = False
            orders = [*self._loading.values(), *self._orders]
            self._orders.clear()
        self._loading.clear()
        self._host, self.pipelines = None, {}
        for order in orders:
            if isinstance(order, _Load):
                lost = f"device {self._label} went out of service while {order.model} was being loaded"
                order.end(DeviceLostError(lost))
            else:
                with self._lock:
                    self._late.pop(order.model, None)  # its load, which has ended just now, has asked for it again
                order.end()

    def obey(self) -> None:
        """Begin and end loads, unload; nothing runs on the device.

        Raises:
            DeviceFaultError: the device is lost.
        """
        self._looked_ns = self._clock()
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, _Unload):
                self._unload(order)
            else:
                self._begin(order)
        for order in list(self._loading.values()):
            self._look_after(order)

    def _unload(self, order: _Unload) -> None:
        assert self._host is not None
        self._scheduler.displace(self._label, order.model)
        self._loading.pop(order.model, None)  # given up: the host keeps what may come of it until the device is closed
        try:
            if self.pipelines.pop(order.model, None) is not None:
                self._host.unload(order.model)
        except DeviceFaultError:
            raise
        except Exception:  # noqa: BLE001 - the model's end, not the device's
            _log.exception("%s could not be unloaded from %s in order", order.model, self._label)
        finally:  # also where the device is lost, and the model with it
            order.end()

    def _begin(self, order: _Load) -> None:
        assert self._host is not None
        with self._ending(order):
            self._host.begin_load(order.model, order.rows, self._warm_up_ns)
            self._loading[order.model] = order
            if len(self._loading) == 1:
                threading.Thread(target=self._tick, name=f"dnnserve-ticks-{self._label}", daemon=True).start()

    def _look_after(self, order: _Load) -> None:
        assert self._host is not None
        with self._ending(order):
            fresh = self._host.loaded(order.model)
            if fresh is not None:
                del self._loading[order.model]
                self.pipelines[order.model] = fresh.pipeline
                with self._lock:
                    self._wanted[order.model] = order.rows
                self._scheduler.place(self._label, order.model, fresh.timings_ns)
                order.end(fresh.pipeline.max_batch_rows)

    def _end_late(self, model: ModelKey, rows: int, end: int | Exception | None) -> None:
        """The end of a load that was ordered while the device was out of service; who ordered it waits for it no more."""
        if isinstance(end, DeviceFaultError | DeviceLostError):
            with self._lock:
                self._late[model] = rows
        elif isinstance(end, Exception):
            _log.error("device %s is back without model %s, which came meanwhile: %s", self._label, model, end)

    @contextmanager
    def _ending(self, order: _Load) -> Iterator[None]:
        """End a load that fails; the device goes on, unless it is lost."""
        try:
            yield
        except DeviceFaultError as error:
            self._loading.pop(order.model, None)
            order.end(error)
            raise
        except Exception as error:  # noqa: BLE001 - the model's, or that there is no room for it
            self._loading.pop(order.model, None)
            order.end(error)

    def _tick(self) -> None:
        """Have the device's thread look after what is being loaded, also while there is nothing else to do."""
        while self._loading:
            time.sleep(_LOOK_NS / 1e9)
            self._scheduler.wake(self._label)
