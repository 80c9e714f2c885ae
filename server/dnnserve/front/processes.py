"""Several front ends on one port, each in a process of its own, and the scheduler's side of them.

The kernel deals connections out to whoever listens on the port (SO_REUSEPORT). One that dies takes its calls with it; its requests
are given up, and another is started. None of them holds anything that the others need.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dnnserve import errors
from dnnserve.catalog import ModelSpec, shorten
from dnnserve.channel import messages
from dnnserve.channel.port import Port, Scheduling
from dnnserve.config import ServerConfig
from dnnserve.envelope import ModelKey
from dnnserve.errors import RequestError, StartError, UnavailableError
from dnnserve.front.child import FrontAssignment
from dnnserve.front.service import CallsObserver, Counters
from dnnserve.processes.arena import Arena
from dnnserve.processes.child import FRONT_END, Child, Children
from dnnserve.processes.outbox import Outbox
from dnnserve.processes.parcel import Parcel
from dnnserve.processes.restarts import Restarts
from dnnserve.questions import Answer, Control
from dnnserve.shared_memory.regions import Regions
from dnnserve.shared_memory.requests import Registration

__all__ = ["FrontProcesses"]

_log = logging.getLogger(__name__)

_START_S = 60.0
_ANSWER_S = 2.0
_POLL_S = 0.02
_Answer = TypeVar("_Answer")


class FrontProcesses:
    """A `FrontEnd` of several processes. Thread-safe: `_lock` guards `_fronts`, `_models`, `_announced`, `_stopping`, `_assignment`
    and `_parcel`; `_serving` is held while front ends learn of models and regions.

    Args:
        config: Address, limits, and how many.
        scheduler: Where requests go.
        statistics: Counters of the models.
        on_calls_end: Told of the ends of calls: model, method, status, and what each took.
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
        control: Control,
        children: Children | None = None,
    ) -> None:
        self._behind = _Behind(scheduler, statistics, on_calls_end, control, {})
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
        self._restarts = [Restarts() for _ in range(config.front_ends)]
        self._fronts: list[_Front] = []
        try:
            for number in range(config.front_ends):
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
        for number in [number for number, spec in self._behind.models.items() if spec.key == model]:
            del self._behind.models[number]
        for front in self._all():
            front.tell(messages.Forget(model))

    def add_region(self, registration: Registration, fd: int) -> None:
        """Let requests speak of a region of shared memory, in every process.

        Raises:
            UnavailableError: one does not answer; then they may nowhere.
        """
        with self._serving:
            self._regions.add(registration, fd)
            silent = self._make_known(lambda ticket: messages.AddRegion(ticket, registration), [fd])
            if not silent:
                return
            self._regions.remove(registration.name)
            self._make_known(lambda ticket: messages.RemoveRegion(ticket, registration.name))
        raise UnavailableError(f"front end {silent[0].number} does not answer; the region is not registered: retry")

    def remove_region(self, name: str) -> None:
        """Let no further request speak of a region, in any process."""
        with self._serving:
            self._regions.remove(name)
            for front in self._make_known(lambda ticket: messages.RemoveRegion(ticket, name)):
                _log.warning("front end %d has not said that it knows region %s no more", front.number, shorten(name))

    def _make_known(self, message: Callable[[int], object], fds: Sequence[int] = ()) -> list[_Front]:
        """Tell all processes something of a region; those that have not said in time that they know. One that has ended need not:
        its successor learns of the regions that there are then.
        """
        ticket, fronts = next(self._tickets), self._all()
        for front in fronts:
            front.tell(message(ticket), fds)
        return [front for front in fronts if not front.knows(ticket) and not front.ended]

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
        numbers = {spec.key: number for number, spec in self._behind.models.items()}
        for spec in specs:
            if spec.key not in numbers:
                numbers[spec.key] = next(self._numbers)
                self._behind.models[numbers[spec.key]] = spec
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
        for front in self._fronts:
            front.tell(messages.Stop(grace_s))
        for front in self._fronts:
            front.close(grace_s)
        for guard in self._guards:
            guard.close()
        self._children.close()
        self._parcel.close()
        self._regions.close()

    def _all(self) -> list[_Front]:
        with self._lock:
            return list(self._fronts)

    def _begin(self, number: int) -> _Front:
        child = self._children.take()
        with self._lock, contextlib.suppress(OSError):  # it has ended, as the listener finds out
            child.tell(self._parcel)
        return _Front(child, self._behind, number, self._lost)

    def _lost(self, front: _Front, how: str, seconds: float) -> None:
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
            except OSError as error:  # no more processes, or descriptors, for now
                _log.error("front end %d cannot be started again: %s", front.number, error)
                continue
            with self._serving:
                try:
                    for region in self._regions.all():
                        successor.tell(messages.AddRegion(0, region.registration), [region.fd])
                    if self._models is not None:
                        successor.start(self._models)
                        successor.wait_started()
                except StartError as error:
                    _log.error("front end %d cannot be started again: %s", front.number, error)
                    successor.close(0.0)
                    continue
                with self._lock:
                    if successor.ended:  # and its own thread, which looks into the list, leaves it to this one
                        continue
                    self._fronts[front.number] = successor
                    announced, level = self._announced, self._assignment.config.log_level
            successor.tell(announced)
            successor.tell(messages.LogLevel(level))  # which may have changed since it was begun
            _log.info("front end %d is back, process %d", front.number, successor.pid)
            return
        _log.error("front end %d is not started any more", front.number)


@dataclass(frozen=True, slots=True, eq=False)
class _Behind:
    """What all processes share here. Immutable, but for `models`, whose operations are atomic: those there are, by number."""

    scheduler: Scheduling
    statistics: Counters
    on_calls_end: CallsObserver
    control: Control
    models: dict[int, ModelSpec]


class _Front:
    """One process, from here. Thread-safe."""

    def __init__(
        self, child: Child, behind: _Behind, number: int, on_lost: Callable[[_Front, str, float], None]
    ) -> None:
        self.number = number
        self._child = child
        self._behind = behind
        self._on_lost = on_lost
        self._outbox = Outbox(child.link, f"dnnserve-outbox-{number}")
        self._port: Port | None = None
        self._ended = False
        self._answers: dict[type, queue.SimpleQueue[Any]] = {
            kind: queue.SimpleQueue()
            for kind in (
                *(Arena, messages.Started, messages.Inside, messages.Served, messages.Held, messages.Known),
                messages.Stopped,
            )
        }
        self._why = ""
        self._listener = threading.Thread(target=self._listen, name=f"dnnserve-front-{number}", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def ended(self) -> bool:
        return self._ended

    def tell(self, message: object, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # it has ended, and the listener finds out
            self._child.link.send(message, fds)

    def start(self, models: messages.Models) -> None:
        """Have it take calls for these models.

        Raises:
            StartError: it has ended, or does not answer.
        """
        arena = self._wait(Arena, _START_S)
        self._port = Port(self._behind.scheduler, self._outbox, arena, self._behind.models)
        self.tell(messages.Start(models))

    def wait_started(self) -> str:
        return self._wait(messages.Started, _START_S).front_end

    def wait_served(self) -> None:
        self._wait(messages.Served, _ANSWER_S)

    def knows(self, ticket: int) -> bool:
        """Wait until it has said that it knows what it was told by this ticket; False: it does not say so."""
        try:
            while self._wait(messages.Known, _ANSWER_S).ticket != ticket:
                pass  # of something that was given up, or that it was told at its start
        except StartError:
            return False
        return True

    def holds(self, model: ModelKey) -> bool:
        if self._ended:
            return False
        self.tell(messages.Holds(model))
        try:
            while (answer := self._wait(messages.Held, _ANSWER_S)).model != model:
                pass  # the answer to a question that was given up
        except StartError:
            return not self._ended
        return answer.held

    def inside(self) -> int:
        if self._ended:
            return 0
        self.tell(messages.Count())
        try:
            return self._wait(messages.Inside, _ANSWER_S).calls
        except StartError:
            return 0

    def close(self, grace_s: float) -> None:
        with contextlib.suppress(StartError):
            self._wait(messages.Stopped, grace_s + _ANSWER_S)
        self._child.link.shut_down()
        if threading.current_thread() is not self._listener:
            self._listener.join()
        self._child.close()

    def _wait(self, kind: type[_Answer], timeout_s: float) -> _Answer:
        try:
            answer = self._answers[kind].get(timeout=timeout_s)
        except queue.Empty:
            raise StartError(f"front end {self.number} does not answer") from None
        if not isinstance(answer, kind):
            raise StartError(self._why or f"front end {self.number} has ended")
        return answer

    def _ask(self, asked: messages.Asked) -> None:
        def tell(answer: Answer) -> None:
            self._outbox.send(messages.Told(asked.ticket, answer))

        self._behind.control.ask(asked.question, tell)

    def _listen(self) -> None:
        began = time.monotonic()
        try:
            self._hear()
        except Exception:  # noqa: BLE001 - whatever it is, nobody would read what the process says
            _log.exception("front end %d, process %d, is given up", self.number, self.pid)
            self._child.kill()
        self._ended = True
        if self._port is not None:
            self._port.close()
        self._outbox.close()
        for waiting in self._answers.values():
            waiting.put(None)  # who waits gets no other answer
        how = self._child.wait()
        self._child.close()
        self._on_lost(self, how, time.monotonic() - began)

    def _hear(self) -> None:
        """Do what the process asks, until its end is closed. It sends nothing itself: it must go on reading."""
        while (received := self._child.link.receive()) is not None:
            message, fds = received
            if type(message) is tuple:
                assert self._port is not None
                self._port.take(message)
            elif isinstance(message, messages.CallsEnded):
                self._behind.on_calls_end(*message)
            elif isinstance(message, messages.Refusal):
                kind = getattr(errors, message.kind, RequestError)
                self._behind.statistics.record_refusal(message.model, kind(message.text), message.taken_ns)
            elif isinstance(message, messages.Snapshot):
                counters = self._behind.statistics.snapshot(message.model)
                self._outbox.send(messages.SnapshotOf(message.model, counters))
            elif isinstance(message, messages.Asked):
                self._ask(message)
            elif isinstance(message, messages.CannotStart):
                self._why = message.reason
            elif isinstance(message, messages.Arena):
                self._answers[Arena].put(Arena(fds[0]))
            else:
                self._answers[type(message)].put(message)


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
