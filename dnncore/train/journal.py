"""The journal: what happened in a run, as JSON lines for programs to read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["Journal"]


class Journal:
    """Appends one JSON object an event to a file and flushes it. Owned by one thread.

    A resumed run appends to the same file. What a killed run wrote after its last checkpoint stays in it, so an iteration may
    appear twice: the later one counts.

    Args:
        path: The file; made if it is not there.
        clock: Seconds since the epoch, the "time" of every event.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file = path.open("ab+")
        if self._file.tell() > 0:
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")  # a killed run left half a line: it must not swallow the next event

    def write(self, event: str, **values: object) -> None:
        """Append {"event": event, "time": now, **values}.

        Raises:
            ValueError: a value is NaN or infinite, which JSON cannot hold.
        """
        line = json.dumps({"event": event, "time": self._clock(), **values}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
