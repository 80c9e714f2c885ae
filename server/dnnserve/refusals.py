"""Why a request is not answered, in words for its client: the values at hand, and what to do about it."""

from __future__ import annotations

from dnnserve.envelope import InferenceRequest
from dnnserve.errors import (
    DeadlineExpiredError,
    InvalidRequestError,
    OverloadedError,
    QueueFullError,
    RequestCancelledError,
    RequestError,
    RestartingError,
    UnreachableError,
)
from dnnserve.scheduling.admission import Refusal, Rejection
from dnnserve.scheduling.entry import Limits

__all__ = ["cancelled_error", "expired_error", "refusal_error", "restarting_error"]


def refusal_error(refusal: Refusal, request: InferenceRequest, limits: Limits, now_ns: int) -> RequestError:
    """The policy did not admit it."""
    error = _refusal_error(refusal, request, limits, now_ns)
    if refusal.reason is Rejection.UNREACHABLE:
        error.answer_ns = now_ns + refusal.needed_ns
    elif refusal.reason in (Rejection.OVERLOADED, Rejection.RESTARTING) and request.deadline_ns is not None:
        error.answer_ns = request.deadline_ns + refusal.retry_after_ns  # the margin before deadlines is in it
    if refusal.retry_after_ns:
        error.retry_after_ms = max(1, refusal.retry_after_ns // 1_000_000)
    return error


def _refusal_error(refusal: Refusal, request: InferenceRequest, limits: Limits, now_ns: int) -> RequestError:
    match refusal.reason:
        case Rejection.TOO_MANY_ROWS:
            return InvalidRequestError(
                f"the request has {len(request.block)} rows; model {request.model} takes at most {limits.max_batch_rows} "
                "a request: split it"
            )
        case Rejection.QUEUE_FULL:
            return QueueFullError(
                f"{limits.max_queue_requests} requests wait for model {request.model}, as many as may; "
                "retry later or start the server with a larger --max-queue"
            )
        case Rejection.OVERLOADED:
            return OverloadedError(
                f"the answer would take {refusal.needed_ns / 1e6:.1f} ms, because others wait for model {request.model}, and "
                f"{_left_ms(request, now_ns):.1f} ms are left: retry after {refusal.retry_after_ns / 1e6:.0f} ms, or ask another "
                "replica"
            )
        case Rejection.RESTARTING:
            return _restarting_error(request, refusal.needed_ns, refusal.retry_after_ns, now_ns)
        case Rejection.UNREACHABLE:
            return UnreachableError(
                f"{_left_ms(request, now_ns):.1f} ms are left, and model {request.model} takes {refusal.needed_ns / 1e6:.1f} ms "
                f"for {len(request.block)} rows: allow more time"
            )
        case Rejection.DEADLINE_PASSED:
            return expired_error(request, now_ns)


def restarting_error(request: InferenceRequest, back_ns: int, now_ns: int) -> RequestError:
    """It waits for a device that will be back too late for it."""
    error = _restarting_error(request, back_ns - now_ns, back_ns - now_ns, now_ns)
    error.retry_after_ms = max(1, (back_ns - now_ns) // 1_000_000)
    return error


def _restarting_error(request: InferenceRequest, needed_ns: int, retry_after_ns: int, now_ns: int) -> RequestError:
    return RestartingError(
        f"the answer would take {needed_ns / 1e6:.0f} ms, because what runs model {request.model} is being started again, and "
        f"{_left_ms(request, now_ns):.1f} ms are left: retry after {retry_after_ns / 1e6:.0f} ms, or ask another replica"
    )


def cancelled_error(request: InferenceRequest, now_ns: int) -> RequestError:
    """Its front end gave it up. What has outlived its deadline is given up too, queued or running: it is late, not unwanted."""
    if request.deadline_ns is not None and request.deadline_ns <= now_ns:
        return expired_error(request, now_ns)
    return RequestCancelledError("the request was cancelled by its client")


def expired_error(request: InferenceRequest, now_ns: int) -> DeadlineExpiredError:
    """Its deadline came first, or will."""
    deadline_ns = now_ns if request.deadline_ns is None else request.deadline_ns
    waited_ms, granted_ms = (now_ns - request.arrival_ns) / 1e6, (deadline_ns - request.arrival_ns) / 1e6
    passed = deadline_ns <= now_ns
    kind = DeadlineExpiredError if passed else UnreachableError
    return kind(
        f"not {'answered' if passed else 'started'} after {waited_ms:.1f} ms; the deadline was {granted_ms:.1f} ms after arrival: "
        "allow more time, or send less at once"
    )


def _left_ms(request: InferenceRequest, now_ns: int) -> float:
    return 0.0 if request.deadline_ns is None else (request.deadline_ns - now_ns) / 1e6
