"""The one table from errors to gRPC statuses. Whoever changes a status changes it here, for all services."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import grpc

from dnncore.errors import PreprocessingError
from dnnserve.errors import (
    DeadlineExpiredError,
    DeviceLostError,
    DeviceMemoryError,
    ExecutionError,
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RegionExistsError,
    RegionNotFoundError,
    RepositoryError,
    RequestCancelledError,
    RequestError,
    TooManyRegionsError,
    UnauthenticatedError,
    UnavailableError,
    UnreadMessageError,
    UnsupportedError,
)
from dnnserve.front.call import Trailer

__all__ = ["PUSHBACK", "STATUS_OF_ERROR", "Status", "status_of"]

_log = logging.getLogger(__name__)

PUSHBACK = "grpc-retry-pushback-ms"
"""The trailer that clients with a retry policy obey. Source: gRPC proposal A6, "Pushback"."""

# The first entry that fits counts: a subclass stands before its base.
STATUS_OF_ERROR: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (PreprocessingError, grpc.StatusCode.INVALID_ARGUMENT),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (ForbiddenError, grpc.StatusCode.PERMISSION_DENIED),
    (ModelNotFoundError, grpc.StatusCode.NOT_FOUND),
    (RepositoryError, grpc.StatusCode.FAILED_PRECONDITION),
    (RegionNotFoundError, grpc.StatusCode.NOT_FOUND),
    (RegionExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (TooManyRegionsError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnreadMessageError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnsupportedError, grpc.StatusCode.UNIMPLEMENTED),
    (OverloadedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DeadlineExpiredError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (RequestCancelledError, grpc.StatusCode.CANCELLED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (DeviceLostError, grpc.StatusCode.UNAVAILABLE),
    (DeviceMemoryError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ExecutionError, grpc.StatusCode.INTERNAL),
)


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ends that has no response. Immutable."""

    code: grpc.StatusCode
    text: str
    trailers: tuple[Trailer, ...] = ()


def status_of(error: Exception) -> Status:
    """Code, message and trailing metadata for the client.

    An error that is not in the table is a defect of ours: it is logged in full, and the client is told nothing of its inside.
    """
    for kind, code in STATUS_OF_ERROR:
        if isinstance(error, kind):
            return Status(code, str(error), _pushback(error))
    _log.error("a request failed unexpectedly", exc_info=error)
    return Status(grpc.StatusCode.INTERNAL, "internal error; the server's log has the cause")


def _pushback(error: Exception) -> tuple[Trailer, ...]:
    if isinstance(error, RequestError) and error.retry_after_ms is not None:
        return ((PUSHBACK, str(error.retry_after_ms)),)
    return ()
