"""Element-wise non-linearities."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["ActivationDescriptor", "ActivationMode"]


class ActivationMode(Enum):
    """An element-wise non-linearity."""

    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"


@dataclass(frozen=True, slots=True)
class ActivationDescriptor:
    """An activation; a class of its own so that modes with parameters fit later. Immutable."""

    mode: ActivationMode
