"""Which images are trained on and which are held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnncore.errors import ConfigError
from dnncore.train.data.dataset import Dataset, Subset
from dnncore.train.data.order import permutation

__all__ = ["Split"]

# Keeps the split's random numbers apart from those of the epochs' orders, which come from the same seed.
_STREAM = 0x5B117


@dataclass(frozen=True)
class Split:
    """A dataset in two parts that share no image, stratified: each class is cut in the same proportion. Immutable.

    Args:
        dataset: The whole.
        seed: Which of the possible splits.
        holdout: Fraction of every class that is held out, rounded, but at least one image stays on either side.
        first_held_out: Index from which on all images are held out, in place of all that; None where there is none.
    """

    dataset: Dataset
    seed: int
    holdout: float
    first_held_out: int | None = None

    def __post_init__(self) -> None:
        if self.first_held_out is not None:
            return
        counts = np.bincount(self.dataset.labels, minlength=len(self.dataset.class_names))
        if counts.min() < 2:
            name = self.dataset.class_names[int(counts.argmin())]
            raise ConfigError(
                f"{self.dataset.name}: class {name!r} has {counts.min()} images; 2 are needed, one to train on and one to hold out"
            )

    def _indices(self) -> tuple[np.ndarray, np.ndarray]:
        if self.first_held_out is not None:
            everything = np.arange(len(self.dataset.labels))
            return everything[: self.first_held_out], everything[self.first_held_out :]
        order = permutation(len(self.dataset.labels), self.seed, _STREAM)
        is_held_out = np.zeros(len(order), bool)
        for label in range(len(self.dataset.class_names)):
            of_class = order[self.dataset.labels[order] == label]
            count = min(max(round(self.holdout * len(of_class)), 1), len(of_class) - 1)
            is_held_out[of_class[:count]] = True
        return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)

    @property
    def training(self) -> Subset:
        """The part that is trained on, in the dataset's order."""
        return Subset(self.dataset, self._indices()[0])

    @property
    def held_out(self) -> Subset:
        """The part that is never trained on, in the dataset's order."""
        return Subset(self.dataset, self._indices()[1])

    def to_dict(self) -> dict[str, object]:
        """For a package's provenance: how it was made and which images are held out, by their index in the dataset."""
        training, held_out = self._indices()
        return {
            "seed": self.seed,
            "holdout": self.holdout,
            "num_training": len(training),
            "num_held_out": len(held_out),
            "held_out": held_out.tolist(),
        }
