"""The 1,797 handwritten digits that scikit-learn carries: real images, 8 x 8, 10 classes, nothing to download.

Source: UCI "Optical Recognition of Handwritten Digits", its test part; values 0..16.
"""

from __future__ import annotations

import hashlib

import numpy as np

from dnncore.errors import ConfigError

__all__ = ["Digits"]


class Digits:
    """The digits as 8-bit gray images: value * 255 / 16, rounded. Thread-safe.

    Raises:
        ConfigError: scikit-learn is not installed.
    """

    def __init__(self) -> None:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise ConfigError('data.kind is "digits", which needs scikit-learn: pip install "dnncore[demo]"') from error
        self.class_names = tuple("0123456789")
        bunch = load_digits()
        self._images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
        self.labels: np.ndarray = bunch.target.astype(np.int32)

    @property
    def name(self) -> str:
        """See Dataset."""
        return "digits"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of pixels and labels."""
        return hashlib.sha256(self._images.tobytes() + self.labels.tobytes()).hexdigest()

    def read(self, indices: np.ndarray) -> np.ndarray:
        """uint8 [n, 8, 8, 1]."""
        return np.asarray(self._images[indices])
