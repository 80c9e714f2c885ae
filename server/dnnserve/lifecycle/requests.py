"""What is asked of the model repository, and how it is answered: plain data, which travels between processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dnnserve.errors import RequestError
from dnnserve.lifecycle.versions import IndexEntry

__all__ = ["Answer", "IndexWanted", "LoadWanted", "Question", "Repository", "UnloadWanted"]


@dataclass(frozen=True, slots=True)
class IndexWanted:
    """Which versions are there? Immutable."""

    ready_only: bool = False


@dataclass(frozen=True, slots=True)
class LoadWanted:
    """Load a model from the repository. Immutable."""

    name: str


@dataclass(frozen=True, slots=True)
class UnloadWanted:
    """Unload a model. Immutable."""

    name: str


Question = IndexWanted | LoadWanted | UnloadWanted

Answer = tuple[IndexEntry, ...] | RequestError
"""The versions, none but for an index; or why it could not be done."""


class Repository(Protocol):
    """What a front end sees of the repository. Thread-safe."""

    def ask(self, question: Question, answer: Callable[[Answer], None]) -> None:
        """Have a question answered, once, when that can be done, in any thread. Does not block."""
        ...
