"""Batches in the order in which they are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dnncore.errors import ConfigError
from dnncore.preprocessing import Preprocessing
from dnncore.train.data.dataset import Dataset
from dnncore.train.data.order import permutation, raw_numbers

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


_MIRRORING, _CROPPING = 0x3F11B, 0xC409
"""Keep these random numbers apart from those of the orders, which come from the same seed."""


class Loader:
    """Cuts a dataset into batches, in another order every epoch. Thread-safe: it has no state.

    The order of an epoch is a pure function of (seed, epoch), so (epoch, position) is all that a checkpoint needs.

    Args:
        dataset: What to cut.
        preprocessing: Turns pixels into the net's input, or into what that is cut out of.
        batch: Images a batch.
        seed: Of the orders.
        drop_last: Whether the images left over at an epoch's end are left out, instead of making a smaller batch.
        mirror: Whether half of the images, others in each epoch, are mirrored left to right.
        crop: (rows, columns) to be cut out of each image at a random place, another one in each epoch; None for the whole.

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
        crop: tuple[int, int] | None = None,
    ) -> None:
        self._dataset = dataset
        self._preprocessing = preprocessing
        self._batch = batch
        self._seed = seed
        self._mirror = mirror
        self._crop = crop
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

    def _corners(self, epoch: int, crop: tuple[int, int]) -> np.ndarray:
        """First row and column of each image of the dataset in an epoch: int64 [images, 2]."""
        count = len(self._dataset.labels)
        room = np.subtract((self._preprocessing.height, self._preprocessing.width), crop) + 1
        drawn = raw_numbers(2 * count, self._seed, epoch, _CROPPING).reshape(count, 2)
        return np.asarray(drawn % room.astype(np.uint64), np.int64)  # uneven by one part in 2^50

    def batches(self, epoch: int, position: int) -> Iterator[Batch]:
        """Every batch from `position` (batches into the epoch) of `epoch` (from 0) on, without end.

        Raises:
            PreprocessingError: an image cannot be read; the message names its file.
        """
        while True:
            order = self.order(epoch)
            mirrored = self._mirrored(epoch) if self._mirror else None
            corners = None if self._crop is None else self._corners(epoch, self._crop)
            for start in range(position * self._batch, self._count, self._batch):
                indices = order[start : start + self._batch]
                images = self._preprocessing.normalize(self._dataset.read(indices))
                if self._crop is not None and corners is not None:
                    images = _cut(images, corners[indices], self._crop)
                if mirrored is not None:
                    turned = mirrored[indices]
                    images[turned] = images[turned, ..., ::-1]
                yield Batch(images, self._dataset.labels[indices])
            epoch, position = epoch + 1, 0


def _cut(images: np.ndarray, corners: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A part of each image: [n, C, rows, columns] from [n, C, H, W]."""
    rows, columns = size
    return np.stack(
        [image[:, top : top + rows, left : left + columns] for image, (top, left) in zip(images, corners, strict=True)]
    )
