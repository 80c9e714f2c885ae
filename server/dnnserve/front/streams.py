"""ModelStreamInfer: many requests over one stream, each of which is a call like any other, answered when it is done.

Streams go through grpcio's public API: each takes two threads, which wait for requests and for answers, so there are as many as
there are threads for them, and other calls have nothing to do with those. Whoever completes a batch does not wait for a client:
what it has not read yet is kept by its stream, which reads no further request once that is too much.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
from dnnapi.inference import grpc_service_pb2 as inference

from dnnserve.errors import InvalidRequestError
from dnnserve.front.answers import Answers
from dnnserve.front.call import Handler, Trailer, deadline_after
from dnnserve.front.gate import Gate
from dnnserve.front.places import Places, StreamsObserver
from dnnserve.front.requests import parse_infer
from dnnserve.front.responses import varint

__all__ = ["METHOD", "InferStreams"]

METHOD = "ModelStreamInfer"
"""Without its service."""

_MAX_STREAMS = 32
_MAX_UNANSWERED = 64
_RESPONSE_TAG = bytes([inference.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | 2])


class InferStreams:
    """Takes streams of ModelInferRequests. Thread-safe.

    Args:
        handle: ModelInfer's handler.
        gate: Counts the requests.
        answers: Through which answers are sent.
        clock: Monotonic nanoseconds.
        on_refused: Called with the method and the status of each stream that finds no place.
        max_streams: Open at the same time.
        max_unanswered: Requests of a stream whose answers its client has not got; no further one is read then.
    """

    def __init__(
        self,
        handle: Handler,
        gate: Gate,
        answers: Answers,
        clock: Callable[[], int],
        on_refused: StreamsObserver,
        max_streams: int = _MAX_STREAMS,
        max_unanswered: int = _MAX_UNANSWERED,
    ) -> None:
        self.handle = handle
        self.gate = gate
        self.answers = answers
        self.clock = clock
        self.max_unanswered = max_unanswered
        refusal = f"{max_streams} streams are open, as many as may; send requests without one"
        self._on_refused = partial(on_refused, METHOD, grpc.StatusCode.RESOURCE_EXHAUSTED)
        self._places = Places(max_streams, refusal, "dnnserve-stream")
        self._readers = ThreadPoolExecutor(max_streams, "dnnserve-stream-reader")

    def handler(self, service: str) -> grpc.GenericRpcHandler[bytes, bytes]:
        """What grpc.server needs of it."""

        def answer(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            with self._places.take(context, self._on_refused):
                stream = _Stream(self, context)
                reading = self._readers.submit(stream.read, messages)
                try:
                    yield from stream.answers()
                finally:
                    stream.end()
                    reading.result()  # the place is free when both threads are

        answer.experimental_thread_pool = self._places.threads  # type: ignore[attr-defined]
        method = grpc.stream_stream_rpc_method_handler(answer)
        return grpc.method_handlers_generic_handler(service, {METHOD: method})

    def close(self) -> None:
        """Let the threads end once their streams have."""
        self._places.close()
        self._readers.shutdown(wait=False)


class _Stream:
    """One stream. Thread-safe: `_lock` guards `_calls`, `_read_all` and `_ended`.

    Args:
        shared: What it shares with others.
        context: The RPC.
    """

    def __init__(self, shared: InferStreams, context: grpc.ServicerContext) -> None:
        self.shared = shared
        self._context = context
        self.peer = context.peer()
        # By the wall clock, so it is turned at once into what is left: a clock that is set later moves no deadline.
        remaining_s = context.time_remaining()
        self._deadline_ns = None if remaining_s is None else deadline_after(shared.clock(), remaining_s)
        self._lock = threading.Lock()
        self._calls: set[_StreamCall] = set()
        self._read_all = self._ended = False
        self._room = threading.Semaphore(shared.max_unanswered)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None: there is nothing more
        if not context.add_callback(self.end):
            self.end()

    def read(self, messages: Iterator[bytes]) -> None:
        """Make a call of each request, until there are no more or the stream has ended."""
        shared = self.shared
        try:
            while True:
                self._room.acquire()
                message = None if self._ended else next(messages, None)
                if message is None:
                    break
                metadata = self._context.invocation_metadata()
                call = _StreamCall(self, message, shared.clock(), self._deadline_ns, metadata)
                with self._lock:
                    self._calls.add(call)
                shared.gate.enter()
                if self._ended:
                    call.cancel()
                shared.handle(call, message)
        except grpc.RpcError:  # the client has gone
            self.end()
        with self._lock:
            self._read_all = True
            if not self._calls:
                self._outgoing.put(None)

    def answers(self) -> Iterator[bytes]:
        """Responses, as they become known, until every request has one and there are no more."""
        while (response := self._outgoing.get()) is not None:
            try:
                yield response
            finally:
                self.shared.gate.leave()
            self._room.release()

    def send(self, call: _StreamCall, response: bytes) -> None:
        """End a call of this stream."""
        with self._lock:
            self._calls.remove(call)
            wanted = not self._ended
            if wanted:
                self._outgoing.put(response)
            if self._read_all and not self._calls:
                self._outgoing.put(None)
        if not wanted:
            self.shared.gate.leave()

    def end(self) -> None:
        """Give up what is not answered: nobody waits for it. A second call does nothing."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            calls = list(self._calls)
        self._room.release()  # the reader looks once more
        for call in calls:
            call.cancel()
        with contextlib.suppress(queue.Empty):
            while True:
                if self._outgoing.get_nowait() is not None:
                    self.shared.gate.leave()
        self._outgoing.put(None)


class _StreamCall:
    """One request of a stream, as a `Call`. Thread-safe: what threads share is written once."""

    method = METHOD

    def __init__(
        self,
        stream: _Stream,
        message: bytes,
        arrival_ns: int,
        deadline_ns: int | None,
        metadata: Sequence[tuple[str, str | bytes]],
    ) -> None:
        self.arrival_ns = arrival_ns
        self.deadline_ns = deadline_ns
        self.metadata = metadata
        self.cancelled = False
        self._stream = stream
        self._message = message
        self._act: Callable[[], None] | None = None

    def peer(self) -> str:
        return self._stream.peer

    def on_cancel(self, act: Callable[[], None]) -> None:
        self._act = act
        if self.cancelled:  # written before `_act` is read there, so one of the two threads sees the other's
            act()

    def cancel(self) -> None:
        self.cancelled = True
        if self._act is not None:
            self._act()

    def finish(self, response: bytes) -> None:
        self._send(b"".join((_RESPONSE_TAG, varint(len(response)), response)))

    def fail(self, code: grpc.StatusCode, text: str, trailers: Sequence[Trailer] = ()) -> None:  # noqa: ARG002 - Call's arguments
        """Tell the client by a response; the stream goes on."""
        answer = inference.ModelInferResponse(id=self._id())
        message = inference.ModelStreamInferResponse(error_message=text or code.name, infer_response=answer)
        self._send(message.SerializeToString())

    def _send(self, response: bytes) -> None:
        self._stream.shared.answers.send(lambda: self._stream.send(self, response))

    def _id(self) -> str:
        try:
            return parse_infer(self._message).id
        except InvalidRequestError:
            return ""
