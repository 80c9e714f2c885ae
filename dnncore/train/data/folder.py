"""Images in folders, one folder a class: ROOT/cat/1.png, ROOT/dog/7.jpg."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import numpy as np

from dnncore.errors import ConfigError, PreprocessingError
from dnncore.preprocessing import SUFFIXES, Preprocessing

__all__ = ["Folder", "decoded"]


class Folder:
    """Image files, decoded when they are read, by the preprocessing that serving uses. Thread-safe.

    Classes and files are taken in the order of their names; names that start with "." and files that do not end
    as one of `dnncore.preprocessing.SUFFIXES` are left out.

    Args:
        root: Folder of the classes' folders.
        preprocessing: Decodes and resizes.

    Raises:
        ConfigError: no such folder, fewer than two classes, or a class without images.
    """

    def __init__(self, root: Path, preprocessing: Preprocessing) -> None:
        if not root.is_dir():
            raise ConfigError(f"data.path {root} is not a folder; give one that holds a folder of images a class")
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        if len(folders) < 2:
            raise ConfigError(
                f"data.path {root} holds {len(folders)} folders; 2 classes or more are needed, one folder each"
            )
        self._root = root
        self._preprocessing = preprocessing
        self.class_names = tuple(folder.name for folder in folders)
        self._files: list[Path] = []
        labels: list[int] = []
        for label, folder in enumerate(folders):
            files = sorted(
                path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
            )
            if not files:
                raise ConfigError(f"class folder {folder} holds no {', '.join(SUFFIXES)} files; add some or remove it")
            self._files += files
            labels += [label] * len(files)
        self.labels = np.array(labels, np.int32)

    @property
    def name(self) -> str:
        """The root's name."""
        return f"folder {self._root.name}"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files' paths under the root and their sizes; reading every byte would cost as much as an epoch."""
        digest = hashlib.sha256()
        for path in self._files:
            digest.update(f"{path.relative_to(self._root).as_posix()}\0{path.stat().st_size}\n".encode())
        return digest.hexdigest()

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See Dataset."""
        return np.stack([decoded(self._files[index], self._preprocessing) for index in indices])


def decoded(path: Path, preprocessing: Preprocessing) -> np.ndarray:
    """Pixels of an image file: uint8 [height, width, C].

    Raises:
        PreprocessingError: it cannot be read; the message names it.
    """
    try:
        return preprocessing.decode(path.read_bytes())
    except (OSError, PreprocessingError) as error:
        raise PreprocessingError(f"{path}: {error}; repair or remove the file") from error
