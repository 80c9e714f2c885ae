"""What is asked of the model repository: plain data, which travels between processes."""

from __future__ import annotations

from dataclasses import dataclass

from dnnserve.errors import RequestError
from dnnserve.lifecycle.versions import IndexEntry

__all__ = ["Answer", "IndexWanted", "LoadWanted", "Question", "UnloadWanted"]


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
"""Versions, none but for an index; or why what was asked could not be done."""
