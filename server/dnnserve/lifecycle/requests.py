"""What is asked of the model repository: plain data, which travels between processes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IndexWanted", "LoadWanted", "Question", "UnloadWanted"]


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
