"""Puts load on a server and measures it: the threads, clocks and calls around the arithmetic of `arrivals` and `report`.

In an open loop a request's latency counts from its *scheduled* arrival, not from when this process came to send it, so a
stall of the server (or of this process) is charged to every request that fell into it: no coordinated omission.

All of this shares one interpreter lock: a request costs about 0.1 ms of it, so one process sends a few thousand requests a
second at most (measured with 500-byte images; larger ones cost more). An open loop's send lag shows when that was the limit.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from dnnapi.v1 import classifier_pb2 as pb
from dnnapi.v1.classifier_pb2_grpc import ClassifierServiceStub

from dnnclient.arrivals import Arrivals, ClosedLoop, OpenLoop
from dnnclient.client import open_channel
from dnnclient.errors import ServerError
from dnnclient.messages import Image, check_answer, classify_request, num_images
from dnnclient.report import OK, LoadReport, Sample, summarize
from dnncore.errors import BadParamError

__all__ = ["run_load"]

_Call: TypeAlias = "grpc.UnaryUnaryMultiCallable[pb.ClassifyRequest, pb.ClassifyResponse]"

_TIMEOUT_S = 30.0  # of a request without a deadline: a server that hangs must not hang its measurement
# The kernel may hand Ctrl-C to a thread of gRPC's; Python acts on it when the main thread next wakes, so that never sleeps long.
_WAKE_S = 0.2
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)  # else channels to one target share one connection


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
    deadline_s: float | None = None,
    warmup_s: float = 0.0,
    channels: int = 1,
    keep_results: bool = False,
) -> LoadReport:
    """Send classify requests and report what became of them; a request that fails is counted, not raised.

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
        deadline_s: Timeout of each request, from when it is sent; 30 s when None.
        warmup_s: For so long the same load is sent first, and not counted.
        channels: Connections, used in turn. Over loopback one was as fast as two or four, for 1 to 32 requests at a time.
        keep_results: Whether the report shall hold each image's predicted index.

    Raises:
        BadParamError: arguments out of range, or that exclude each other.
        InvalidArgumentError: images that no model takes.
    """
    if (requests is None) == (duration_s is None):
        raise BadParamError(f"give requests or duration_s, one of them; they are {requests} and {duration_s}")
    counts = {
        "requests": requests,
        "images_per_request": images_per_request,
        "channels": channels,
        "number of images": len(images),
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            raise BadParamError(f"{name} is {count}; it must be 1 or more")
    for name, seconds in {"duration_s": duration_s, "deadline_s": deadline_s}.items():
        if seconds is not None and not seconds > 0:
            raise BadParamError(f"{name} is {seconds}; it must be above 0")
    if not warmup_s >= 0:
        raise BadParamError(f"warmup_s is {warmup_s}; it must not be negative")
    payloads = [
        classify_request(images[start : start + images_per_request], model=model, version=version, top_k=top_k)
        for start in range(0, len(images), images_per_request)
    ]
    with ExitStack() as stack:
        opened = [stack.enter_context(open_channel(target, options=_OWN_CONNECTION)) for _ in range(channels)]
        calls = [ClassifierServiceStub(channel).Classify for channel in opened]
        sender = _Sender(payloads, calls, deadline_s or _TIMEOUT_S, keep_results)
        if warmup_s > 0:
            _run(sender, arrivals, _Limit(None, warmup_s))
        samples = _run(sender, arrivals, _Limit(requests, duration_s))
    return summarize(
        samples,
        load=str(arrivals),
        open_loop=isinstance(arrivals, OpenLoop),
        deadline_s=deadline_s,
        keep_results=keep_results,
    )


@dataclass(frozen=True, slots=True)
class _Limit:
    """When a phase ends: after so many requests, or with the first that arrives after so long. Immutable."""

    requests: int | None
    duration_s: float | None

    def reached(self, index: int, offset_s: float) -> bool:
        if self.requests is not None:
            return index >= self.requests
        return self.duration_s is not None and offset_s >= self.duration_s


@dataclass(frozen=True, slots=True)
class _Sender:
    """Sends the request of a given position and makes a sample of what became of it. Thread-safe."""

    payloads: Sequence[pb.ClassifyRequest]
    calls: Sequence[_Call]
    timeout_s: float
    keep_results: bool

    def send(self, index: int) -> Sample:
        """Send and wait for the answer."""
        call, payload = self._pick(index)
        sent_s = time.perf_counter()
        try:
            code, response = grpc.StatusCode.OK, call(payload, timeout=self.timeout_s)
        except grpc.RpcError as error:
            code, response = error.code(), None
        return self._sample(index, sent_s, sent_s, code, response)

    def start(self, index: int, arrival_s: float, done: Callable[[Sample | None], None]) -> None:
        """Send, and call done from a thread of gRPC's: with the sample, or with None if making one failed (and was logged)."""
        call, payload = self._pick(index)
        sent_s = time.perf_counter()
        future = call.future(payload, timeout=self.timeout_s)

        def finish(finished: Any) -> None:
            sample = None
            try:
                code = finished.code()
                response = finished.result() if code is grpc.StatusCode.OK else None
                sample = self._sample(index, arrival_s, sent_s, code, response)
            finally:
                done(sample)

        future.add_done_callback(finish)

    def _pick(self, index: int) -> tuple[_Call, pb.ClassifyRequest]:
        return self.calls[index % len(self.calls)], self.payloads[index % len(self.payloads)]

    def _sample(
        self, index: int, arrival_s: float, sent_s: float, code: grpc.StatusCode, response: pb.ClassifyResponse | None
    ) -> Sample:
        finished_s = time.perf_counter()
        payload = self.payloads[index % len(self.payloads)]
        predicted: tuple[int, ...] = ()
        status = OK if code is grpc.StatusCode.OK else code.name
        if response is not None:
            try:
                check_answer(payload, response)
            except ServerError as error:
                status = error.code.name
            else:
                if self.keep_results:
                    predicted = tuple(answer.labels[0].index for answer in response.classifications)
        return Sample(index, arrival_s, sent_s, finished_s, status, num_images(payload), predicted)


def _run(sender: _Sender, arrivals: Arrivals, limit: _Limit) -> list[Sample]:
    return (
        _run_closed(sender, arrivals, limit) if isinstance(arrivals, ClosedLoop) else _run_open(sender, arrivals, limit)
    )


def _run_closed(sender: _Sender, arrivals: ClosedLoop, limit: _Limit) -> list[Sample]:
    indices = itertools.count()
    stop = threading.Event()
    start_s = time.perf_counter()

    def work() -> list[Sample]:
        samples: list[Sample] = []
        while not stop.is_set():
            index = next(indices)
            if limit.reached(index, time.perf_counter() - start_s):
                break
            samples.append(sender.send(index))
        return samples

    with ThreadPoolExecutor(arrivals.concurrency, "load") as pool:
        try:
            workers = [pool.submit(work) for _ in range(arrivals.concurrency)]
            unfinished = set(workers)
            while unfinished:
                finished, unfinished = wait(unfinished, _WAKE_S, FIRST_EXCEPTION)
                for worker in finished:
                    worker.result()  # raises what ended it
            return [sample for worker in workers for sample in worker.result()]
        finally:
            stop.set()  # or an interrupt, as early as while they are started, would wait for the workers' own end


def _run_open(sender: _Sender, arrivals: OpenLoop, limit: _Limit) -> list[Sample]:
    samples: list[Sample | None] = []
    answered = threading.Semaphore(0)

    def done(sample: Sample | None) -> None:
        samples.append(sample)
        answered.release()

    num_sent = 0
    start_s = time.perf_counter()
    for offset_s in arrivals.offsets():
        # By the schedule and not by the clock: what a late generator did not send in time is sent all the same.
        if limit.reached(num_sent, offset_s):
            break
        wait_s = start_s + offset_s - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        sender.start(num_sent, start_s + offset_s, done)
        num_sent += 1
    for _ in range(num_sent):
        while not answered.acquire(timeout=_WAKE_S):
            pass  # ends: every call has a timeout
    complete = [sample for sample in samples if sample is not None]
    if len(complete) != num_sent:
        raise RuntimeError(f"{num_sent - len(complete)} of {num_sent} answers could not be read; gRPC has logged why")
    return complete
