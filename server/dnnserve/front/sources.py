"""What the rows of a request are made of that are not there yet: image files to be decoded, or shared memory to be copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from dnncore.errors import PreprocessingError
from dnncore.preprocessing import Preprocessing
from dnnserve.errors import InvalidRequestError

__all__ = ["Checkpoint", "Images", "RowSource"]

_T = TypeVar("_T")

Checkpoint = Callable[[], None]
"""Raises where the work has become pointless: the call was cancelled, or its deadline has passed."""


class RowSource(Protocol):
    """Makes a request's rows, in a thread that may take its time. Immutable."""

    def count_pixels(self, checkpoint: Checkpoint) -> int:
        """Pixels to decode, by the files' headers.

        Raises:
            InvalidRequestError: a file is not an image, or too large.
        """
        ...

    def rows(self, checkpoint: Checkpoint) -> Sequence[np.ndarray]:
        """The rows of each input; or uint8 [n, H, W, C] pixels at the net's size, of which its device makes the only one.

        Raises:
            InvalidRequestError: a file cannot be decoded.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Image files to be decoded and resized. Immutable."""

    files: Sequence[bytes | memoryview]
    preprocessing: Preprocessing

    def count_pixels(self, checkpoint: Checkpoint) -> int:
        """Pixels of all files, before they are resized."""
        return sum(self._each(self.preprocessing.count_pixels, checkpoint))

    def rows(self, checkpoint: Checkpoint) -> Sequence[np.ndarray]:
        """The files' pixels at the net's size."""
        return (np.stack(self._each(self.preprocessing.decode, checkpoint)),)

    def _each(self, act: Callable[[bytes], _T], checkpoint: Checkpoint) -> list[_T]:
        results = []
        for index, file in enumerate(self.files):
            checkpoint()
            try:
                results.append(act(bytes(file)))  # a view is copied here, by a thread that may take its time
            except PreprocessingError as error:
                raise InvalidRequestError(f"image {index}: {error}") from error
        return results
