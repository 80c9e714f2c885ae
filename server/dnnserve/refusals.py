"""Why a request is not answered, in words for its client: the values at hand, and what to do about it."""

from __future__ import annotations

from dnnserve.batcher import Limits, Rejection
from dnnserve.envelope import InferenceRequest
from dnnserve.errors import (
    DeadlineExpiredError,
    InvalidRequestError,
    QueueFullError,
    RequestCancelledError,
    RequestError,
)

__all__ = ["cancelled_error", "expired_error", "rejection_error"]


def rejection_error(rejection: Rejection, request: InferenceRequest, limits: Limits, now_ns: int) -> RequestError:
    """The batcher did not admit it."""
    match rejection:
        case Rejection.TOO_MANY_ROWS:
            return InvalidRequestError(
                f"the request has {len(request.rows)} rows; model {request.model} takes at most {limits.max_batch_rows} "
                "a request: split it"
            )
        case Rejection.QUEUE_FULL:
            return QueueFullError(
                f"{limits.max_queue_requests} requests wait for model {request.model}, as many as may; "
                "retry later or start the server with a larger --max-queue"
            )
        case Rejection.DEADLINE_PASSED:
            return expired_error(request, now_ns)


def cancelled_error(request: InferenceRequest, now_ns: int) -> RequestError:
    """Its front end gave it up. What has outlived its deadline is given up too, queued or running: it is late, not unwanted."""
    if request.deadline_ns is not None and request.deadline_ns <= now_ns:
        return expired_error(request, now_ns)
    return RequestCancelledError(f"request {request.id!r} was cancelled by its client")


def expired_error(request: InferenceRequest, now_ns: int) -> DeadlineExpiredError:
    """Its deadline came first."""
    deadline_ns = now_ns if request.deadline_ns is None else request.deadline_ns
    waited_ms, granted_ms = (now_ns - request.arrival_ns) / 1e6, (deadline_ns - request.arrival_ns) / 1e6
    return DeadlineExpiredError(
        f"not answered after {waited_ms:.1f} ms; the deadline was {granted_ms:.1f} ms after arrival: allow more time, or send "
        "less at once"
    )
