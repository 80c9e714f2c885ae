"""What the rows of a request are made of: the rows themselves, pixels at the net's size, or image files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from dnncore.errors import PreprocessingError
from dnncore.preprocessing import Preprocessing
from dnnserve.errors import InvalidRequestError

__all__ = ["Checkpoint", "Images", "Pixels", "RowSource", "Rows"]

_T = TypeVar("_T")
_INSTANT_BYTES = (
    1 << 16
)  # pixels that are normalised in about 100 us; handing them to another thread takes 20 us of both

Checkpoint = Callable[[], None]
"""Raises where the work has become pointless: the call was cancelled, or its deadline has passed."""


class RowSource(Protocol):
    """Makes a request's rows. Immutable."""

    @property
    def instant(self) -> bool:
        """Whether the rows are there, or as good as; else they are for a thread that may take its time."""
        ...

    def count_pixels(self, checkpoint: Checkpoint) -> int:
        """Pixels to decode, by the files' headers; 0 where there is nothing to decode.

        Raises:
            InvalidRequestError: a file is not an image, or too large.
        """
        ...

    def rows(self, checkpoint: Checkpoint) -> np.ndarray:
        """The rows: float32 [n, C, H, W].

        Raises:
            InvalidRequestError: a file cannot be decoded.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows as the net takes them: float32 [n, C, H, W]. Immutable."""

    array: np.ndarray

    instant = True

    def count_pixels(self, checkpoint: Checkpoint) -> int:  # noqa: ARG002 - RowSource's arguments
        """None are decoded."""
        return 0

    def rows(self, checkpoint: Checkpoint) -> np.ndarray:  # noqa: ARG002
        """The array."""
        return self.array


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """Pixels at the net's size, uint8 [n, H, W, C], to be normalised. Immutable."""

    array: np.ndarray
    preprocessing: Preprocessing

    @property
    def instant(self) -> bool:
        """A few are."""
        return self.array.nbytes <= _INSTANT_BYTES

    def count_pixels(self, checkpoint: Checkpoint) -> int:  # noqa: ARG002
        """None are decoded."""
        return 0

    def rows(self, checkpoint: Checkpoint) -> np.ndarray:  # noqa: ARG002
        """The normalised pixels."""
        return self.preprocessing.normalize(self.array)


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Image files to be decoded, resized and normalised. Immutable."""

    files: Sequence[bytes]
    preprocessing: Preprocessing

    instant = False

    def count_pixels(self, checkpoint: Checkpoint) -> int:
        """Pixels of all files, before they are resized."""
        return sum(self._each(self.preprocessing.count_pixels, checkpoint))

    def rows(self, checkpoint: Checkpoint) -> np.ndarray:
        """What the preprocessing makes of the files."""
        return np.stack(self._each(self.preprocessing.from_bytes, checkpoint))

    def _each(self, act: Callable[[bytes], _T], checkpoint: Checkpoint) -> list[_T]:
        results = []
        for index, file in enumerate(self.files):
            checkpoint()
            try:
                results.append(act(file))
            except PreprocessingError as error:
                raise InvalidRequestError(f"image {index}: {error}") from error
        return results
