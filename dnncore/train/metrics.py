"""How good predictions are: pure functions of arrays, K classes and N images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["ClassMetrics", "confusion_matrix", "per_class", "ranks"]


def ranks(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many classes come before the right one: 0 is a top-1 hit, less than 5 a top-5 hit.

    Of equal scores the lower class comes first, as in np.argmax, so that top-1 never counts a tie twice.

    Args:
        scores: [N, K], finite; probabilities or logits.
        labels: int [N], 0..K-1.

    Returns:
        int64 [N].
    """
    own = np.take_along_axis(scores, labels[:, None].astype(np.int64), axis=1)
    classes = np.arange(scores.shape[1])[None, :]
    before = (scores > own) | ((scores == own) & (classes < labels[:, None]))
    return np.asarray(before.sum(axis=1, dtype=np.int64))


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
    """Count images by true class (rows) and predicted class (columns): int64 [K, K]."""
    cells = labels.astype(np.int64) * num_classes + predictions
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """One class of a confusion matrix. Immutable.

    Args:
        label: Its name.
        num_images: Images that are of it.
        precision: Fraction of the images predicted to be of it that are; None when there are none.
        recall: Fraction of its images that were found; None when it has none.
    """

    label: str
    num_images: int
    precision: float | None
    recall: float | None


def per_class(confusion: np.ndarray, labels: tuple[str, ...]) -> tuple[ClassMetrics, ...]:
    """Precision and recall of every class."""
    hits, predicted, actual = confusion.diagonal(), confusion.sum(axis=0), confusion.sum(axis=1)
    return tuple(
        ClassMetrics(
            label,
            int(actual[index]),
            float(hits[index] / predicted[index]) if predicted[index] else None,
            float(hits[index] / actual[index]) if actual[index] else None,
        )
        for index, label in enumerate(labels)
    )
