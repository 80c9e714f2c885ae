"""Where to keep what is made once per machine: compiled kernels, and what batches of a served net took."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["cache_folder", "write_atomically"]


def cache_folder() -> Path:
    """$DNNCORE_CACHE_DIR, else ~/.cache/dnncore; it may not be there yet.

    Raises:
        RuntimeError: neither is set, and the user has no home.
    """
    folder = os.environ.get("DNNCORE_CACHE_DIR")
    return Path(folder) if folder else Path.home() / ".cache" / "dnncore"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that appears complete or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink()
            raise
