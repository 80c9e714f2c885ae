"""Batches in the order in which they are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dnncore.errors import ConfigError
from dnncore.preprocessing import Preprocessing
from dnncore.train.data.dataset import Dataset
from dnncore.train.data.order import permutation

__all__ = ["Batch", "Loader"]


@dataclass(frozen=True, eq=False)
class Batch:
    """One iteration's images. Immutable.

    Args:
        images: float32 [n, C, height, width], preprocessed.
        labels: int32 [n].
    """

    images: np.ndarray
    labels: np.ndarray


_MIRRORING = 0x3F11B
"""Keeps these random numbers apart from those of the orders, which come from the same seed."""


class Loader:
    """Cuts a dataset into batches, in another order every epoch. Thread-safe: it has no state.

    The order of an epoch is a pure function of (seed, epoch), so (epoch, position) is all that a checkpoint needs.

    Args:
        dataset: What to cut.
        preprocessing: Turns pixels into the net's input.
        batch: Images a batch.
        seed: Of the orders.
        drop_last: Whether the images left over at an epoch's end are left out, instead of making a smaller batch.
        mirror: Whether half of the images, others in each epoch, are mirrored left to right.

    Raises:
        ConfigError: there would be no batch at all.
    """

    def __init__(
        self,
        dataset: Dataset,
        preprocessing: Preprocessing,
        batch: int,
        seed: int,
        *,
        drop_last: bool,
        mirror: bool = False,
    ) -> None:
        self._dataset = dataset
        self._preprocessing = preprocessing
        self._batch = batch
        self._seed = seed
        self._mirror = mirror
        self._count = len(dataset.labels) // batch * batch if drop_last else len(dataset.labels)
        if self._count == 0:
            raise ConfigError(
                f'training.batch {batch} with training.last_batch "drop" leaves nothing of {len(dataset.labels)} images; '
                'take a smaller batch or "keep"'
            )

    @property
    def batches_per_epoch(self) -> int:
        """Batches an epoch, a smaller last one included."""
        return -(-self._count // self._batch)

    def order(self, epoch: int) -> np.ndarray:
        """Indices of an epoch's images in the order of training: int64 [n]."""
        return permutation(len(self._dataset.labels), self._seed, epoch)[: self._count]

    def _mirrored(self, epoch: int) -> np.ndarray:
        """Which images of the dataset are mirrored in an epoch: bool [images], those left out included."""
        return np.asarray(permutation(len(self._dataset.labels), self._seed, epoch, _MIRRORING) % 2 == 1)

    def batches(self, epoch: int, position: int) -> Iterator[Batch]:
        """Every batch from `position` (batches into the epoch) of `epoch` (from 0) on, without end.

        Raises:
            PreprocessingError: an image cannot be read; the message names its file.
        """
        while True:
            order = self.order(epoch)
            mirrored = self._mirrored(epoch) if self._mirror else None
            for start in range(position * self._batch, self._count, self._batch):
                indices = order[start : start + self._batch]
                images = self._preprocessing.normalize(self._dataset.read(indices))
                if mirrored is not None:
                    turned = mirrored[indices]
                    images[turned] = images[turned, ..., ::-1]
                yield Batch(images, self._dataset.labels[indices])
            epoch, position = epoch + 1, 0
