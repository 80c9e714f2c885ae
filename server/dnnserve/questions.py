"""What front ends ask of the server beside inference: plain data, which travels between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dnnserve.lifecycle.requests import Answer
from dnnserve.lifecycle.requests import Question as RepositoryQuestion
from dnnserve.shared_memory.requests import RegionQuestion

__all__ = ["Answer", "Control", "Question"]

Question = RepositoryQuestion | RegionQuestion


class Control(Protocol):
    """The server as a front end sees it. Thread-safe."""

    def ask(self, question: Question, answer: Callable[[Answer], None]) -> None:
        """Have a question answered, once, when that can be done, in any thread. Does not block."""
        ...
