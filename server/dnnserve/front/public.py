"""Calls that come through grpcio's public server: a thread of a pool each, which waits until the call has ended.

The front end for releases of grpcio on which the fast lane does not run. It takes threads and several times the processor time of
the lane, and a stream whose request never comes holds a thread; everything else is as there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from dnnserve.front.answers import Answers
from dnnserve.front.authorization import Objection, refusing_handler
from dnnserve.front.call import Call, Handler, Methods, Trailer, deadline_after
from dnnserve.front.gate import Gate

__all__ = ["PublicHandlers"]

_QUICK_THREADS = 4


class PublicHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # its stub is generic, it is not
    """Gives grpc.server the handlers of unary methods. Thread-safe.

    Args:
        methods: Handlers by path.
        slow: Paths of those that run in the server's own pool; the others answer at once, in a few threads for each service.
        gate: Counts the calls.
        answers: Through which answers are sent.
        refuse: Ends a call that may not pass.
        objection: What is said against a call before its request is read.
        clock: Monotonic nanoseconds.
    """

    def __init__(
        self,
        methods: Methods,
        slow: Collection[str],
        gate: Gate,
        answers: Answers,
        refuse: Callable[[Call, Exception], None],
        objection: Objection,
        clock: Callable[[], int],
    ) -> None:
        self._methods = methods
        self._refuse = refuse
        self._objection = objection
        self._slow = frozenset(slow)
        self._gate = gate
        self._answers = answers
        self._clock = clock
        services = {_service(path) for path in methods}
        self._quick = {name: ThreadPoolExecutor(_QUICK_THREADS, "dnnserve-quick") for name in services}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """The handler of one call: it knows when the call arrived, which is now, and not when a thread is free."""
        path = handler_call_details.method
        handle = self._methods.get(path)
        if handle is None:
            return None
        arrival_ns, metadata = self._clock(), handler_call_details.invocation_metadata
        error = self._objection(path, metadata)
        if error is not None:

            def refuse(context: grpc.ServicerContext) -> bytes:
                call = _PublicCall(path, arrival_ns, self._clock(), metadata, context, self._answers)
                self._refuse(call, error)
                return call.wait()

            return refusing_handler(refuse)

        def behave(message: bytes, context: grpc.ServicerContext) -> bytes:
            return self._run(
                _PublicCall(path, arrival_ns, self._clock(), metadata, context, self._answers), handle, message
            )

        if path not in self._slow:
            behave.experimental_thread_pool = self._quick[_service(path)]  # type: ignore[attr-defined]
        return grpc.unary_unary_rpc_method_handler(behave)

    def _run(self, call: _PublicCall, handle: Handler, message: bytes) -> bytes:
        self._gate.enter()
        if not call.context.add_callback(self._gate.leave):
            self._gate.leave()
        handle(call, message)
        return call.wait()


def _service(path: str) -> str:
    return path.rpartition("/")[0]


class _PublicCall:
    """A `Call` in whose thread somebody waits. Thread-safe."""

    def __init__(
        self,
        path: str,
        arrival_ns: int,
        now_ns: int,
        metadata: Sequence[Any],
        context: grpc.ServicerContext,
        answers: Answers,
    ) -> None:
        self.method = path.rpartition("/")[2]
        self.arrival_ns = arrival_ns
        self.metadata = metadata
        self.context = context
        self._answers = answers
        remaining_s = context.time_remaining()
        self.deadline_ns = None if remaining_s is None else deadline_after(now_ns, remaining_s)
        self._done = threading.Event()
        self._response = b""
        self._failure: tuple[grpc.StatusCode, str, Sequence[Trailer]] | None = None

    @property
    def cancelled(self) -> bool:
        return not self.context.is_active()

    def peer(self) -> str:
        return self.context.peer()

    def on_cancel(self, act: Callable[[], None]) -> None:
        if not self.context.add_callback(act):
            act()

    def finish(self, response: bytes) -> None:
        self._response = response
        self._answers.send(self._done.set)

    def fail(self, code: grpc.StatusCode, text: str, trailers: Sequence[Trailer] = ()) -> None:
        self._failure = (code, text, trailers)
        self._answers.send(self._done.set)

    def wait(self) -> bytes:
        """The response, once it is there.

        Raises:
            Exception: the call has failed; grpc.server sends its status.
        """
        self._done.wait()
        if self._failure is not None:
            code, text, trailers = self._failure
            self.context.set_trailing_metadata(tuple(trailers))
            self.context.abort(code, text)
        return self._response
