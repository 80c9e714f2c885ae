"""Two datasets as one: what is trained on, and behind it what is held out."""

from __future__ import annotations

import hashlib

import numpy as np

from dnncore.errors import ConfigError
from dnncore.train.data.dataset import Dataset

__all__ = ["Joined"]


class Joined:
    """The images of one dataset, then those of another with the same classes. Thread-safe.

    Args:
        first: Its images have the lower indices.
        second: May know fewer classes, where these are numbers.

    Raises:
        ConfigError: the classes differ.
    """

    def __init__(self, first: Dataset, second: Dataset) -> None:
        few, many = sorted((first.class_names, second.class_names), key=len)
        if many[: len(few)] != few or (len(few) < len(many) and many != tuple(map(str, range(len(many))))):
            raise ConfigError(
                f"{first.name} has the classes {list(first.class_names)}, {second.name} others: {list(many)}"
            )
        self._first, self._second = first, second
        self.class_names = many
        self.labels = np.concatenate([first.labels, second.labels])

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self._first.name} and {self._second.name}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of both."""
        return hashlib.sha256((self._first.fingerprint + self._second.fingerprint).encode()).hexdigest()

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See Dataset."""
        count = len(self._first.labels)
        return np.stack(
            [
                (self._first.read(np.array([i])) if i < count else self._second.read(np.array([i - count])))[0]
                for i in map(int, indices)
            ]
        )
