"""What a figure was measured on: GPUs, driver, versions and commit, as plain values for JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from typing import Any

__all__ = ["environment"]

_PACKAGES = ("dnncore", "numpy", "pycuda", "grpcio", "protobuf", "torch")


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Facts of this machine; DNNCORE_COMMIT names the commit where there is no git."""
    gpus = _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    compiler = _output("nvcc", "--version")
    return {
        "commit": os.environ.get("DNNCORE_COMMIT") or _output("git", "rev-parse", "HEAD"),
        "gpus": gpus.splitlines() if gpus else [],
        "nvcc": compiler.splitlines()[-2] if compiler else None,
        "cpus": os.cpu_count(),
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }
