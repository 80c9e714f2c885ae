"""Puts load on a server and measures it: the event loop, clocks and calls around the arithmetic of `arrivals` and `report`.

In an open loop a request's latency and its deadline count from its *scheduled* arrival, not from when this process came to send it,
so a stall of the server (or of this process) is charged to every request that fell into it: no coordinated omission.

Requests are sent as bytes that were serialised once, from one event loop. What that costs bounds the rate of one process; an open
loop's send lag shows when it was the limit.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from dnnapi.v1 import classifier_pb2 as pb
from google.protobuf.message import DecodeError

from dnnclient.arrivals import Arrivals, ClosedLoop, OpenLoop
from dnnclient.calls import CLASSIFY
from dnnclient.channels import Metadata, bearer, open_aio_channel, ranked
from dnnclient.errors import ServerError
from dnnclient.messages import Image, check_answer, classify_request, num_images
from dnnclient.report import OK, LoadReport, Progress, Sample, Tally
from dnncore.errors import BadParamError

__all__ = ["run_load"]

_TIMEOUT_S = 30.0  # of a request without a deadline: a server that hangs must not hang its measurement
# The kernel may hand Ctrl-C to a thread of gRPC's; Python acts on it when the main thread next wakes, so that never sleeps long.
_WAKE_S = 0.2
_PROGRESS_S = 1.0


def run_load(
    target: str,
    images: Sequence[Image],
    *,
    model: str,
    arrivals: Arrivals,
    requests: int | None = None,
    duration_s: float | None = None,
    version: str = "",
    top_k: int = 1,
    images_per_request: int = 1,
    deadline_s: float | Sequence[float] | None = None,
    warmup_s: float = 0.0,
    channels: int = 1,
    credentials: grpc.ChannelCredentials | None = None,
    token: str | None = None,
    priority: int = 0,
    keep_results: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> LoadReport:
    """Send classify requests and report what became of them; a request that fails is counted, not raised, and not sent again.

    It runs an event loop of its own, so not within another. Memory depends on the requests under way, not on those that have ended.

    Args:
        target: "host:port" of the server.
        images: Sent in order, and from the start again when there are more requests than images.
        model: Name of the model.
        arrivals: ClosedLoop(concurrency) or OpenLoop(rate, poisson, seed).
        requests: How many to send; or else give duration_s.
        duration_s: How long to send; answers are waited for afterwards.
        version: Of the model; empty for the latest.
        top_k: Labels asked for each image.
        images_per_request: Images in each request; the last before the start again may have fewer.
        deadline_s: Timeout of each request, from when it is sent; an answer is in time by when it was due. Several are given to
            requests in turn. Without any, requests end after 30 s.
        warmup_s: What arrives in the first so many seconds is sent and not counted.
        channels: Connections, used in turn. A server with several front ends gives each connection to one of them.
        credentials: For TLS.
        token: A bearer token, for a server that asks for one.
        priority: Of all requests, as `Client` takes it.
        keep_results: Whether the report shall hold each image's predicted index.
        on_progress: Called once a second.

    Raises:
        BadParamError: arguments out of range, or that exclude each other.
        InvalidArgumentError: images that no model takes.
    """
    deadlines = (deadline_s,) if isinstance(deadline_s, int | float) else tuple(deadline_s or ())
    _check(len(images), requests, duration_s, images_per_request, deadlines, warmup_s, channels)
    payloads = [
        _Payload.of(
            classify_request(images[start : start + images_per_request], model=model, version=version, top_k=top_k)
        )
        for start in range(0, len(images), images_per_request)
    ]

    metadata = bearer(token) + ranked(priority)

    async def run() -> LoadReport:
        opened = [open_aio_channel(target, credentials) for _ in range(channels)]
        try:
            calls = [channel.unary_unary(CLASSIFY.path, None, None) for channel in opened]
            sender = _Sender(payloads, calls, deadlines, metadata, keep_results)
            phases = _Phases(requests, duration_s, warmup_s)
            watch = asyncio.create_task(_watch(sender, phases, on_progress))
            try:
                await _send_all(sender, arrivals, phases)
            finally:
                watch.cancel()
        finally:
            for channel in opened:
                await channel.close(None)
        return sender.tally.report(str(arrivals), open_loop=isinstance(arrivals, OpenLoop))

    # select() sleeps to the microsecond, epoll to the millisecond, which would be the send lag.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(run())


def _check(
    images: int,
    requests: int | None,
    duration_s: float | None,
    images_per_request: int,
    deadlines: Sequence[float],
    warmup_s: float,
    channels: int,
) -> None:
    if (requests is None) == (duration_s is None):
        raise BadParamError(f"give requests or duration_s, one of them; they are {requests} and {duration_s}")
    for name, count in (
        ("requests", requests),
        ("images_per_request", images_per_request),
        ("channels", channels),
        ("number of images", images),
    ):
        if count is not None and count < 1:
            raise BadParamError(f"{name} is {count}; it must be 1 or more")
    for name, seconds in (("duration_s", duration_s), *(("deadline_s", deadline) for deadline in deadlines)):
        if seconds is not None and not seconds > 0:
            raise BadParamError(f"{name} is {seconds}; it must be above 0")
    if not warmup_s >= 0:
        raise BadParamError(f"warmup_s is {warmup_s}; it must not be negative")


@dataclass(frozen=True, slots=True)
class _Payload:
    """A request, and what is sent for it. Immutable."""

    request: pb.ClassifyRequest
    serialized: bytes
    num_images: int

    @classmethod
    def of(cls, request: pb.ClassifyRequest) -> _Payload:
        return cls(request, request.SerializeToString(), num_images(request))


@dataclass(frozen=True, slots=True)
class _Phases:
    """What is counted and when a run ends: after so many requests, or with the first that arrives after so long. Immutable."""

    requests: int | None
    duration_s: float | None
    warmup_s: float

    def counts(self, offset_s: float) -> bool:
        """Whether a request that arrives so long after the start is counted."""
        return offset_s >= self.warmup_s

    def over(self, counted: int, offset_s: float) -> bool:
        """Whether such a request comes after the end, so many having been counted before it."""
        if self.requests is not None:
            return counted >= self.requests
        return self.duration_s is not None and offset_s >= self.warmup_s + self.duration_s


@dataclass(slots=True)
class _Sender:
    """Sends requests and counts what became of them. Owned by one thread; not checked: the event loop's."""

    payloads: Sequence[_Payload]
    calls: Sequence[Any]
    deadlines: Sequence[float]
    metadata: Metadata
    keep_results: bool
    tally: Tally = field(init=False)
    recent: Tally = field(init=False)
    in_flight: int = field(init=False, default=0)
    start_s: float = field(init=False)
    _counted: int = field(init=False, default=0)
    _sent: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.tally = Tally(keep_results=self.keep_results)
        self.recent = Tally()
        self.start_s = time.perf_counter()

    def next_index(self, phases: _Phases, offset_s: float) -> int | None:
        """The position of the request that arrives then: counted ones from 0, others below; None: the run is over.

        Those before the first that is counted are sent from the same payloads.
        """
        if phases.over(self._counted, offset_s):
            return None
        if not phases.counts(offset_s):
            self._sent += 1
            return -self._sent
        self._counted += 1
        return self._counted - 1

    async def send(self, index: int, arrival_s: float | None) -> None:
        """Send a request and wait for its answer; due now when arrival_s is None."""
        payload = self.payloads[index % len(self.payloads)]
        deadline_s = self.deadlines[index % len(self.deadlines)] if self.deadlines else None
        call = self.calls[index % len(self.calls)]
        self.in_flight += 1
        sent_s = time.perf_counter()
        try:
            answer = await call(payload.serialized, timeout=deadline_s or _TIMEOUT_S, metadata=self.metadata)
            status = OK
        except grpc.aio.AioRpcError as error:
            status = error.code().name
        finally:
            self.in_flight -= 1
        finished_s = time.perf_counter()
        predicted: tuple[int, ...] = ()
        if status == OK:
            try:
                response = pb.ClassifyResponse.FromString(answer)
                check_answer(payload.request, response)
            except (DecodeError, ServerError):
                status = ServerError.code.name
            else:
                if self.keep_results:
                    predicted = tuple(found.labels[0].index for found in response.classifications)
        arrival_s = sent_s if arrival_s is None else arrival_s
        sample = Sample(index, arrival_s, sent_s, finished_s, status, payload.num_images, deadline_s, predicted)
        self.recent.add(sample)
        if index >= 0:
            self.tally.add(sample)


async def _send_all(sender: _Sender, arrivals: Arrivals, phases: _Phases) -> None:
    async with asyncio.TaskGroup() as tasks:
        if isinstance(arrivals, ClosedLoop):
            for _ in range(arrivals.concurrency):
                tasks.create_task(_send_in_turn(sender, phases))
            return
        for offset_s in arrivals.offsets():
            # By the schedule and not by the clock: what a late generator did not send in time is sent all the same.
            index = sender.next_index(phases, offset_s)
            if index is None:
                return
            # Also when it is late already: answers must be read meanwhile.
            await asyncio.sleep(max(0.0, sender.start_s + offset_s - time.perf_counter()))
            tasks.create_task(sender.send(index, sender.start_s + offset_s))


async def _send_in_turn(sender: _Sender, phases: _Phases) -> None:
    while (index := sender.next_index(phases, time.perf_counter() - sender.start_s)) is not None:
        await sender.send(index, None)


async def _watch(sender: _Sender, phases: _Phases, on_progress: Callable[[Progress], None] | None) -> None:
    since_s = sender.start_s
    for _ in itertools.count():
        await asyncio.sleep(_WAKE_S)
        now_s = time.perf_counter()
        if now_s - since_s < _PROGRESS_S:
            continue
        recent, sender.recent = sender.recent, Tally()
        elapsed_s = now_s - sender.start_s
        if on_progress is not None:
            warming_up = not phases.counts(elapsed_s)
            on_progress(recent.progress(elapsed_s, now_s - since_s, sender.in_flight, warming_up=warming_up))
        since_s = now_s
