"""Images that a text file lists with their labels, as Caffe's ImageData: "cats/1.jpg 0" in each line."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import numpy as np

from dnncore.errors import ConfigError
from dnncore.preprocessing import Preprocessing
from dnncore.train.data.dataset import names_of_labels
from dnncore.train.data.folder import decoded

__all__ = ["ImageList"]


class ImageList:
    """Image files, decoded when they are read, by the preprocessing that serving uses. Thread-safe.

    Args:
        path: The text file.
        root: Put before each path in it, as it is.
        preprocessing: Decodes and resizes.
        class_names: None for the numbers from 0 to the largest label.

    Raises:
        ConfigError: the file cannot be read, is empty, or has a line without a label or with one that has no name.
    """

    def __init__(
        self, path: Path, root: str, preprocessing: Preprocessing, class_names: tuple[str, ...] | None = None
    ) -> None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"data.path {path}: cannot be read ({error}); give a list of images") from error
        self._name = path.name
        self._root = root
        self._preprocessing = preprocessing
        self._files: list[str] = []
        labels: list[int] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            name, _, label = line.strip().rpartition(" ")
            if not name or not (label.isascii() and label.isdigit()) or int(label) > _MOST_CLASSES:
                raise ConfigError(f"{path}:{number}: {line!r} is no path and label, cats/1.jpg 0 say")
            self._files.append(name.strip())
            labels.append(int(label))
        if not labels:
            raise ConfigError(f"{path} lists no images")
        self.labels = np.array(labels, np.int32)
        self.class_names = names_of_labels(self.labels, class_names, path)

    @property
    def name(self) -> str:
        """The text file's name."""
        return f"list {self._name}"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files' paths, labels and sizes; reading every byte would cost as much as an epoch."""
        digest = hashlib.sha256()
        for file, label in zip(self._files, self.labels, strict=True):
            try:
                digest.update(f"{file}\0{label}\0{Path(self._root + file).stat().st_size}\n".encode())
            except OSError as error:
                raise ConfigError(f"{self.name}: {error}; paths count from data.root") from error
        return digest.hexdigest()

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See Dataset."""
        return np.stack([decoded(Path(self._root + self._files[index]), self._preprocessing) for index in indices])


_MOST_CLASSES = 1 << 20
