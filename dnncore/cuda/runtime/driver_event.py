"""Events as the driver has them: numbers, which whoever made them destroys."""

from __future__ import annotations

from dnncore.cuda.runtime.driver import CudaCallError, bindings, call

__all__ = [
    "create_event",
    "destroy_event",
    "elapsed_ms",
    "event_has_passed",
    "record_event",
    "synchronize_event",
    "wait_for_event",
]


def create_event(*, timed: bool) -> int:
    """Make an event; `destroy_event` ends it."""
    flags = bindings().CUevent_flags
    return int(call("cuEventCreate", (flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING).value))


def record_event(event: int, stream: int) -> None:
    """Enqueue the event."""
    call("cuEventRecord", event, stream)


def wait_for_event(stream: int, event: int) -> None:
    """Let a stream, of whatever device, wait for an event."""
    call("cuStreamWaitEvent", stream, event, 0)


def event_has_passed(event: int) -> bool:
    """Whether everything before the event has run."""
    driver = bindings()
    (status,) = driver.cuEventQuery(event)
    if status not in (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_NOT_READY):
        raise CudaCallError("cuEventQuery", status)
    return bool(status == driver.CUresult.CUDA_SUCCESS)


def synchronize_event(event: int) -> None:
    """Wait for the event."""
    call("cuEventSynchronize", event)


def elapsed_ms(start: int, end: int) -> float:
    """Milliseconds from one event to another, both of which have passed."""
    return float(call("cuEventElapsedTime", start, end))


def destroy_event(event: int) -> None:
    """Give an event back, from any thread; the driver keeps what is still needed of it.

    Nobody could do anything about a refusal, which a lost context or a forked process gives, so its status stays unread.
    """
    bindings().cuEventDestroy(event)
