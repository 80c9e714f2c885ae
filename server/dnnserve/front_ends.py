"""How many processes take calls where nobody has said so: by what the machine has, without using it.

The processes begin before anything else, as copies of one that has touched no driver, so GPUs are counted by their names or files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dnnserve.config import MOST_FRONT_ENDS, ServerConfig

__all__ = ["count_cores", "count_gpus", "decided", "suggested"]

_PER_GPU = 8
_CORES_EACH = 4
"""On an H200 host with 16 cores, the clients on it, four took more requests than six or eight, and 6.3 cores together: the others
are for engines, the scheduler and whoever else is there. On one with 64 cores two GPUs were given 64 thousand images a second by
16, and 50 thousand by ten (docs/performance.md)."""

_GPU_FILE = re.compile(r"nvidia[0-9]+")


def decided(config: ServerConfig) -> ServerConfig:
    """The configuration with a number of front ends: its own, else the one suggested for this machine."""
    if config.front_ends is not None:
        return config
    return replace(config, front_ends=suggested(count_gpus(config.devices), count_cores()))


def suggested(gpus: int, cores: int) -> int:
    """Processes that shall take calls; 0: the server's own does, as one of its own would have nothing to share out."""
    count = min(_PER_GPU * gpus, cores // _CORES_EACH, MOST_FRONT_ENDS)
    return count if count > 1 else 0


def count_gpus(named: str | None, files: Path = Path("/dev"), environment: Mapping[str, str] = os.environ) -> int:
    """GPUs that a server will use: those that are named, else those whose device files are there and which CUDA may see.

    Args:
        named: As `--devices` has it.
        files: Where device files are.
        environment: Its CUDA_VISIBLE_DEVICES bounds the number.
    """
    if named is not None:
        return len({name.strip() for name in named.split(",")} - {"cpu"})
    there = sum(_GPU_FILE.fullmatch(path.name) is not None for path in files.glob("nvidia*"))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    entries = [entry.strip() for entry in visible.split(",")]
    ends = [place for place, entry in enumerate(entries) if not entry or entry.startswith("-")]  # CUDA reads no further
    return min(there, *ends, len(entries))


def count_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use.

    Args:
        quota: Of its container, in cgroup v2's words: microseconds of processor time, or "max", and the period that they are for.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        granted, period = quota.read_text().split()
    except (OSError, ValueError):
        return cores  # there is no cgroup v2, or none that bounds it
    return cores if granted == "max" else max(1, min(cores, int(granted) // int(period)))
