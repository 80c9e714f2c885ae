"""The authorizer before every call, whichever front end takes it: its refusals come before a request is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc

from dnnserve.errors import RequestError
from dnnserve.front.status import status_of
from dnnserve.security.authorizer import Authorizer

__all__ = ["AuthorizingInterceptor", "Objection", "objection_of", "refusing_handler"]

Objection = Callable[[str, Iterable[Sequence[Any]]], RequestError | None]
"""Says of a method's path and a call's metadata why the call may not pass; None: it may."""


def objection_of(authorizer: Callable[[], Authorizer] | None) -> Objection:
    """What is said against calls by the authorizer that holds at the time; without one, nothing."""
    if authorizer is None:
        return lambda _path, _metadata: None

    def objection(path: str, metadata: Iterable[Sequence[Any]]) -> RequestError | None:
        try:
            authorizer().check(path, metadata)
        except RequestError as error:
            return error
        return None

    return objection


class AuthorizingInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Refuses calls of streams, and of methods that nobody knows, before anything else sees them. Thread-safe.

    Args:
        objection: What is said against a call.
        judges_itself: Whether what handles a method's calls asks for the objection itself, to count and log what it refuses.
        on_refused: Told of what is refused here: the path, and the status.
    """

    def __init__(
        self,
        objection: Objection,
        judges_itself: Callable[[str], bool],
        on_refused: Callable[[str, grpc.StatusCode], None] = lambda _path, _code: None,
    ) -> None:
        self._objection = objection
        self._on_refused = on_refused
        self._judges_itself = judges_itself

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Give the call's own handler, or one that ends it."""
        path = handler_call_details.method
        if self._judges_itself(path):
            return continuation(handler_call_details)
        error = self._objection(path, handler_call_details.invocation_metadata or ())
        if error is None:
            return continuation(handler_call_details)
        status = status_of(error)
        self._on_refused(path, status.code)
        return refusing_handler(lambda context: context.abort(status.code, status.text))


def refusing_handler(refuse: Callable[[grpc.ServicerContext], Any]) -> grpc.RpcMethodHandler[bytes, bytes]:
    """A handler, for a method of any kind, that ends a call without waiting for its request.

    It is a stream's: a handler of one request would wait for that, and hold a thread.
    """
    return grpc.stream_stream_rpc_method_handler(lambda _requests, context: iter((refuse(context),)))
