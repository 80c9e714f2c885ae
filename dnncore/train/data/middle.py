"""The middle of images that are trained on at random places."""

from __future__ import annotations

import numpy as np

from dnncore.train.data.dataset import Dataset

__all__ = ["Middle"]


class Middle:
    """What preprocessing's last step cuts out of the images of a dataset. Thread-safe.

    Args:
        dataset: Whose images are not cropped yet.
        rows: Which of them remain.
        columns: Likewise.
    """

    def __init__(self, dataset: Dataset, rows: slice, columns: slice) -> None:
        self._dataset = dataset
        self._rows, self._columns = rows, columns
        self.name = dataset.name
        self.class_names = dataset.class_names
        self.labels = dataset.labels

    @property
    def fingerprint(self) -> str:
        """The whole images'."""
        return self._dataset.fingerprint

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See Dataset."""
        return self._dataset.read(indices)[:, self._rows, self._columns]
