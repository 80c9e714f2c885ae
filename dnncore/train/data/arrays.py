"""Images in a NumPy array, for programs that have them in memory: Caffe's MemoryData."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from dnncore.errors import ConfigError, PreprocessingError
from dnncore.train.data.dataset import as_pixels, names_of_labels, whole_labels

__all__ = ["ArrayImages"]

_DATA, _LABEL = "data.npy", "label.npy"


class ArrayImages:
    """Pixels 0 to 255 of the net's size and in its order of channels, read when they are wanted. Thread-safe.

    What is stored in floating point must be whole numbers: a net that is served gets images, to which preprocessing is done.

    Args:
        path: A folder with data.npy, [N, C, H, W], and label.npy, of N elements, as `numpy.save` writes them.
        input_shape: [C, H, W] that every image must have.
        class_names: None for the numbers from 0 to the largest label.

    Raises:
        ConfigError: a file is not there, is malformed, or holds something else.
    """

    def __init__(self, path: Path, input_shape: tuple[int, ...], class_names: tuple[str, ...] | None = None) -> None:
        self._path = path
        self._data, label = _mapped(path / _DATA), _mapped(path / _LABEL)
        if self._data.shape[1:] != input_shape:
            raise ConfigError(
                f"{path / _DATA} has images {list(self._data.shape[1:])}, "
                f"preprocessing gives [C, height, width] = {list(input_shape)}"
            )
        if not label.size or label.size != len(self._data):
            raise ConfigError(f"{path} has {len(self._data)} images and {label.size} labels")
        found = whole_labels(label)
        if found is None:
            raise ConfigError(f"{path / _LABEL} has labels that are no whole numbers from 0 on")
        self.labels: np.ndarray = found
        self.class_names = names_of_labels(found, class_names, path)

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"arrays {self._path.name}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the images' dtype and extents, and of all labels."""
        return hashlib.sha256(self.labels.tobytes() + f"{self._data.dtype} {self._data.shape}".encode()).hexdigest()

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See Dataset."""
        pixels = as_pixels(np.asarray(self._data[indices]))
        if pixels is None:
            raise PreprocessingError(
                f"{self._path / _DATA}: among the images {indices.tolist()} are values that are no whole numbers from 0 to 255"
            )
        return np.moveaxis(pixels, 1, -1)


def _mapped(path: Path) -> np.ndarray:
    """An array of numbers as it lies in a file: a map is as long as that, whatever its header says, and of no pickled objects."""
    try:
        found: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); numpy.save writes such files") from error
    if found.dtype.kind not in "fiu" or not found.ndim:
        raise ConfigError(f"{path} holds {found.dtype} {list(found.shape)}; an array of numbers is needed")
    return found
