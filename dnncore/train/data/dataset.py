"""What a dataset is, and a part of one."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dnncore.errors import ConfigError

__all__ = ["Dataset", "Subset"]


class Dataset(Protocol):
    """Images of one size with one label each, by index. Implementations are thread-safe: they do not change."""

    @property
    def name(self) -> str:
        """What it is, for people."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each label, 0 to K-1."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """Label of every image: int32 [N]."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digest by which another set of images is told from this one."""
        ...

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Images in the order of the indices: uint8 [n, height, width, C].

        Raises:
            PreprocessingError: an image cannot be read; the message names its file.
        """
        ...


class Subset:
    """Some images of a dataset, numbered from 0. Thread-safe.

    Args:
        dataset: The whole.
        indices: Which of its images: int64 [n].
    """

    def __init__(self, dataset: Dataset, indices: np.ndarray) -> None:
        self._dataset = dataset
        self._indices = indices
        self.name = dataset.name
        self.class_names = dataset.class_names
        self.labels: np.ndarray = dataset.labels[indices]

    @property
    def fingerprint(self) -> str:
        """The whole's."""
        return self._dataset.fingerprint

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See Dataset."""
        return self._dataset.read(self._indices[indices])


def names_of_labels(labels: np.ndarray, class_names: tuple[str, ...] | None, source: object) -> tuple[str, ...]:
    """The names that were given, or for None the numbers from 0 to the largest label.

    Raises:
        ConfigError: a label has no name; the message names `source`.
    """
    largest = int(labels.max())
    names = class_names or tuple(map(str, range(largest + 1)))
    if largest >= len(names):
        raise ConfigError(f"{source} has the label {largest}, data.classes {len(names)} names")
    return names


def whole_labels(values: np.ndarray) -> np.ndarray | None:
    """Labels that a file has in any dtype, as int32 [N]; None where they are no whole numbers from 0 on."""
    values = np.asarray(values).reshape(-1)
    with np.errstate(invalid="ignore"):  # NaN is none
        found: np.ndarray = np.clip(values, 0, 1 << 20).astype(np.int32)
    return found if np.array_equal(found, values) else None


def as_pixels(values: np.ndarray) -> np.ndarray | None:
    """Elements that a file has in any dtype, as uint8; None where they are no whole numbers from 0 to 255."""
    with np.errstate(invalid="ignore"):
        pixels = values.astype(np.uint8)
    return pixels if np.array_equal(pixels, values) else None
