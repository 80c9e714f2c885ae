"""Files that nobody vouches for, into memory: no more of it than a file has bytes, whatever it says of itself."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["read_bounded"]


def read_bounded(path: Path, most: int) -> bytes:
    """All of a file; where it has more than so many bytes, one more than these.

    Python takes the room for as many bytes as are asked for before it reads them, so that they are asked for by the file's size.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        size = min(status.st_size, most) if stat.S_ISREG(status.st_mode) else most  # of a pipe nobody knows it
        return file.read(size + 1)
