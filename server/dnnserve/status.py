"""The one table from errors to gRPC statuses. Whoever changes a status changes it here, for both services."""

from __future__ import annotations

import logging

import grpc

from dnncore.errors import PreprocessingError
from dnnserve.errors import (
    DeadlineExpiredError,
    DeviceLostError,
    ExecutionError,
    InvalidRequestError,
    ModelNotFoundError,
    QueueFullError,
    RequestCancelledError,
    UnavailableError,
)

__all__ = ["STATUS_OF_ERROR", "status_of"]

_log = logging.getLogger(__name__)

# The first entry that fits counts: a subclass stands before its base.
STATUS_OF_ERROR: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (PreprocessingError, grpc.StatusCode.INVALID_ARGUMENT),
    (ModelNotFoundError, grpc.StatusCode.NOT_FOUND),
    (QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DeadlineExpiredError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (RequestCancelledError, grpc.StatusCode.CANCELLED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (DeviceLostError, grpc.StatusCode.UNAVAILABLE),
    (ExecutionError, grpc.StatusCode.INTERNAL),
)


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Code and message for the client.

    An error that is not in the table is a defect of ours: it is logged in full, and the client is told nothing of its inside.
    """
    for kind, code in STATUS_OF_ERROR:
        if isinstance(error, kind):
            return code, str(error)
    _log.error("a request failed unexpectedly", exc_info=error)
    return grpc.StatusCode.INTERNAL, "internal error; the server's log has the cause"
