"""The authorizer before the methods of a grpc.Server's public API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from dnnserve.errors import RequestError
from dnnserve.front.status import status_of
from dnnserve.security.authorizer import Authorizer

__all__ = ["AuthorizingInterceptor"]


class AuthorizingInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Refuses calls before their requests are read. Thread-safe.

    Args:
        authorizer: Gives the one that holds now.
    """

    def __init__(self, authorizer: Callable[[], Authorizer]) -> None:
        self._authorizer = authorizer

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Give the call's own handler, or one that ends it."""
        try:
            self._authorizer().check(handler_call_details.method, handler_call_details.invocation_metadata or ())
        except RequestError as error:
            status = status_of(error)
            # A stream's, whatever the method is: a handler of one request would wait for that, and hold a thread.
            return grpc.stream_stream_rpc_method_handler(
                lambda _requests, context: context.abort(status.code, status.text)
            )
        return continuation(handler_call_details)
