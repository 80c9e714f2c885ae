"""What a call returns, as frozen values; nothing here knows the wire."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.preprocessing import Preprocessing

__all__ = ["Classification", "ModelInfo", "Prediction"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """One label for one image. Immutable.

    Args:
        index: Position in the model's output.
        label: Its name; empty when the model has none.
        probability: In [0, 1].
    """

    index: int
    label: str
    probability: float


@dataclass(frozen=True, slots=True)
class Classification:
    """The labels of one image, most probable first; at least one. Immutable."""

    predictions: tuple[Prediction, ...]

    @property
    def best(self) -> Prediction:
        """The most probable label."""
        return self.predictions[0]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server says of one loaded version of a model. Immutable.

    Args:
        name: As asked for.
        version: The one that this describes; the latest when none was asked for.
        versions: Every version that is loaded.
        input_shape: (C, H, W) of one image, or of a row of another input; empty where the model has several.
        labels: One name an output, in order; empty when the model has none.
        preprocessing: What the server does to an image, or a sender of float32 tensors has to do; None where
            the model takes float32 tensors alone.
        max_batch_size: Most images in one request.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    input_shape: tuple[int, ...]
    labels: tuple[str, ...]
    preprocessing: Preprocessing | None
    max_batch_size: int
