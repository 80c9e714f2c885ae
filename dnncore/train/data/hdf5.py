"""Images in HDF5 files that a text file lists, as Caffe's HDF5Data: arrays "data" [N, C, H, W] and "label" [N] in each."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from dnncore.errors import BackendUnavailableError, ConfigError, ModelImportError, PreprocessingError
from dnncore.importers.hdf5 import array_at, opened
from dnncore.train.data.dataset import as_pixels, names_of_labels, whole_labels

__all__ = ["HDF5Images"]


class HDF5Images:
    """Pixels 0 to 255 of the net's size and in its order of channels, read when they are wanted. Thread-safe.

    What is stored in floating point must be whole numbers: a net that is served gets images, to which preprocessing is done.

    Args:
        path: The text file, a path of an HDF5 file in each line, from the working directory or from its own folder.
        input_shape: [C, H, W] that every image must have.
        class_names: None for the numbers from 0 to the largest label.

    Raises:
        ConfigError: a file is not there, is malformed, or holds something else; or h5py is not installed.
    """

    def __init__(self, path: Path, input_shape: tuple[int, ...], class_names: tuple[str, ...] | None = None) -> None:
        try:
            names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"data.path {path}: cannot be read ({error}); give a list of HDF5 files") from error
        self._name = path.name
        self._files: list[Path] = []
        self._starts = [0]
        labels: list[np.ndarray] = []
        for name in names:
            file = Path(name) if Path(name).is_file() else path.parent / name
            try:
                labels.append(_labels(file, input_shape))
            except (BackendUnavailableError, ModelImportError) as error:
                raise ConfigError(f"data.path {path}: {error}") from error
            self._files.append(file)
            self._starts.append(self._starts[-1] + len(labels[-1]))
        if not self._starts[-1]:
            raise ConfigError(f"{path} lists no images")
        self.labels = np.concatenate(labels)
        self.class_names = names_of_labels(self.labels, class_names, path)

    @property
    def name(self) -> str:
        """The text file's name."""
        return f"HDF5 {self._name}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the files' names and sizes, and of all labels."""
        digest = hashlib.sha256(self.labels.tobytes())
        for file in self._files:
            digest.update(f"{file.name}\0{file.stat().st_size}\n".encode())
        return digest.hexdigest()

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See Dataset."""
        images: list[np.ndarray] = []
        places = np.searchsorted(self._starts, indices, side="right") - 1
        for place, index in zip(places, indices, strict=True):
            file = self._files[place]
            with opened(file) as root:
                data = array_at(root, "data", by_row=True)
                if data is None:
                    raise PreprocessingError(f"{file}: has no images any more")
                values = np.asarray(data[index - self._starts[place]])
            pixels = as_pixels(values)
            if pixels is None:
                raise PreprocessingError(
                    f"{file}: image {index - self._starts[place]} has values that are no whole numbers from 0 to 255"
                )
            images.append(np.moveaxis(pixels, 0, -1))
        return np.stack(images)


def _labels(file: Path, input_shape: tuple[int, ...]) -> np.ndarray:
    with opened(file) as root:
        data, label = array_at(root, "data", by_row=True), array_at(root, "label")
        if data is None or label is None:
            raise ModelImportError(str(file), ['lacks "data" or "label"'])
        if data.shape[1:] != input_shape:
            problem = f"has images {list(data.shape[1:])}, preprocessing gives [C, height, width] = {list(input_shape)}"
            raise ModelImportError(str(file), [problem])
        if label.size != data.shape[0]:
            raise ModelImportError(str(file), [f"has {data.shape[0]} images and {label.size} labels"])
        found = whole_labels(label[()])
        if found is None:
            raise ModelImportError(str(file), ["has labels that are no whole numbers from 0 on"])
        return found
