from __future__ import annotations

import numpy as np

from dnncore.train.metrics import confusion_matrix, per_class, ranks


def test_rank_counts_the_classes_in_front_of_the_right_one() -> None:
    scores = np.array([[0.1, 0.7, 0.2]] * 3, np.float32)
    assert ranks(scores, np.array([0, 1, 2], np.int32)).tolist() == [2, 0, 1]


def test_rank_0_is_argmax_for_ties_too() -> None:
    rng = np.random.default_rng(5)
    scores = rng.integers(0, 3, (500, 7)).astype(np.float32)
    labels = rng.integers(0, 7, 500).astype(np.int32)
    np.testing.assert_array_equal(ranks(scores, labels) == 0, scores.argmax(axis=1) == labels)


def test_each_rank_is_taken_once_whatever_the_ties() -> None:
    scores = np.zeros((4, 4), np.float32)
    assert ranks(scores, np.arange(4, dtype=np.int32)).tolist() == [0, 1, 2, 3]


def test_confusion_has_true_classes_in_rows() -> None:
    confusion = confusion_matrix(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1]), 3)
    assert confusion.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]


def test_precision_and_recall_are_none_where_they_are_undefined() -> None:
    a, b, c = per_class(np.array([[3, 1, 0], [0, 2, 0], [0, 0, 0]]), ("a", "b", "c"))
    assert (a.num_images, a.precision, a.recall) == (4, 1.0, 0.75)
    assert (b.num_images, b.precision, b.recall) == (2, 2 / 3, 1.0)
    assert (c.num_images, c.precision, c.recall) == (0, None, None)
