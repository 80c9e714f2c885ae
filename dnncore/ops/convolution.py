"""Convolution in its three directions, and the gradient of a bias."""

from __future__ import annotations

from dnncore.descriptors import ConvolutionDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.ops.tensor import sum_to
from dnncore.problems import ConvolutionProblem, Direction
from dnncore.problems.problem import at_least_2d
from dnncore.tensor import Tensor

__all__ = [
    "convolution_backward_bias",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
]


def convolution_forward(
    handle: Handle,
    alpha: float,
    x: Tensor,
    w: Tensor,
    conv: ConvolutionDescriptor,
    beta: float,
    y: Tensor,
    *,
    algorithm: str | None = None,
) -> None:
    """y [N, K, *output] = x [N, C, *input] correlated with w [K, C/G, *filter] (or convolved, by `conv.mode`).

    Args:
        algorithm: Take the one of this name; None lets the handle's preference choose.

    Source: arXiv 1410.0759, section 3.
    """
    _convolve(handle, Direction.FORWARD, alpha, (x, w, y), (x, w), conv, beta, y, algorithm)


def convolution_backward_data(
    handle: Handle,
    alpha: float,
    w: Tensor,
    dy: Tensor,
    conv: ConvolutionDescriptor,
    beta: float,
    dx: Tensor,
    *,
    algorithm: str | None = None,
) -> None:
    """dx [N, C, *input] = the adjoint of the forward operation in x, applied to dy [N, K, *output]."""
    _convolve(handle, Direction.BACKWARD_DATA, alpha, (dx, w, dy), (w, dy), conv, beta, dx, algorithm)


def convolution_backward_filter(
    handle: Handle,
    alpha: float,
    x: Tensor,
    dy: Tensor,
    conv: ConvolutionDescriptor,
    beta: float,
    dw: Tensor,
    *,
    algorithm: str | None = None,
) -> None:
    """dw [K, C/G, *filter] = the adjoint of the forward operation in w, applied to dy [N, K, *output].

    dw has x's dtype or, unrounded, the type that it is computed in.
    """
    _convolve(handle, Direction.BACKWARD_FILTER, alpha, (x, dw, dy), (x, dy), conv, beta, dw, algorithm)


def _convolve(
    handle: Handle,
    direction: Direction,
    alpha: float,
    geometry: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, Tensor],
    conv: ConvolutionDescriptor,
    beta: float,
    output: Tensor,
    algorithm: str | None,
) -> None:
    x, w, y = geometry
    arguments = (direction, x.descriptor, w.descriptor, y.descriptor, conv)
    handle.execute(ConvolutionProblem, arguments, alpha, inputs, beta, (output,), algorithm=algorithm)


def convolution_backward_bias(handle: Handle, alpha: float, dy: Tensor, beta: float, db: Tensor) -> None:
    """db [1, K, 1, ...] = dy [N, K, *output] summed over the batch and all places."""
    at_least_2d(dy=dy.descriptor)
    expected = (1, dy.shape[1], *(1,) * (len(dy.shape) - 2))
    if db.shape != expected:
        raise BadParamError(f"db has shape {db.shape} but dy {dy.shape} needs {expected}")
    sum_to(handle, alpha, dy, beta, db)
