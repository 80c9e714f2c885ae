"""What can go wrong with a call, by the status that it ended with. Each error keeps the server's message and its code.

ClientError (DnncoreError)                         any status that has no class of its own here; see .code
├── InvalidArgumentError (ValueError)              INVALID_ARGUMENT     the request can never be right: change it
├── NotFoundError (LookupError)                    NOT_FOUND            no such model, or no such version of it
├── OverloadedError                                RESOURCE_EXHAUSTED   full queue: later or elsewhere; or a message too large
├── DeadlineExceededError (TimeoutError)           DEADLINE_EXCEEDED    no answer within the call's timeout
├── UnavailableError (ConnectionError)             UNAVAILABLE          no server there, or it is starting or draining
├── CallCancelledError                             CANCELLED            this side cancelled, or closed its channel
├── UnimplementedError                             UNIMPLEMENTED        the server does not have this call
└── ServerError                                    INTERNAL             the server failed, or answered what makes no sense
"""

from __future__ import annotations

import grpc

from dnncore.errors import DnncoreError

__all__ = [
    "CallCancelledError",
    "ClientError",
    "DeadlineExceededError",
    "InvalidArgumentError",
    "NotFoundError",
    "OverloadedError",
    "ServerError",
    "UnavailableError",
    "UnimplementedError",
    "error_from_rpc",
]


class ClientError(DnncoreError):
    """A call failed; root of the tree drawn in this module's docstring.

    Args:
        message: The server's own words, or gRPC's when no server was reached.
        code: Status of the call; by default the one that the class stands for.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(self, message: str, code: grpc.StatusCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InvalidArgumentError(ClientError, ValueError):
    """The request can never be right; also raised before anything is sent."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFoundError(ClientError, LookupError):
    """The server has no such model, or no such version of it."""

    code = grpc.StatusCode.NOT_FOUND


class OverloadedError(ClientError):
    """The server's queue is full, or a message was larger than one side accepts."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceededError(ClientError, TimeoutError):
    """The call's timeout passed, or the server saw that it cannot be kept."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class UnavailableError(ClientError, ConnectionError):
    """No server answers there, or the one that does takes no requests now."""

    code = grpc.StatusCode.UNAVAILABLE


class CallCancelledError(ClientError):
    """The call was cancelled before it was answered."""

    code = grpc.StatusCode.CANCELLED


class UnimplementedError(ClientError):
    """The server does not have this call: another service, or another version of it, listens there."""

    code = grpc.StatusCode.UNIMPLEMENTED


class ServerError(ClientError):
    """The server failed, or answered something that does not fit the request."""

    code = grpc.StatusCode.INTERNAL


_CLASSES: dict[grpc.StatusCode, type[ClientError]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        NotFoundError,
        OverloadedError,
        DeadlineExceededError,
        UnavailableError,
        CallCancelledError,
        UnimplementedError,
        ServerError,
    )
}


def error_from_rpc(error: grpc.RpcError) -> ClientError:
    """Return the error that stands for the status of a finished call, with its message."""
    code, details = error.code(), error.details()
    return _CLASSES.get(code, ClientError)(details or code.name, code)
