"""The fast lane: unary calls straight from gRPC's core, without a thread, a condition or a future for any of them.

grpcio's public server hands each call to a thread of a pool, which waits for the request and then for its answer; that costs
several times what the core itself takes. Here one thread polls a completion queue of our own on the same core server, gives each
request to its handler as bytes, and the answer is sent by the thread that has it. A call whose request never comes costs memory
and no thread; a deadline and a cancellation are plain data.

An operation that is begun on a queue which was shut down ends the process: the core checks, and aborts. Any thread that has an
answer begins one, at any time. So the lane's thread shuts the queue down itself, and only when nobody can begin an operation any
more: the stopped server has given back every call that it was asked for, and all calls have ended and have been answered.

This is the only module that uses what grpcio does not promise: its Cython classes, and the core server within `grpc.server`.
Releases 1.64 to 1.85 have them. `probe` tries them all on a server of its own, so that another release is found out at the start.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import grpc

from dnnserve.errors import QueueFullError, UnreadMessageError
from dnnserve.front.answers import Answers
from dnnserve.front.authorization import Objection
from dnnserve.front.call import Call, Handler, Methods, Trailer, deadline_after
from dnnserve.front.door import Door, Verdict
from dnnserve.front.gate import Gate
from dnnserve.scheduling.outlook import Outlook

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, and in no stub
except ImportError:  # probe says so
    cygrpc = None

__all__ = ["Lane", "probe"]

_log = logging.getLogger(__name__)

_PROBE_PATH = "/dnnserve.Probe/Echo"
_PROBE_S = 5.0
_CLOSE_S = 2.0
_PAST = 0.0  # a deadline: only what has come already
_ACCEPTING = 64  # calls of a method that the core may hand over before it is asked for more
_TURNS = 64  # events after which requests are asked for, though there may be more events
_ASKED = 8  # for so many


class Gathering(Protocol):
    """What is used here of `intake.Intake`.

    Attributes:
        holds: Whether something has been gathered.
    """

    holds: bool

    def flush(self) -> None:
        """Let it go; what the calling thread submits from now on is gathered."""


class Lane:
    """Takes unary calls of a `grpc.server` over a completion queue of its own. Thread-safe; handlers run in its one thread, to
    which `open` and `asked` belong. Operations on `unanswered` are atomic.

    Args:
        server: Not started yet; it is started before `start` and stopped before `close`.
        methods: Handlers by path.
        gate: Counts the calls whose request has come.
        answers: Through which answers are sent.
        refuse: Ends a call for which there is no room, or that may not pass.
        objection: What is said against a call before its request is read.
        gathering: What handlers gather in the lane's thread, and let go when all that has come has been handled.
        door: Says which calls are turned away before their requests are read.
        hurried: Paths of methods whose calls come to the door; the others are let in.
        max_calls: Calls that may be open at the same time, those included whose request has not come.
        clock: Monotonic nanoseconds.

    Attributes:
        asked: Calls that the core was asked for and has neither handed over nor, as it stops, given back.
        open: Calls that were handed over and have not ended.
        unanswered: Calls of which somebody may begin an operation: their answer has not been sent.
    """

    def __init__(
        self,
        server: grpc.Server,
        methods: Methods,
        gate: Gate,
        answers: Answers,
        refuse: Callable[[Call, Exception], None],
        objection: Objection,
        gathering: Gathering,
        door: Door,
        hurried: Collection[str],
        max_calls: int,
        clock: Callable[[], int],
    ) -> None:
        self.gate = gate
        self.answers = answers
        self.clock = clock
        self.refuse = refuse
        self.objection = objection
        self.max_calls = max_calls
        self.asked = self.open = 0
        self.unanswered: set[_LaneCall] = set()
        self.waiting = _Waiting()
        self.door = door
        self._gathering = gathering
        self.queue = cygrpc.CompletionQueue()
        self.core = server._state.server  # type: ignore[attr-defined]
        self.core.register_completion_queue(self.queue)
        for path in methods:
            self.core.register_method(path)
        self._methods = [_Method(self, path, handle, hurried=path in hurried) for path, handle in methods.items()]
        self._thread = threading.Thread(target=self._poll, name="dnnserve-lane", daemon=True)

    def start(self) -> None:
        """Begin to take calls; the server has been started."""
        for method in self._methods:
            for _ in range(_ACCEPTING):
                method.ask_for_call()
        self._thread.start()

    def close(self) -> bool:
        """Wait for the end of the thread, the server having stopped; False: calls have not ended, or have not been answered.

        Then it goes on until they are.
        """
        if self._thread.ident is None:
            return True  # it was never started
        self._thread.join(_CLOSE_S)
        return not self._thread.is_alive()

    def _poll(self) -> None:
        poll, gathering, door, waiting = self.queue.poll, self._gathering, self.door, self.waiting
        ended, nothing = cygrpc.CompletionType.queue_shutdown, cygrpc.CompletionType.queue_timeout
        gathering.flush()
        turns, busy = 0, False
        while True:
            event = poll(_PAST if busy else None)
            if event.completion_type == nothing:
                gathering.flush()
                door.flush()
                self._ask()
                turns, busy = 0, gathering.holds or door.holds or bool(waiting)
                continue
            if not busy:  # there was nothing, and then there was this
                door.rested(self.clock())
                busy = True
            if event.completion_type == ended:
                gathering.flush()
                door.flush()
                return
            try:
                event.tag(event)
            except Exception:  # noqa: BLE001 - whatever a call does, the next one gets its chance
                _log.exception("an event of the fast lane failed")
            event = None  # before polling again: it may hold the last reference to a call, whose end is an event
            if not self.asked and not self.open and not self.unanswered:
                self.queue.shutdown()
            if waiting and (turns := turns + 1) >= _TURNS:
                self._ask()
                turns = 0

    def _ask(self) -> None:
        """Ask for the requests of calls that wait, the newest first; those that have waited for too long are turned away."""
        waiting, now_ns = self.waiting, self.clock()
        try:
            while not self.answers.holding and (call := waiting.overdue(now_ns)) is not None:
                verdict = self.door.gives_up(call, now_ns)
                if verdict is None:
                    call.receive()
                else:
                    call.turn_away(verdict)
            for _ in range(min(_ASKED, len(waiting))):
                waiting.newest().receive()
        except Exception:  # noqa: BLE001 - as with events: gRPC ends the call that failed, and the others get their chance
            _log.exception("a call of the fast lane that waited could not be gone on with")

    def turn_away(self, call: Any, verdict: Verdict) -> None:
        """End a call of which nothing has been asked by one batch of operations, which is one event."""
        code, text, trailers = verdict
        call.start_server_batch(
            (
                cygrpc.SendInitialMetadataOperation(None, 0),
                cygrpc.SendStatusFromServerOperation(trailers, code, text, 0),
                cygrpc.ReceiveCloseOnServerOperation(0),
            ),
            self._turned_away,
        )

    def _turned_away(self, _event: Any) -> None:
        self.open -= 1


class _Method:
    """One method, whose calls the lane takes. Owned by the lane's thread."""

    __slots__ = ("_hurried", "_lane", "_path", "handle", "name")

    def __init__(self, lane: Lane, path: str, handle: Handler, *, hurried: bool) -> None:
        self._hurried = hurried
        self.name = path.rpartition("/")[2]
        self.handle = handle
        self._lane = lane
        self._path = path

    def ask_for_call(self) -> None:
        """Let the core hand over one more call."""
        lane = self._lane
        error = lane.core.request_registered_call(lane.queue, lane.queue, self._path, self._accept)
        if error != cygrpc.CallError.ok:
            raise RuntimeError(f"gRPC's core takes no calls of {self._path}: its error {error}")
        lane.asked += 1

    def _accept(self, event: Any) -> None:
        self._lane.asked -= 1
        if not event.success:
            return  # the server is shutting down
        try:
            self.ask_for_call()  # first: whatever becomes of this call, there is a place for another
        except ValueError:
            _log.debug("the server is shutting down and takes no more calls of %s", self._path)
        lane = self._lane
        lane.open += 1
        arrival_ns = lane.clock()
        # By the wall clock, so it is turned at once into what is left: a clock that is set later moves no deadline.
        deadline_ns = deadline_after(arrival_ns, event.call_details.deadline - time.time())
        error: Exception | None
        if lane.open > lane.max_calls:
            error = QueueFullError(f"{lane.max_calls} calls are open, as many as may; retry later or elsewhere")
        else:
            error = lane.objection(self._path, event.invocation_metadata)
        if error is None and self._hurried and not lane.answers.holding:
            verdict = lane.door.verdict(self.name, arrival_ns, deadline_ns, event.invocation_metadata)
            if verdict is not None:
                lane.turn_away(event.call, verdict)
                return
        call = _LaneCall(lane, self, event, arrival_ns, deadline_ns)
        lane.unanswered.add(call)
        if error is None:
            if (
                self._hurried
                and deadline_ns is not None
                and lane.door.lags(arrival_ns)
                and not lane.answers.holding
                and not lane.door.is_urgent(event.invocation_metadata)
            ):
                lane.waiting.add(call, lane.door.waits_until_ns(arrival_ns, deadline_ns))
            else:
                call.receive()
        else:
            call.receive_nothing()
            lane.refuse(call, error)


class _LaneCall:
    """A `Call` of the lane. Thread-safe: what the lane's thread and others share is written once."""

    __slots__ = (
        "_act",
        "_call",
        "_handle",
        "_lane",
        "_taken",
        "arrival_ns",
        "cancelled",
        "deadline_ns",
        "metadata",
        "method",
    )

    def __init__(self, lane: Lane, method: _Method, event: Any, arrival_ns: int, deadline_ns: int | None) -> None:
        self.method = method.name
        self.arrival_ns = arrival_ns
        self.deadline_ns = deadline_ns
        self.metadata = event.invocation_metadata
        self.cancelled = False
        self._lane = lane
        self._call = event.call
        self._handle = method.handle
        self._taken = False
        self._act: Callable[[], None] | None = None

    def receive(self) -> None:
        """Ask for the request and for word of the call's end."""
        self._call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), self._received)
        self.receive_nothing()

    def turn_away(self, verdict: Verdict) -> None:
        """End it unread, instead of `receive`."""
        self._lane.turn_away(self._call, verdict)
        self._lane.unanswered.discard(self)

    def receive_nothing(self) -> None:
        """Ask for word of the call's end alone."""
        self._call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(0),), self._closed)

    def peer(self) -> str:
        return str(self._call.peer().decode())

    def on_cancel(self, act: Callable[[], None]) -> None:
        self._act = act
        if self.cancelled:  # written before `_act` is read there, so one of the two threads sees the other's
            act()

    def finish(self, response: bytes) -> None:
        self._send(
            (
                cygrpc.SendInitialMetadataOperation(None, 0),
                cygrpc.SendMessageOperation(response, 0),
                cygrpc.SendStatusFromServerOperation(None, cygrpc.StatusCode.ok, b"", 0),
            )
        )

    def fail(self, code: grpc.StatusCode, text: str, trailers: Sequence[Trailer] = ()) -> None:
        number = code.value[0]
        self._send(
            (
                cygrpc.SendInitialMetadataOperation(None, 0),
                cygrpc.SendStatusFromServerOperation(tuple(trailers), number, text.encode(errors="replace"), 0),
            )
        )

    def _send(self, operations: Sequence[Any]) -> None:
        answers = self._lane.answers
        if answers.holding:
            answers.send(partial(self._send_now, operations))
        else:
            self._send_now(operations)

    def _send_now(self, operations: Sequence[Any]) -> None:
        try:
            self._call.start_server_batch(operations, self._sent)
        except Exception:  # noqa: BLE001 - the thread that has the answers of a batch goes on with the next
            _log.exception("an answer of %s could not be sent", self.method)
            self._leave()

    def _received(self, event: Any) -> None:
        message = event.batch_operations[0].message()
        if message is None:  # the stream has ended without one
            if not event.success:  # gRPC has refused it, and answered; that is counted and logged here
                error = UnreadMessageError(
                    "gRPC refused the message: too large (--max-message-mib), or badly compressed"
                )
                self._lane.refuse(self, error)
            elif not self.cancelled:
                self.fail(grpc.StatusCode.UNIMPLEMENTED, f"{self.method} takes exactly one request message")
            else:  # nobody has been told of it, or will be
                self._leave()
            return
        self._taken = True
        self._lane.gate.enter()
        self._lane.door.read(self.arrival_ns, self._lane.clock())
        try:
            self._handle(self, message)
        except Exception:  # noqa: BLE001 - handlers must not raise; a defect of one ends its call
            _log.exception("the handler of %s failed", self.method)
            self.fail(grpc.StatusCode.INTERNAL, "internal error; the server's log has the cause")

    def _closed(self, event: Any) -> None:
        self._lane.open -= 1
        if event.batch_operations[0].cancelled():
            self.cancelled = True
            if self._act is not None:
                self._act()

    def _sent(self, _event: Any) -> None:
        self._leave()

    def _leave(self) -> None:
        self._lane.unanswered.discard(self)
        if self._taken:
            self._taken = False
            self._lane.gate.leave()


class _Waiting:
    """Calls whose requests have not been asked for, while calls come late to the door. Owned by the lane's thread.

    They may wait for different times, so that who has come first is not the first to give up: nobody waits behind another.
    """

    def __init__(self) -> None:
        self._calls: dict[int, _LaneCall] = {}  # by their turn
        self._until: list[tuple[int, int]] = []  # moments and turns, a heap; also of calls that wait no longer
        self._turn = 0

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: _LaneCall, until_ns: int) -> None:
        """Let a call wait until this moment."""
        if not self._calls:
            self._until.clear()
        self._turn += 1
        self._calls[self._turn] = call
        heapq.heappush(self._until, (until_ns, self._turn))

    def newest(self) -> _LaneCall:
        """Take the one that came last."""
        return self._calls.popitem()[1]

    def overdue(self, now_ns: int) -> _LaneCall | None:
        """Take one that has waited for as long as it may; None: there is none."""
        while self._until and self._until[0][0] <= now_ns:
            call = self._calls.pop(heapq.heappop(self._until)[1], None)
            if call is not None:
                return call
        return None


def probe() -> str | None:
    """Try the lane on a server of its own.

    Returns:
        Why it cannot be used; None: it can.
    """
    try:
        answer = _echo(b"ping")
    except Exception as error:  # noqa: BLE001 - whatever is not as it was in the releases that were tried
        return f"grpcio {grpc.__version__} does not carry the fast lane: {type(error).__name__}: {error}"
    return None if answer == b"ping" else f"grpcio {grpc.__version__} carried {answer!r} over the fast lane for b'ping'"


class _Nothing:
    """A `Gathering` of handlers that answer themselves. Immutable."""

    holds = False

    def flush(self) -> None:
        """There is nothing."""


def _fail(call: Call, _error: Exception) -> None:
    call.fail(grpc.StatusCode.INTERNAL, "")


def _open_door() -> Door:
    return Door(Outlook(), lambda: False, lambda _method, _error, _count: None)


def _echo(message: bytes) -> bytes:
    server = grpc.server(ThreadPoolExecutor(1))
    methods: Mapping[str, Handler] = {_PROBE_PATH: lambda call, request: call.finish(request)}
    port = server.add_insecure_port("127.0.0.1:0")
    passes: Objection = lambda _path, _metadata: None  # noqa: E731
    lane = Lane(server, methods, Gate(), Answers(), _fail, passes, _Nothing(), _open_door(), (), 1, time.monotonic_ns)
    server.start()
    lane.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            return bytes(channel.unary_unary(_PROBE_PATH, None, None)(message, timeout=_PROBE_S))
    finally:
        server.stop(0).wait()
        lane.close()
