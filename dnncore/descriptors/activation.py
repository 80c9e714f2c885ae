"""Element-wise non-linearities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from dnncore.descriptors.settings import HashedOnce, member, number, settle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError

__all__ = ["ActivationDescriptor", "ActivationMode"]


class ActivationMode(Enum):
    """An element-wise non-linearity; c is the descriptor's coefficient.

    ======================  ====================================================
    RELU                    max(x, 0)
    CLIPPED_RELU            min(max(x, 0), c)
    LEAKY_RELU              x where x > 0, else c x
    SIGMOID                 1 / (1 + exp(-x))
    TANH                    tanh(x)
    ELU                     x where x > 0, else c (exp(x) - 1)
    SILU                    x sigmoid(x), also called swish
    GELU                    x P(X <= x), X being normal
    GELU_TANH               its approximation x sigmoid(sqrt(8/pi) (x + 0.044715 x^3))
    HARD_SIGMOID            min(max(x / 6 + 1/2, 0), 1)
    HARD_SWISH              x times that
    ======================  ====================================================

    Slopes at kinks are those of the flat side. NaN stays NaN.

    Sources: cuDNN's cudnnActivationMode_t; arXiv 1511.07289 (ELU), 1606.08415 (GELU), 1702.03118 (SiLU), 1905.02244 (hard ones).
    """

    RELU = "relu"
    CLIPPED_RELU = "clipped_relu"
    LEAKY_RELU = "leaky_relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    ELU = "elu"
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    HARD_SIGMOID = "hard_sigmoid"
    HARD_SWISH = "hard_swish"


_TOLD_BY_RESULT = (
    ActivationMode.RELU,
    ActivationMode.CLIPPED_RELU,
    ActivationMode.LEAKY_RELU,
    ActivationMode.SIGMOID,
    ActivationMode.TANH,
)
"""Modes whose slope at x follows from y."""

_WITH_COEFFICIENT = (ActivationMode.CLIPPED_RELU, ActivationMode.LEAKY_RELU, ActivationMode.ELU)


@dataclass(frozen=True, slots=True)
class ActivationDescriptor(HashedOnce):
    """An activation. Immutable.

    Args:
        mode: The function.
        coefficient: The ceiling of CLIPPED_RELU, the slope of LEAKY_RELU below 0, the depth of ELU; 0 for the others.
    """

    mode: ActivationMode
    coefficient: float = 0.0

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        settle(self, mode=member(ActivationMode, self.mode), coefficient=number(self.coefficient, "coefficient"))
        if not math.isfinite(self.coefficient) or self.coefficient < 0:
            raise BadParamError(f"coefficient {self.coefficient} of {self.mode.value} must be finite and not negative")
        if self.coefficient and self.mode not in _WITH_COEFFICIENT:
            raise BadParamError(f"{self.mode.value} has no coefficient, {self.coefficient} is given")

    def result_tells_slope(self, dtype: DType) -> bool:
        """Whether the slope at x follows from y alone, so that a gradient can be given y for x, and x need not be kept.

        Args:
            dtype: Of both. In 16 bits a ceiling may be rounded down: then y seems to lie below it wherever x is above.
        """
        if self.mode is ActivationMode.CLIPPED_RELU:
            highest, ceiling = (float(each.numpy.type(self.coefficient)) for each in (dtype, dtype.compute))
            return highest == ceiling
        return self.mode in _TOLD_BY_RESULT

    @classmethod
    def make(cls, mode: ActivationMode | str, coefficient: float | None = None) -> ActivationDescriptor:
        """Build one by name; without a coefficient the customary one: a ceiling of 6, a slope of 0.01, a depth of 1."""
        mode = member(ActivationMode, mode)
        usual = {ActivationMode.CLIPPED_RELU: 6.0, ActivationMode.LEAKY_RELU: 0.01, ActivationMode.ELU: 1.0}
        return cls(mode, usual.get(mode, 0.0) if coefficient is None else coefficient)
