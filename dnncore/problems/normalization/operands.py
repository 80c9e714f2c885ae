"""Operands of which some may be missing, and what the validations of normalisations share."""

from __future__ import annotations

import math
from typing import ClassVar

from dnncore.descriptors import TensorDescriptor
from dnncore.descriptors.settings import number, settle
from dnncore.errors import BadParamError
from dnncore.problems.problem import Problem, same_dtype, same_shape, writable

__all__ = ["NormalizationGradients", "OptionalOperands", "has_elements", "is_epsilon", "operands_fit", "together"]

_LIKE_X = ("x", "z", "dy", "y", "dx", "dz")
_PARAMETERS = ("scale", "bias", "dscale", "dbias", "old_dscale", "old_dbias")
_SAVED = ("saved_mean", "saved_inv_std")


class OptionalOperands:
    """Operands that are fields of the names in `possible_inputs` and `possible_outputs`; None where one is missing. Immutable."""

    __slots__ = ()
    possible_inputs: ClassVar[tuple[str, ...]]
    possible_outputs: ClassVar[tuple[str, ...]]
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset()

    @property
    def macs(self) -> int:
        """0: moving the operands is all there is to it."""
        return 0

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs that there are."""
        return tuple([name for name in self.possible_inputs if getattr(self, name) is not None])

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs that there are."""
        return tuple([name for name in self.possible_outputs if getattr(self, name) is not None])

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read, in the order of `input_names`."""
        return tuple([given for name in self.possible_inputs if (given := getattr(self, name)) is not None])

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is written, in the order of `output_names`."""
        return tuple([given for name in self.possible_outputs if (given := getattr(self, name)) is not None])


class NormalizationGradients(OptionalOperands):
    """Operands of a backward normalisation, whose parameters' gradients have factors of their own. Immutable."""

    __slots__ = ()
    parameter_alpha: float
    parameter_beta: float
    possible_inputs: ClassVar[tuple[str, ...]] = (
        "x",
        "dy",
        "scale",
        "saved_mean",
        "saved_inv_std",
        "old_dscale",
        "old_dbias",
    )
    possible_outputs: ClassVar[tuple[str, ...]] = ("dx", "dscale", "dbias")
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset(
        {("dy", "dx"), ("old_dscale", "dscale"), ("old_dbias", "dbias")}
    )

    def check_blend(self) -> None:
        """Read the factors, and refuse old gradients unless a gradient is given and parameter_beta is not 0."""
        settle(
            self,
            parameter_alpha=number(self.parameter_alpha, "parameter_alpha"),
            parameter_beta=number(self.parameter_beta, "parameter_beta"),
        )
        for name in ("dscale", "dbias"):
            gradient, old = getattr(self, name), getattr(self, f"old_{name}")
            if (old is not None) != (gradient is not None and self.parameter_beta != 0):
                raise BadParamError(
                    f"old_{name} is {old} but parameter_beta is {self.parameter_beta} and {name} {gradient}: "
                    f"it is given if and only if {name} is and parameter_beta is not 0"
                )


def operands_fit(problem: Problem, why: str, parameters: tuple[int, ...], statistics: tuple[int, ...]) -> None:
    """Refuse operands of another dtype or shape than x asks for, and outputs whose elements may share memory.

    Statistics that are saved for the backward operation are in the compute type of x. Parameters, and statistics that belong to a
    model, are in that or in the dtype of x, each by itself.

    Args:
        problem: A normalisation of x, forward or backward.
        why: What the shapes come from: "axis 1 of x".
        parameters: Shape of scale, bias and their gradients.
        statistics: Shape of means, variances and the like.
    """
    names = (*problem.input_names, *problem.output_names)
    given = dict(zip(names, (*problem.inputs, *problem.outputs), strict=True))
    alike = {name: tensor for name, tensor in given.items() if name in _LIKE_X}
    same_dtype(**alike)
    same_shape(**alike)
    x = given["x"]
    for name, tensor in given.items():
        shape = parameters if name in _PARAMETERS else statistics
        dtypes = (x.dtype.compute,) if name in _SAVED else dict.fromkeys((x.dtype.compute, x.dtype))
        if name not in _LIKE_X and (tensor.shape != shape or tensor.dtype not in dtypes):
            raise BadParamError(
                f"{name} is {tensor.dtype.value}{list(tensor.shape)}, but {why} {x.dtype.value}{list(x.shape)} needs "
                f"{' or '.join(dtype.value for dtype in dtypes)}{list(shape)}"
            )
    writable(**{name: given[name] for name in problem.output_names})


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


def is_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is negative or not finite."""
    if not 0 <= number(epsilon, "epsilon") < math.inf:
        raise BadParamError(f"epsilon {epsilon} must be finite and not negative")
