"""Several front ends on one port, each in a process of its own.

The kernel deals connections out to whoever listens on the port (SO_REUSEPORT). One that dies takes its calls with it; its requests
are given up, and another is started. None of them holds anything that the others need.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dnnserve.catalog import ModelSpec, shorten
from dnnserve.channel import messages
from dnnserve.channel.port import Scheduling
from dnnserve.config import ServerConfig
from dnnserve.connections import RefusalsObserver
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError, UnavailableError
from dnnserve.front.child import FrontAssignment
from dnnserve.front.process import FrontProcess, Shared
from dnnserve.front.service import CallsObserver, Counters
from dnnserve.garbage import collect_after_a_loss
from dnnserve.processes.child import FRONT_END, Children
from dnnserve.processes.parcel import Parcel
from dnnserve.processes.receiver import Receiver
from dnnserve.processes.restarts import Restarts
from dnnserve.processes.signs_of_life import LOOK_S, Regularly
from dnnserve.questions import Control
from dnnserve.shared_memory.regions import Regions
from dnnserve.shared_memory.requests import Registration

__all__ = ["FrontProcesses"]

_log = logging.getLogger(__name__)

_POLL_S = 0.02


class FrontProcesses:
    """A `FrontEnd` of several processes. Thread-safe: `_lock` guards `_fronts`, `_models`, `_announced`, `_stopping`, `_assignment`
    and `_parcel`; `_serving` is held while front ends learn of models and regions.

    Args:
        config: Address, limits, and how many.
        scheduler: Where requests go.
        statistics: Counters of the models.
        on_calls_end: Told of the ends of calls: model, method, status, and what each took.
        on_refused: Told of connections that are closed again.
        control: The server.
        children: Processes that were begun, which this takes over, and what to run in others.

    Raises:
        StartError: the port cannot be had.
    """

    def __init__(
        self,
        config: ServerConfig,
        scheduler: Scheduling,
        statistics: Counters,
        on_calls_end: CallsObserver,
        on_refused: RefusalsObserver,
        control: Control,
        children: Children | None = None,
    ) -> None:
        self._receiver = Receiver("dnnserve-fronts")
        self._shared = Shared(scheduler, statistics, on_calls_end, on_refused, control, {}, self._receiver)
        self._children = children or Children(FRONT_END)
        self._numbers = itertools.count()
        self._tickets = itertools.count(1)
        self._regions = Regions()
        self._serving = threading.Lock()  # one `serve` or `start` of a successor at a time, or change of regions
        self._guards = [_reserve(config.host, config.grpc_port, "gRPC", "--grpc-port")]
        if config.http_port is not None:
            try:
                self._guards.append(_reserve(config.host, config.http_port, "HTTP", "--http-port"))
            except StartError:
                self._guards[0].close()
                raise
        ports = [int(guard.getsockname()[1]) for guard in self._guards]
        grpc_port, http_port = ports[0], ports[1] if len(ports) > 1 else None
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.address = f"{host}:{grpc_port}"
        self.http_address = None if http_port is None else f"{host}:{http_port}"
        own = replace(config, grpc_port=grpc_port, http_port=http_port)
        self._assignment = FrontAssignment(own, config.front_memory_mib << 20)
        self._parcel = Parcel(self._assignment)
        self._lock = threading.Lock()
        self._models: messages.Models | None = None
        self._announced = messages.Announce(False, False)
        self._stopping = False
        self._restarts = [Restarts() for _ in range(config.num_front_ends)]
        self._fronts: list[FrontProcess] = []
        self._watch = Regularly("dnnserve-front-watch", LOOK_S, self.look)
        try:
            for number in range(config.num_front_ends):
                self._fronts.append(self._begin(number))
        except BaseException:
            self.stop(0.0)
            raise
        self.kind = config.front_end

    @property
    def inside(self) -> int:
        """Calls that were taken in and whose answers have not been sent."""
        return sum(front.inside() for front in self._all())

    @property
    def restarts(self) -> int:
        """How often a process was started again."""
        return sum(each.total for each in self._restarts)

    def start(self, specs: Sequence[ModelSpec]) -> None:
        """Begin to take calls for these models.

        Raises:
            StartError: a process cannot serve on the port.
        """
        with self._serving:
            models = self._numbered(specs)
            fronts = self._all()
            for front in fronts:
                front.start(models)
        for front in fronts:
            self.kind = front.wait_started()
        self._watch.start()

    def look(self) -> None:
        """Ask all processes for signs of life; one that gives none is killed, and so started again."""
        for front in self._all():
            front.look()

    def serve(self, specs: Sequence[ModelSpec]) -> None:
        """Give requests to these models from now on, and to no others; it holds for every call that comes after this returns."""
        with self._serving:
            models = self._numbered(specs)
            fronts = self._all()
            for front in fronts:
                front.tell(messages.Serve(models))
            for front in fronts:
                with contextlib.suppress(StartError):  # it has ended, and its successor learns of these
                    front.wait_served()

    def holds(self, model: ModelKey) -> bool:
        """Whether a request was given to a model that `serve` has taken back, and has no answer yet."""
        return any(front.holds(model) for front in self._all())

    def forget(self, model: ModelKey) -> None:
        """A model is gone, and nothing holds it."""
        for number in [number for number, spec in self._shared.models.items() if spec.key == model]:
            del self._shared.models[number]
        for front in self._all():
            front.tell(messages.Forget(model))

    def add_region(self, registration: Registration, fd: int) -> None:
        """Let requests speak of a region of shared memory, in every process.

        Raises:
            UnavailableError: one does not answer, or has no descriptor left; then they may nowhere.
        """
        with self._serving:
            self._regions.add(registration, fd)
            failures = self._make_known(lambda ticket: messages.AddRegion(ticket, registration), [fd])
            if not failures:
                return
            self._regions.remove(registration.name)
            self._make_known(lambda ticket: messages.RemoveRegion(ticket, registration.name))
        raise UnavailableError(f"{failures[0]}; the region is not registered: retry")

    def remove_region(self, name: str) -> None:
        """Let no further request speak of a region, in any process."""
        with self._serving:
            self._regions.remove(name)
            for failure in self._make_known(lambda ticket: messages.RemoveRegion(ticket, name)):
                _log.warning("region %s may be known still: %s", shorten(name), failure)

    def _make_known(self, message: Callable[[int], object], fds: Sequence[int] = ()) -> list[StartError]:
        """Tell all processes something of a region; why some do not know it. One that has ended need not: its successor learns of
        the regions that there are then.
        """
        ticket, told = next(self._tickets), []
        failures = []
        for front in self._all():
            try:
                front.tell(message(ticket), fds)
                told.append(front)
            except OSError as error:
                failures.append(StartError(f"front end {front.number} cannot be told: {error.strerror}"))
        for front in told:
            try:
                front.wait_known(ticket)
            except StartError as failure:
                if not front.ended:
                    failures.append(failure)
        return failures

    def set_log_level(self, level: str) -> None:
        """Log from this level up; those that are started again do so from their start."""
        with self._lock:
            config = replace(self._assignment.config, log_level=level)
            self._assignment = replace(self._assignment, config=config)
            self._parcel.close()
            self._parcel = Parcel(self._assignment)
        for front in self._all():
            front.tell(messages.LogLevel(level))

    def _numbered(self, specs: Sequence[ModelSpec]) -> messages.Models:
        """What is served from now on; a model that is there already keeps its number."""
        numbers = {spec.key: number for number, spec in self._shared.models.items()}
        for spec in specs:
            if spec.key not in numbers:
                numbers[spec.key] = next(self._numbers)
                self._shared.models[numbers[spec.key]] = spec
        with self._lock:
            self._models = tuple((numbers[spec.key], spec) for spec in specs)
            return self._models

    def announce(self, serving: bool, *, final: bool = False) -> None:
        """Say by the health service whether requests are answered; nothing is said after the final word."""
        with self._lock:
            if not self._announced.final:
                self._announced = messages.Announce(serving and not final, final)
        for front in self._all():
            front.tell(self._announced)

    def close_port(self, grace_s: float) -> None:
        """Take no new connections and send clients elsewhere; calls that are inside have so long to end."""
        with self._lock:
            self._stopping = True
        for front in self._all():
            front.tell(messages.ClosePort(grace_s))

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no call is inside; False: some still are."""
        give_up = time.monotonic() + timeout_s
        while self.inside:
            if time.monotonic() >= give_up:
                return False
            time.sleep(_POLL_S)
        return True

    def stop(self, grace_s: float) -> None:
        """End what is still open after so long, and give the port back."""
        with self._lock:
            self._stopping = True
        self._watch.stop()
        for front in self._fronts:
            front.tell(messages.Stop(grace_s))
        for front in self._fronts:
            front.close(grace_s)
        self._receiver.close()
        for guard in self._guards:
            guard.close()
        self._children.close()
        self._parcel.close()
        self._regions.close()

    def _all(self) -> list[FrontProcess]:
        with self._lock:
            return list(self._fronts)

    def _begin(self, number: int) -> FrontProcess:
        child = self._children.take()
        try:
            with self._lock, contextlib.suppress(OSError):  # it has ended, as the listener finds out
                child.tell(self._parcel)
            return FrontProcess(child, self._shared, number, self._lost)
        except BaseException:
            child.close()
            raise

    def _lost(self, front: FrontProcess, how: str, seconds: float) -> None:
        """Start another one in the place of a process that has ended; called by the thread that listened to it."""
        with self._lock:
            if self._stopping or front not in self._fronts:  # the latter was being started, and who starts it knows
                return
        _log.error("front end %d, process %d, ended by %s", front.number, front.pid, how)
        while (wait_s := self._restarts[front.number].after(seconds)) is not None:
            time.sleep(wait_s)
            with self._lock:
                if self._stopping:
                    return
            seconds = 0.0
            try:
                successor = self._begin(front.number)
            except Exception:  # noqa: BLE001 - no more processes, descriptors or threads, for now
                _log.exception("front end %d cannot be started again", front.number)
                continue
            with self._serving:
                try:
                    for region in self._regions.all():
                        successor.tell(messages.AddRegion(0, region.registration), [region.fd])
                    if self._models is not None:
                        successor.start(self._models)
                        successor.wait_started()
                except Exception:  # noqa: BLE001 - whatever it is, nobody else would try again
                    _log.exception("front end %d cannot be started again", front.number)
                    successor.close(0.0)
                    continue
                with self._lock:
                    if successor.ended:  # and its own thread, which looks into the list, leaves it to this one
                        continue
                    stopping = self._stopping
                    if not stopping:
                        self._fronts[front.number] = successor
                    announced, level = self._announced, self._assignment.config.log_level
            if stopping:  # who stops all has looked into the list already
                successor.tell(messages.Stop(0.0))
                successor.close(0.0)
                return
            successor.tell(announced)
            successor.tell(messages.LogLevel(level))  # which may have changed since it was begun
            _log.info("front end %d is back, process %d", front.number, successor.pid)
            collect_after_a_loss()
            return
        _log.error("front end %d is not started any more", front.number)


def _reserve(host: str, port: int, protocol: str, flag: str) -> socket.socket:
    """A socket that keeps a port for those of us who share it.

    Raises:
        StartError: the port is in use, also by another server that shares it among its own.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    guard = socket.socket(family, socket.SOCK_STREAM)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:  # refused wherever anybody has the port
            probe.bind((host, port))
        guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        guard.bind((host, port))
    except OSError as error:
        guard.close()
        raise StartError(
            f"{protocol} port {host}:{port} cannot be had: it is in use or not ours to take; choose another with {flag}"
        ) from error
    return guard
