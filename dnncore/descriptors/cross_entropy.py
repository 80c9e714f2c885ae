"""What a cross-entropy is taken against, beside the labels themselves."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.descriptors.settings import HashedOnce, number, settle, whole
from dnncore.errors import BadParamError

__all__ = ["CrossEntropyDescriptor"]


@dataclass(frozen=True, slots=True)
class CrossEntropyDescriptor(HashedOnce):
    """Settings of a cross-entropy. Immutable.

    Args:
        label_smoothing: Part of every target that is shared out among all K classes: (1 - s) * target + s / K.
        ignore_index: A label whose rows have loss and gradient 0, as those of labels outside 0..K-1 always have.

    Source: label smoothing, arXiv 1512.00567, section 7.
    """

    label_smoothing: float = 0.0
    ignore_index: int | None = None

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        settle(self, label_smoothing=number(self.label_smoothing, "label_smoothing"))
        if self.ignore_index is not None:
            settle(self, ignore_index=whole(self.ignore_index, "ignore_index"))
        if not 0 <= self.label_smoothing <= 1:
            raise BadParamError(f"label smoothing {self.label_smoothing} must be from 0 to 1")
