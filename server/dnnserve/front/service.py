"""What all methods share: the way of an inference call through the scheduler, and the end of every call.

A call ends where its answer is known, in the thread that knows it: nobody waits for anybody. How it ended is counted and logged
there, with the time since its headers came.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import grpc
import numpy as np
from google.protobuf.message import Message

from dnnserve.catalog import Catalog, ModelSpec, shorten
from dnnserve.envelope import Answer, Completion, InferenceRequest, ModelKey, OwnBlock
from dnnserve.errors import (
    DeadlineExpiredError,
    RequestCancelledError,
    RequestError,
    RestartingError,
    UnreachableError,
)
from dnnserve.front.areas import SharedImages, SharedRows, bytes_to_write, release
from dnnserve.front.call import Call, Handler
from dnnserve.front.decoding import DecodePool
from dnnserve.front.door import Door
from dnnserve.front.intake import Intake, Queue
from dnnserve.front.parameters import Wanted, numbers_of
from dnnserve.front.priority import stated_priority
from dnnserve.front.requests import InferenceInput
from dnnserve.front.sources import Checkpoint, Images
from dnnserve.front.status import Status, status_of
from dnnserve.front.tracing import CallTracer
from dnnserve.front.writing import WritePool
from dnnserve.questions import Answer as Answered
from dnnserve.questions import Control
from dnnserve.questions import Question as ControlQuestion
from dnnserve.scheduling.entry import level_of
from dnnserve.scheduling.outlook import Outlook
from dnnserve.shared_memory.regions import Origin, Regions
from dnnserve.statistics import ModelSnapshot

__all__ = ["CallsObserver", "Counters", "Encoder", "Exchange", "Question", "Service"]

_log = logging.getLogger(__name__)
_access = logging.getLogger("dnnserve.access")

_COPIED_AT_ONCE_BYTES = 1 << 20
"""Of shared memory, by the thread that takes calls or answers them, in a fraction of a millisecond; it has others to see to."""

_LONGEST_ID = 128
"""Characters of a request's id in traces and in the log's fields; a client may send as many as a message has."""

_OK = Status(grpc.StatusCode.OK, "")

CallsObserver = Callable[[ModelKey | None, str, str, Sequence[int]], None]
"""Called at the end of calls: their model (None: they named none that is loaded), method, status, and the nanoseconds of each."""

Encoder = Callable[[str, ModelSpec, Mapping[int, np.ndarray], Sequence[Wanted], Checkpoint], bytes]
"""Makes a serialized response of the request's id, its model, those outputs that it wants, by number, and what it wants of them;
the last is called before every piece that is written into shared memory, and what it raises ends the work."""


class Question(Protocol):
    """A request for inference, as it was parsed. Immutable."""

    @property
    def model(self) -> tuple[str, str]:
        """Name and version asked for."""
        ...

    @property
    def id(self) -> str:
        """The client's name for it."""
        ...

    def read(self, spec: ModelSpec) -> InferenceInput:
        """Check it against the model.

        Raises:
            InvalidRequestError: it does not fit.
        """
        ...


class Counters(Protocol):
    """What is used here of the statistics."""

    def snapshot(self, model: ModelKey) -> ModelSnapshot:
        """The counters of one model now."""
        ...

    def record_refusal(self, model: ModelKey, error: Exception, total_ns: int) -> None:
        """Count a request that failed before it was submitted."""
        ...

    def record_turned_away(self, model: ModelKey, error: RequestError, count: int) -> None:
        """Count requests that were refused unread."""
        ...


@dataclass(slots=True, eq=False)
class Exchange:
    """One call and what is known of it. Owned by one thread at a time; not checked.

    Args:
        call: The call.
        spec: The model that it names; None: not known yet, or none that is loaded.
        request_id: The client's name for it.
        submitted: Whether the scheduler has it, which then counts how it ends.
        wanted, origins: As `InferenceInput` has them.
        encode: Makes the response to an inference.
        completion: What the scheduler said.
    """

    call: Call
    spec: ModelSpec | None = None
    request_id: str = ""
    submitted: bool = False
    wanted: Sequence[Wanted] = ()
    origins: Sequence[Origin] = ()
    encode: Encoder | None = None
    completion: Completion | None = None

    @property
    def key(self) -> ModelKey | None:
        """Of the model."""
        return None if self.spec is None else self.spec.key

    def let_go(self) -> None:
        """Release what is held in shared memory; the call has ended. A second call does nothing."""
        wanted, self.wanted = self.wanted, ()
        origins, self.origins = self.origins, ()
        release(wanted, origins)


class Service:
    """What the methods of all services share. Thread-safe.

    Args:
        catalog: The loaded models.
        queue: Where requests go.
        decoder: Makes rows of images.
        writer: Writes large outputs.
        statistics: Counters of the models.
        ready: Whether requests can be answered now.
        on_calls_end: Told of the ends of calls.
        control: The server.
        access_log: Whether each call's end is a line of the log; else it is one at level DEBUG.
        regions: Of shared memory, that requests may speak of.
        clock: The scheduler's clock.
        tracer: Told of each call's end with its stages; None: nobody is.

    Attributes:
        intake: By which requests come to the queue.
        door: By which calls come whose requests have not been read.
    """

    def __init__(
        self,
        catalog: Catalog,
        queue: Queue,
        decoder: DecodePool,
        writer: WritePool,
        statistics: Counters,
        ready: Callable[[], bool],
        on_calls_end: CallsObserver,
        control: Control,
        access_log: bool = False,
        regions: Regions | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        tracer: CallTracer | None = None,
    ) -> None:
        self.catalog = catalog
        self.statistics = statistics
        self.regions = Regions() if regions is None else regions
        self.ready = ready
        self._outlook = Outlook()
        self.intake = Intake(queue, self._take_back, lambda: self._outlook.is_gloomy(clock()))
        self.door = Door(self._outlook, lambda: self._tells, self._count_turned_away)
        self._decoder = decoder
        self._writer = writer
        self._on_calls_end = on_calls_end
        self._control = control
        self._access_level = logging.INFO if access_log else logging.DEBUG
        self._clock = clock
        self._tracer = tracer
        self._waiting: dict[int, tuple[Exchange, OwnBlock]] = {}  # by ticket; its operations are atomic
        self._asking: set[Exchange] = set()  # not submitted yet; so are its
        self._set_door()

    def serve(self, specs: Iterable[ModelSpec]) -> None:
        """Give requests to these models from now on, and to no others."""
        self.catalog = Catalog(specs)
        self._set_door()

    def holds(self, model: ModelKey) -> bool:
        """Whether a request has been given to a model and has no answer yet."""
        # No model: it may have looked before the last `serve`.
        exchanges = (*list(self._asking), *[exchange for exchange, _ in list(self._waiting.values())])
        return any(exchange.spec is None or exchange.spec.key == model for exchange in exchanges)

    def answering(self, respond: Callable[[Exchange, bytes], Message]) -> Handler:
        """The handler of a method whose response is known at once."""

        def handle(call: Call, message: bytes) -> None:
            exchange = Exchange(call)
            try:
                response = respond(exchange, message).SerializeToString()
            except Exception as error:  # noqa: BLE001 - the boundary: status_of logs what is not meant for clients
                self._refuse(exchange, error)
            else:
                self._finish(((exchange, response),))

        return handle

    def asking(
        self, ask: Callable[[Exchange, bytes], tuple[ControlQuestion, Callable[[Answered], Message]]]
    ) -> Handler:
        """The handler of a method that asks the server, which may take its time."""

        def handle(call: Call, message: bytes) -> None:
            exchange = Exchange(call)

            def end(answer: Answered) -> None:
                if isinstance(answer, RequestError):
                    self._refuse(exchange, answer)
                else:
                    self._finish([(exchange, respond(answer).SerializeToString())])

            try:
                question, respond = ask(exchange, message)
                self._control.ask(question, end)
            except Exception as error:  # noqa: BLE001 - as above
                self._refuse(exchange, error)

        return handle

    def inferring(self, ask: Callable[[Exchange, bytes], None]) -> Handler:
        """The handler of a method that calls `infer`."""

        def handle(call: Call, message: bytes) -> None:
            exchange = Exchange(call)
            try:
                self._check_wanted(call, call.deadline_ns)  # first: under overload this is most of what there is to do
                ask(exchange, message)
            except Exception as error:  # noqa: BLE001 - as above
                self._refuse(exchange, error)

        return handle

    def infer(self, exchange: Exchange, question: Question, encode: Encoder) -> None:
        """Take an inference call through the scheduler, and end it when its completion comes.

        Args:
            exchange: The call.
            question: Its request.
            encode: Makes the response.

        Raises:
            RequestError: it cannot be taken, and nobody has been told yet.
        """
        self._asking.add(exchange)  # first: whoever has changed the catalog sees those that may have read the old one
        exchange.request_id = question.id  # which is told of a model that is not found, too
        exchange.spec = spec = self.catalog.find(*question.model)
        exchange.encode = encode
        source, pixels, exchange.wanted, timeout_us, priority, exchange.origins = question.read(spec)
        deadline_ns = self._deadline_ns(exchange.call, spec, timeout_us)
        known = stated_priority(exchange.call.metadata) or spec.priority
        priority = priority or known
        if timeout_us is not None or level_of(priority) != level_of(known):
            self._outlook.distrust(self._clock())  # its turn comes by more than was known of its call
        if isinstance(source, (Images, SharedImages, SharedRows)):
            checkpoint = partial(self._check_wanted, exchange.call, deadline_ns)
            submit = partial(self._submit, exchange, spec, deadline_ns, priority, pixels)
            if isinstance(source, SharedRows) and source.nbytes <= _COPIED_AT_ONCE_BYTES:
                submit(source.rows(checkpoint))
            else:
                self._decoder.submit(source, checkpoint, submit, partial(self._refuse, exchange))
        else:  # the queue refuses what is late
            self._submit(exchange, spec, deadline_ns, priority, pixels, source)

    def refuse(self, call: Call, error: Exception) -> None:
        """End a call whose request was not looked at."""
        self._refuse(Exchange(call), error)

    def count_refused_stream(self, method: str, code: grpc.StatusCode) -> None:
        """Count a stream that was refused before anything came of it."""
        self._count(None, method, code.name, (0,))

    def _submit(
        self,
        exchange: Exchange,
        spec: ModelSpec,
        deadline_ns: int | None,
        priority: int,
        pixels: bool,
        rows: Sequence[np.ndarray],
    ) -> None:
        call = exchange.call
        block = OwnBlock(rows, pixels=pixels, wanted=numbers_of(exchange.wanted, spec))
        request = InferenceRequest(spec.key, block, call.arrival_ns, deadline_ns, self._deliver, priority)
        self._outlook.see(call.arrival_ns, len(block))
        ticket = request.ticket
        self._waiting[ticket] = exchange, block
        self._asking.discard(exchange)
        exchange.submitted = True
        self.intake.submit(request, call)

    def _take_back(self, request: InferenceRequest, error: Exception) -> None:
        """End the call of a request that the queue did not take."""
        exchange, _ = self._waiting.pop(request.ticket)
        exchange.submitted = False
        self._refuse(exchange, error)

    def _deliver(self, completions: Sequence[Completion]) -> None:
        """End the calls of these completions; the sink of every request. Those that were answered are counted together."""
        answered: list[tuple[Exchange, bytes]] = []
        for completion in completions:
            exchange, block = self._waiting.pop(completion.request.ticket)
            outcome, exchange.completion = completion.outcome, completion
            try:
                if not isinstance(outcome, Answer):
                    self._hear(completion.request, outcome)
                    self._refuse(exchange, outcome)
                elif not self._hand_over(exchange, block):
                    answered.append((exchange, self._response(exchange, block)))
            except Exception as error:  # noqa: BLE001 - one call's failure is not its batch-mates'
                self._refuse(exchange, error)
        self._finish(answered)

    def _hear(self, request: InferenceRequest, error: RequestError) -> None:
        """Learn from a refusal what it says of calls whose requests have not been read."""
        if error.answer_ns is None or request.deadline_ns is None:
            return
        if not self._outlook.is_least(len(request.block)):
            return
        now_ns = self._clock()
        if isinstance(error, UnreachableError):
            self._outlook.hear_least(now_ns, error.answer_ns - now_ns)
        else:
            restarting = isinstance(error, RestartingError)
            level = level_of(request.priority)
            self._outlook.hear(now_ns, request.deadline_ns, error.answer_ns, level, restarting=restarting)

    def _set_door(self) -> None:
        specs = self.catalog.specs
        self.door.judges = len(specs) == 1
        self.door.usual_priority = specs[0].priority if len(specs) == 1 else 0

    def _count_turned_away(self, method: str, error: RequestError, count: int) -> None:
        """Count calls that were turned away: for the model, where there is one that they can have been for."""
        specs = self.catalog.specs
        key = specs[0].key if len(specs) == 1 else None
        try:
            if key is not None:
                self.statistics.record_turned_away(key, error, count)
            self._on_calls_end(key, method, status_of(error).code.name, (0,) * count)
        except Exception:  # noqa: BLE001 - the next calls get their chance
            _log.exception("%d calls of %s that were turned away could not be counted", count, method)

    def _hand_over(self, exchange: Exchange, block: OwnBlock) -> bool:
        """Have the writer answer a call whose outputs take time to write; whether it does."""
        if bytes_to_write(exchange.wanted, block.outputs) <= _COPIED_AT_ONCE_BYTES:
            return False
        return self._writer.hand_over(partial(self._answer_alone, exchange, block))

    def _answer_alone(self, exchange: Exchange, block: OwnBlock) -> None:
        """End a call whose outputs take time to write."""
        try:
            response = self._response(exchange, block)
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse(exchange, error)
        else:
            self._finish([(exchange, response)])

    def _response(self, exchange: Exchange, block: OwnBlock) -> bytes:
        spec, encode, completion = exchange.spec, exchange.encode, exchange.completion
        assert spec is not None
        assert encode is not None
        assert completion is not None
        # A client that was told that its call is over may use its memory for something else.
        deadline_ns, undone = completion.request.deadline_ns, "its outputs could be written"
        checkpoint = partial(self._check_wanted, exchange.call, deadline_ns, undone)
        return encode(exchange.request_id, spec, block.outputs, exchange.wanted, checkpoint)

    def _deadline_ns(self, call: Call, spec: ModelSpec, timeout_us: int | None) -> int | None:
        deadline_ns = call.deadline_ns
        if timeout_us is not None:
            asked_ns = call.arrival_ns + timeout_us * 1000
            return asked_ns if deadline_ns is None else min(deadline_ns, asked_ns)
        if deadline_ns is None and spec.default_deadline_ns:
            return call.arrival_ns + spec.default_deadline_ns
        return deadline_ns

    def _check_wanted(self, call: Call, deadline_ns: int | None, undone: str = "the request could be queued") -> None:
        if deadline_ns is not None and (late_ns := self._clock() - deadline_ns) >= 0:
            raise DeadlineExpiredError(f"the deadline passed {late_ns / 1e6:.1f} ms before {undone}: allow more time")
        if call.cancelled:
            raise RequestCancelledError("the request was cancelled by its client")

    def _finish(self, answered: Sequence[tuple[Exchange, bytes]]) -> None:
        now_ns = self._clock()
        alike: dict[tuple[ModelKey | None, str], list[int]] = {}
        for exchange, _ in answered:
            call = exchange.call
            alike.setdefault((exchange.key, call.method), []).append(now_ns - call.arrival_ns)
        for (key, method), taken_ns in alike.items():
            self._count(key, method, "OK", taken_ns)
        if self._tells:
            for exchange, _ in answered:
                self._tell(exchange, _OK, now_ns)
        for exchange, response in answered:
            exchange.let_go()
            exchange.call.finish(response)

    def _refuse(self, exchange: Exchange, error: Exception) -> None:
        self._asking.discard(exchange)
        exchange.let_go()
        call, now_ns = exchange.call, self._clock()
        taken_ns = now_ns - call.arrival_ns
        status = status_of(error)
        self._count(exchange.key, call.method, status.code.name, (taken_ns,), None if exchange.submitted else error)
        if self._tells:
            self._tell(exchange, status, now_ns)
        call.fail(status.code, status.text, status.trailers)

    def _count(
        self, key: ModelKey | None, method: str, status: str, taken_ns: Sequence[int], refused: Exception | None = None
    ) -> None:
        """Count calls that end alike; what was refused before it was queued, with the error. They end whatever comes of it."""
        try:
            if key is not None and refused is not None:
                self.statistics.record_refusal(key, refused, taken_ns[0])
            self._on_calls_end(key, method, status, taken_ns)
        except Exception:  # noqa: BLE001 - the clients get their answers
            _log.exception("%d calls of %s that ended with %s could not be counted", len(taken_ns), method, status)

    @property
    def _tells(self) -> bool:
        """Whether anybody is told of each call."""
        return self._tracer is not None or _access.isEnabledFor(self._access_level)

    def _tell(self, exchange: Exchange, status: Status, now_ns: int) -> None:
        """Trace and log a call; before its answer is sent, as it is counted, so that whoever has the answer also finds it told."""
        call, key = exchange.call, exchange.key
        if self._tracer is not None:
            try:
                self._tracer.record(call, key, exchange.request_id[:_LONGEST_ID], status, exchange.completion)
            except Exception:  # noqa: BLE001 - a hook of OpenTelemetry's may be anybody's; the client gets its answer
                _log.exception("a call of %s could not be traced", call.method)
        if _access.isEnabledFor(self._access_level):
            _access.log(
                self._access_level,
                "%s %s %s id=%s %s %.3f ms%s",
                call.peer(),
                call.method,
                "-" if key is None else key,
                shorten(exchange.request_id),
                status.code.name,
                (now_ns - call.arrival_ns) / 1e6,
                f": {status.text}" if status.text else "",
                extra={"fields": _fields(exchange, status, now_ns)},
            )


def _fields(exchange: Exchange, status: Status, now_ns: int) -> Mapping[str, str | float | None]:
    """A line of the access log, field by field; what a trace is replayed from (benchmarks/trace.py)."""
    call, key = exchange.call, exchange.key
    seconds = (now_ns - call.arrival_ns) / 1e9
    fields: dict[str, str | float | None] = {
        "client": call.peer(),
        "method": call.method,
        "model": None if key is None else str(key),
        "id": exchange.request_id[:_LONGEST_ID],
        "status": status.code.name,
        "arrived": round(time.time() - seconds, 6),
        "milliseconds": round(seconds * 1e3, 3),
    }
    if exchange.completion is not None:
        request = exchange.completion.request
        slack_ns = None if request.deadline_ns is None else request.deadline_ns - request.arrival_ns
        fields |= {
            "rows": len(request.block),
            "deadline_ms": None if slack_ns is None else round(slack_ns / 1e6, 3),
            "priority": request.priority,
        }
    return fields
