"""What PyTorch has of CUDA, with its rules, on the CPU: for code that captures graphs, on machines without a GPU.

A capture computes what is called in it, and a replay computes it again, in any thread. As on a device, a search and a wait cannot
be captured, and what a search found is known in its thread alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

__all__ = ["FakeCuda", "calls_of"]


class FakeCuda:
    """Takes the place of the functions of torch.cuda that benchmarks use. Owned by one test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capturing: Graph | None = None
        self.searches: list[tuple[str, int]] = []
        taken = {
            "Stream": Stream,
            "CUDAGraph": Graph,
            "stream": self._on,
            "graph": self._capture,
            "synchronize": self._synchronize,
            "set_device": self._set_device,
        }
        for name, function in taken.items():
            monkeypatch.setattr(torch.cuda, name, function)
        for name in ("benchmark", "benchmark_limit"):  # given back after the test
            monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))

    @contextmanager
    def _on(self, _stream: Stream) -> Iterator[None]:
        yield

    @contextmanager
    def _capture(self, graph: Graph, *, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert isinstance(stream, Stream)
        assert capture_error_mode == "thread_local"
        assert self.capturing is None
        self.capturing = graph
        try:
            yield
        finally:
            self.capturing = None

    def _synchronize(self) -> None:
        assert self.capturing is None, "a wait cannot be captured"

    def _set_device(self, _index: int) -> None:
        """There is one."""


class Stream:
    def synchronize(self) -> None:
        pass


class Graph:
    def __init__(self) -> None:
        self.captured: list[Callable[[], Any]] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for call in self.captured:
            call()


def calls_of(cuda: FakeCuda, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that searches where cuDNN is told to, the first time in a thread, as PyTorch's convolutions do."""
    known = threading.local()

    def call(*tensors: torch.Tensor) -> Any:
        key = str([(tensor.shape, tensor.stride()) for tensor in tensors if isinstance(tensor, torch.Tensor)])
        seen = known.__dict__.setdefault("keys", set())
        if key not in seen:
            assert cuda.capturing is None, "a search cannot be captured"
            seen.add(key)
            if torch.backends.cudnn.benchmark:
                cuda.searches.append((threading.current_thread().name, torch.backends.cudnn.benchmark_limit))
        if cuda.capturing is not None:
            cuda.capturing.captured.append(lambda: function(*tensors))
        return function(*tensors)

    return call
