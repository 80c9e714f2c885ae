"""A stream that runs what it is given at once, and the moments in its work."""

from __future__ import annotations

import time

from dnncore.errors import BadParamError

__all__ = ["ReferenceEvent", "ReferenceStream"]


class ReferenceEvent:
    """A time: when it is recorded, everything before it has run. Immutable."""

    def __init__(self) -> None:
        self._recorded_ns = time.perf_counter_ns()

    def query(self) -> bool:
        """It has passed."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def elapsed_ms(self, since: object) -> float:
        """Milliseconds of the host's clock.

        Raises:
            BadParamError: `since` is of another device.
        """
        if not isinstance(since, ReferenceEvent):
            raise BadParamError(f"{since!r} and {self!r} are not of one device: there is no time between them")
        return (self._recorded_ns - since._recorded_ns) / 1e6

    def __repr__(self) -> str:
        return "ReferenceEvent(cpu)"


class ReferenceStream:
    """Work runs when it is enqueued, so there is nothing to wait for. Owned by one thread."""

    handle = None

    def record_event(self) -> ReferenceEvent:
        """Take the time."""
        return ReferenceEvent()

    def wait(self, event: object) -> None:
        """Return at once.

        Raises:
            BadParamError: the event is of another backend.
        """
        if not isinstance(event, ReferenceEvent):
            raise BadParamError(f"a stream of cpu cannot wait for {event!r}: it is of another backend")

    def precede(self, other: int) -> None:
        """Refuse: no other library has streams for the CPU.

        Raises:
            BadParamError: always.
        """
        raise BadParamError(f"stream {other} is named for memory of the cpu, which has no streams; leave it out")

    follow = precede

    def synchronize(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Return at once."""

    abandon = close

    def take_over(self, other: object) -> None:
        """Return at once."""
