"""Processes as the kernel lists them. Files of one that ends meanwhile vanish, or can be opened and no longer be read."""

from __future__ import annotations

from pathlib import Path

__all__ = ["children", "is_running"]


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is not one that has ended and that nobody has waited for."""
    state = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return bool(state) and state[0] != "Z"


def children(pid: int) -> list[int]:
    """Processes that this one has started and that nobody has waited for."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in tasks for child in _read(path).split()]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
