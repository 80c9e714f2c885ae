"""Images in an LMDB database, as Caffe's convert_imageset and DIGITS make them: a Datum by key."""

from __future__ import annotations

import hashlib
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.errors import ConfigError, PreprocessingError
from dnncore.preprocessing import Preprocessing
from dnncore.train.data.dataset import names_of_labels
from dnncore.train.data.datum import label_of, read_datum

__all__ = ["LmdbImages", "stored_shape"]

_MOST_CLASSES = 1 << 20


class LmdbImages:
    """Images in the order of their keys, read and brought to the net's size when they are wanted. Thread-safe.

    Pixels are gray, or blue, green, red, as Caffe has them.

    Args:
        path: The database's folder, or its file.
        preprocessing: Decodes what is encoded; resizes and crops.
        class_names: None for the numbers from 0 to the largest label.

    Raises:
        ConfigError: it is not there, is no such database, or holds no images; or lmdb is not installed.
    """

    def __init__(self, path: Path, preprocessing: Preprocessing, class_names: tuple[str, ...] | None = None) -> None:
        self._name = path.name
        self._preprocessing = preprocessing
        self._environment = _opened(path.resolve())
        self._keys: list[bytes] = []
        labels, digest = [], hashlib.sha256()
        with self._environment.begin(buffers=True) as transaction:
            for key, value in transaction.cursor():
                try:
                    label = label_of(value)
                except PreprocessingError as error:
                    raise ConfigError(f"data.path {path}, key {bytes(key)!r}: {error}") from error
                if label > _MOST_CLASSES:
                    raise ConfigError(
                        f"data.path {path}, key {bytes(key)!r}: label {label} is none from 0 to {_MOST_CLASSES}"
                    )
                self._keys.append(bytes(key))
                labels.append(label)
                digest.update(b"%b\0%d\0%d\n" % (self._keys[-1], label, len(value)))
        if not labels:
            raise ConfigError(f"data.path {path} holds no images")
        self.fingerprint = digest.hexdigest()
        self.labels = np.array(labels, np.int32)
        self.class_names = names_of_labels(self.labels, class_names, path)

    @property
    def name(self) -> str:
        """The database's name."""
        return f"LMDB {self._name}"

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See Dataset."""
        with self._environment.begin(buffers=True) as transaction:
            return np.stack([self._image(self._keys[index], transaction) for index in indices])

    def _image(self, key: bytes, transaction: Any) -> np.ndarray:
        try:
            return _pixels(transaction.get(key, b""), self._preprocessing)
        except PreprocessingError as error:
            raise PreprocessingError(f"{self.name}, key {key!r}: {error}") from error


def stored_shape(path: Path) -> tuple[int, int, int] | None:
    """(C, H, W) of a database's first image; None where that is a file within it, which alone knows its size, or there is none.

    Raises:
        ConfigError: as for `LmdbImages`.
    """
    with _opened(path.resolve()).begin(buffers=True) as transaction:
        for _, value in transaction.cursor():
            try:
                datum = read_datum(value)
            except PreprocessingError as error:
                raise ConfigError(f"data.path {path}: {error}") from error
            return None if datum.encoded else datum.shape
    return None


def _pixels(value: memoryview, preprocessing: Preprocessing) -> np.ndarray:
    datum = read_datum(value)
    if datum.encoded:
        return preprocessing.decode(bytes(datum.data))
    if min(datum.shape) < 1 or math.prod(datum.shape) != len(datum.data):
        raise PreprocessingError(f"{len(datum.data)} B are no pixels {list(datum.shape)}")
    planes = np.frombuffer(datum.data, np.uint8).reshape(datum.shape)
    return preprocessing.fit(np.moveaxis(planes[::-1], 0, -1))


@cache
def _opened(path: Path) -> Any:
    """An environment for reading; each once, since a process must not open one twice, and for good, since threads read in it."""
    try:
        import lmdb
    except ModuleNotFoundError as error:
        raise ConfigError(f"data.path {path} is read with lmdb: pip install dnncore[lmdb]") from error
    try:
        return lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False)
    except (lmdb.Error, OSError) as error:
        raise ConfigError(f"data.path {path} is no LMDB database: {error}") from error
