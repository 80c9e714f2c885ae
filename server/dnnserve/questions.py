"""What front ends ask of the server beside inference: plain data, which travels between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dnnserve.errors import RequestError
from dnnserve.lifecycle.requests import Question as RepositoryQuestion
from dnnserve.lifecycle.versions import IndexEntry
from dnnserve.shared_memory.requests import RegionQuestion

__all__ = ["Answer", "Control", "Question"]

Question = RepositoryQuestion | RegionQuestion

Answer = tuple[IndexEntry, ...] | RequestError
"""Versions, none but for an index; or why what was asked could not be done."""


class Control(Protocol):
    """The server as a front end sees it. Thread-safe."""

    def ask(self, question: Question, answer: Callable[[Answer], None]) -> None:
        """Have a question answered, once, when that can be done, in any thread. Does not block."""
        ...
