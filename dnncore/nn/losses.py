"""What is minimised of a head while a net is trained: one number for each image, of which the mean over the batch counts.

A loss is the nodes that compute it. Its gradient follows from those of their operators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from dnncore.nn.operators import (
    Activation,
    Binary,
    Cast,
    CrossEntropy,
    CrossEntropyBackward,
    Flatten,
    Ones,
    Reduce,
    Reshape,
    Scale,
    Unary,
    Zeros,
)

__all__ = [
    "Add",
    "ContrastiveLoss",
    "EuclideanLoss",
    "HingeLoss",
    "LogLoss",
    "Loss",
    "Over",
    "SigmoidLoss",
    "SoftmaxLoss",
]

Add = Callable[..., str]
"""Adds a node of an operator and names of values; gives the name of its output."""

Over = Literal["images", "counted", "nothing"]
"""What a sum of losses is divided by: the number of images, that of those that count, or nothing."""


@dataclass(frozen=True)
class Loss(ABC):
    """One number for each image. Immutable."""

    @property
    def of_classes(self) -> bool:
        """Whether it is of logits [N, K] and classes, so that a net with it is a classifier."""
        return True

    @property
    def targets(self) -> tuple[str, ...]:
        """Values of the net that it reads beside the head's own."""
        return ()

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The same loss where values of the net have other names."""
        return self

    @abstractmethod
    def nodes(self, add: Add, x: str, labels: str, dtype: str) -> str:
        """Add what computes it.

        Args:
            add: Where the nodes go.
            x: The head's value.
            labels: Classes, int32 [N].
            dtype: Name of x's element type.

        Returns:
            Name of the losses [N].
        """


@dataclass(frozen=True)
class SoftmaxLoss(Loss):
    """Cross-entropy of softmax(x) and the class of each image.

    Args:
        ignored: A class, or another number, whose images have a loss of 0; None for none.
        over: What the sum is divided by.
    """

    ignored: int | None = None
    over: Over = "images"

    def nodes(self, add: Add, x: str, labels: str, dtype: str) -> str:
        losses = add(CrossEntropy(), x, labels)
        if self.ignored is None:
            return losses if self.over == "images" else add(Binary("mul"), losses, _images(add, labels, dtype))
        other = add(Binary("not_equal", 1.0, float(self.ignored)), labels, add(Ones(), labels))
        counted = add(Cast(dtype), other)
        losses = add(Binary("mul"), losses, counted)
        if self.over == "images":
            return losses
        losses = add(Binary("mul"), losses, _images(add, labels, dtype))
        if self.over == "nothing":
            return losses
        count = add(Reduce("add", (0,)), counted)
        return add(Binary("div"), losses, add(Binary("max"), count, add(Ones(), count)))  # where none counts, by 1


@dataclass(frozen=True)
class HingeLoss(Loss):
    """The sum over the classes of max(0, 1 + x) or, for the image's own, of max(0, 1 - x); or that of their squares.

    Args:
        squared: Whether of squares.
    """

    squared: bool = False

    def nodes(self, add: Add, x: str, labels: str, dtype: str) -> str:
        own = _own(add, x, labels, dtype)
        signed = add(Binary("sub", 1.0, 2.0), x, add(Binary("mul"), own, x))
        margins = add(Activation("relu"), add(Binary("add"), add(Ones(), x), signed))
        return add(Reduce("add", (1,), keep=False), add(Unary("square"), margins) if self.squared else margins)


@dataclass(frozen=True)
class LogLoss(Loss):
    """-log of the image's own of probabilities x, of which one below 1e-20 counts as that."""

    def nodes(self, add: Add, x: str, labels: str, dtype: str) -> str:
        own = add(Reduce("add", (1,), keep=False), add(Binary("mul"), _own(add, x, labels, dtype), x))
        least = add(Scale(_LEAST_PROBABILITY), add(Ones(), own))
        return add(Scale(-1.0), add(Unary("log"), add(Binary("max"), own, least)))


_LEAST_PROBABILITY = 1e-20
"""Caffe's."""


@dataclass(frozen=True)
class _Compared(Loss):
    """Of a value and another one, the target, element by element.

    Args:
        target: The other value's name; "" for the classes as numbers, one for each image.
    """

    target: str = ""

    @property
    def of_classes(self) -> bool:
        return False

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,) if self.target else ()

    def renamed(self, names: Mapping[str, str]) -> Self:
        return replace(self, target=names.get(self.target, self.target))

    def _rows(self, add: Add, x: str, labels: str, dtype: str) -> tuple[str, str]:
        """Both as [N, elements]."""
        target = add(Flatten(), self.target) if self.target else add(Reshape((-1, 1)), add(Cast(dtype), labels))
        return add(Flatten(), x), target


@dataclass(frozen=True)
class EuclideanLoss(_Compared):
    """Half of the squared distance from the target."""

    def nodes(self, add: Add, x: str, labels: str, dtype: str) -> str:
        difference = add(Binary("sub"), *self._rows(add, x, labels, dtype))
        return add(Scale(0.5), add(Reduce("add", (1,), keep=False), add(Unary("square"), difference)))


@dataclass(frozen=True)
class ContrastiveLoss(_Compared):
    """Half of the squared distance from the target where the label is not 0, so that both are to be alike; else half of the square
    of what the distance lacks to a margin.

    Args:
        margin: Distance from which on two that differ have no loss.
        of_squares: Whether it is the squared distance that is to be as large as the margin, and what it lacks that counts.
    """

    margin: float = 1.0
    of_squares: bool = False

    def nodes(self, add: Add, x: str, labels: str, dtype: str) -> str:
        difference = add(Binary("sub"), *self._rows(add, x, labels, dtype))
        distance = add(Reduce("norm2", (1,), keep=False), difference)
        squared = add(Reduce("add", (1,), keep=False), add(Unary("square"), difference))
        alike = add(Cast(dtype), add(Binary("not_equal"), labels, add(Zeros(), labels)))
        ones = add(Ones(), alike)
        lacking = add(Binary("sub", self.margin), ones, squared if self.of_squares else distance)
        lacking = add(Activation("relu"), lacking)
        apart = lacking if self.of_squares else add(Unary("square"), lacking)
        parts = add(Binary("mul"), alike, squared), add(Binary("mul"), add(Binary("sub"), ones, alike), apart)
        return add(Binary("add", 0.5, 0.5), *parts)


@dataclass(frozen=True)
class SigmoidLoss(_Compared):
    """The sum of the cross-entropies of sigmoid(x) and a target between 0 and 1.

    Args:
        over: What the sum is divided by; "counted" is the number of elements.
    """

    over: Over = "images"

    def nodes(self, add: Add, x: str, labels: str, dtype: str) -> str:
        x, target = self._rows(add, x, labels, dtype)
        each = add(Binary("sub"), add(Unary("softplus"), x), add(Binary("mul"), x, target))
        if self.over == "counted":
            return add(Reduce("avg", (1,), keep=False), each)
        losses = add(Reduce("add", (1,), keep=False), each)
        return losses if self.over == "images" else add(Binary("mul"), losses, _images(add, labels, dtype))


def _own(add: Add, x: str, labels: str, dtype: str) -> str:
    """1 where a class is the image's own, else 0, in the shape of x: where softmax(0) - onehot(label) is not above 0."""
    zeros = add(Zeros(), x)
    return add(Cast(dtype), add(Binary("less_equal"), add(CrossEntropyBackward(), zeros, labels), zeros))


def _images(add: Add, labels: str, dtype: str) -> str:
    """The number of images, [1]: the mean of losses times it is their sum."""
    return add(Reduce("add", (0,)), add(Cast(dtype), add(Ones(), labels)))
