"""Dropout with a counter-based generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import TensorDescriptor
from dnncore.descriptors.settings import number, settle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.problem import Operands, same_dtype, same_shape, writable

__all__ = ["DropoutProblem"]


@dataclass(frozen=True, slots=True)
class DropoutProblem(Operands):
    """y = x / (1 - probability), or 0 with that probability; its own adjoint, so the backward operation is the same one on dy.

    Element i, in row-major order of the shape whatever the layout, is dropped where word i % 4 of Philox4x32-10 with counter
    (i // 4, offset) and key seed is below probability * 2^32. The same state gives the same elements in every dtype and layout, on
    every device; nothing but the state has to be kept for the backward pass. A dropped element is 0 also where x is NaN.

    Args:
        x: Any shape.
        state: int32 [4]: seed and offset, both 64 bits, low words first. A tensor, so that a recorded program can go on to the next
            offset.
        y: Shape of x; may be x.
        probability: Of dropping, 0 to 1.

    Source: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
    """

    x: TensorDescriptor
    state: TensorDescriptor
    y: TensorDescriptor
    probability: float
    input_names: ClassVar[tuple[str, ...]] = ("x", "state")
    output_names: ClassVar[tuple[str, ...]] = ("y",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("x", "y")})

    def __post_init__(self) -> None:
        settle(self, probability=number(self.probability, "probability"))
        same_dtype(x=self.x, y=self.y)
        same_shape(x=self.x, y=self.y)
        writable(y=self.y)
        if self.state.dtype is not DType.INT32 or self.state.shape != (4,) or not self.state.is_row_major:
            raise BadParamError(
                f"state ({self.state}) must be int32 [4] without gaps: seed and offset, low words first"
            )
        if not 0 <= self.probability <= 1:
            raise BadParamError(f"probability {self.probability} of dropping must be from 0 to 1")

    @property
    def threshold(self) -> int:
        """Words below it drop their element; 2^32 drops all."""
        return round(self.probability * 2**32)

    @property
    def scale(self) -> float:
        """Factor of what is kept."""
        return 0.0 if self.probability == 1 else 1 / (1 - self.probability)
