"""Tensors that may be missing, and the backward operations, all of which have some."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from dnncore.descriptors import TensorDescriptor
from dnncore.descriptors.settings import number
from dnncore.handle import Handle
from dnncore.problems import Problem
from dnncore.tensor import Tensor

__all__ = ["described", "go_back", "there"]

Factors = tuple[float, float, float, float]
"""alpha and beta of dx, then those of the parameters' gradients."""

Inputs = tuple[Tensor | None, ...]
"""x, dy, scale, saved_mean, saved_inv_std, and what only some operations have."""

Outputs = tuple[Tensor | None, ...]
"""dx, dscale, dbias, likewise."""


def described(tensor: Tensor | None) -> TensorDescriptor | None:
    """What a tensor looks like, None where it is missing."""
    return None if tensor is None else tensor.descriptor


def there(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Those that are not missing."""
    return tuple(tensor for tensor in tensors if tensor is not None)


def go_back(
    handle: Handle,
    kind: Callable[..., Problem],
    arguments: tuple[Hashable, ...],
    factors: Factors,
    inputs: Inputs,
    outputs: Outputs,
    further: tuple[Hashable, ...] = (),
) -> None:
    """Run a backward operation, which blends the gradients of parameters in place.

    Args:
        handle: The handle.
        kind: Makes the problem.
        arguments: Its arguments up to the parameters' factors.
        factors: All four.
        inputs: In this order, whichever the operation.
        outputs: Likewise.
        further: Arguments behind the descriptors of old gradients.
    """
    alpha, beta, parameter_alpha, parameter_beta = factors
    old = outputs[1:3] if parameter_beta else (None, None)
    blend = number(parameter_alpha, "parameter_alpha"), number(parameter_beta, "parameter_beta")
    arguments = (*arguments, *blend, *map(described, old), *further)
    handle.execute(kind, arguments, alpha, there(*inputs, *old), beta, there(*outputs))
