"""Operands of which some may be missing, and what the validations of normalisations share."""

from __future__ import annotations

import math
from typing import ClassVar

from dnncore.descriptors import TensorDescriptor
from dnncore.descriptors.settings import number
from dnncore.dtypes import DType
from dnncore.errors import BadParamError

__all__ = ["OptionalOperands", "blends_parameters", "has_elements", "has_shape", "is_epsilon", "together"]


class OptionalOperands:
    """Operands that are fields of the names in `possible_inputs` and `possible_outputs`; None where one is missing. Immutable."""

    __slots__ = ()
    possible_inputs: ClassVar[tuple[str, ...]]
    possible_outputs: ClassVar[tuple[str, ...]]
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset()

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs that there are."""
        return tuple(name for name in self.possible_inputs if getattr(self, name) is not None)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs that there are."""
        return tuple(name for name in self.possible_outputs if getattr(self, name) is not None)

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read, in the order of `input_names`."""
        return tuple(getattr(self, name) for name in self.input_names)

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is written, in the order of `output_names`."""
        return tuple(getattr(self, name) for name in self.output_names)


def has_shape(shape: tuple[int, ...], dtype: DType, why: str, **tensors: TensorDescriptor | None) -> None:
    """Refuse tensors, given by name, of another shape or dtype; those that are missing are in order."""
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.shape != shape or tensor.dtype is not dtype):
            raise BadParamError(
                f"{name} is {tensor.dtype.value}{list(tensor.shape)}, but {why} needs {dtype.value}{list(shape)}"
            )


def together(**tensors: TensorDescriptor | None) -> None:
    """Refuse tensors, given by name, of which only some are there."""
    missing = [name for name, tensor in tensors.items() if tensor is None]
    if missing and len(missing) < len(tensors):
        there = [name for name in tensors if name not in missing]
        raise BadParamError(f"{', '.join(there)} came without {', '.join(missing)}; all or none of them are needed")


def has_elements(x: TensorDescriptor, axes: tuple[int, ...], per: str) -> None:
    """Refuse an x without a single element over the axes that a statistic is taken over, where there are statistics to take."""
    groups = math.prod(extent for axis, extent in enumerate(x.shape) if axis not in axes)
    if groups and not math.prod(x.shape[axis] for axis in axes):
        raise BadParamError(f"x has shape {x.shape}: no element {per}, so there are no statistics")


def blends_parameters(
    parameter_beta: float, **parameters: tuple[TensorDescriptor | None, TensorDescriptor | None]
) -> None:
    """Refuse pairs (gradient, old gradient), given by the gradient's name, that do not go with parameter_beta.

    An old gradient is given if and only if the gradient is and parameter_beta is not 0.
    """
    for name, (gradient, old) in parameters.items():
        if (old is not None) != (gradient is not None and parameter_beta != 0):
            raise BadParamError(
                f"old_{name} is {old} but parameter_beta is {parameter_beta} and {name} {gradient}: "
                f"it is given if and only if {name} is and parameter_beta is not 0"
            )


def is_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is negative or not finite."""
    if not 0 <= number(epsilon, "epsilon") < math.inf:
        raise BadParamError(f"epsilon {epsilon} must be finite and not negative")
