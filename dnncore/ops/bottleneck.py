"""ResNet's bottleneck in one operation."""

from __future__ import annotations

from dnncore.descriptors import ActivationDescriptor
from dnncore.handle import Handle
from dnncore.problems import BottleneckProblem
from dnncore.tensor import Tensor

__all__ = ["bottleneck"]


def bottleneck(
    handle: Handle,
    alpha: float,
    x: Tensor,
    reduce: Tensor,
    middle: Tensor,
    restore: Tensor,
    beta: float,
    y: Tensor,
    *,
    reduce_bias: Tensor | None = None,
    middle_bias: Tensor | None = None,
    restore_bias: Tensor | None = None,
    shortcut: Tensor | None = None,
    shortcut_bias: Tensor | None = None,
    z: Tensor | None = None,
    activation: ActivationDescriptor | None = None,
    stride: int = 1,
    residual: bool = False,
    algorithm: str | None = None,
) -> None:
    """y = f(conv(f(conv(f(conv(x, reduce) + b), middle) + b), restore) + b [+ s]): fused convolutions, rounded alike.

    s is x, or z, or conv(x, shortcut) + b.

    Args:
        x: float16 or bfloat16 [N, C, H, W].
        reduce: [E, C, 1, 1].
        middle: [E, E, 3, 3], padding 1.
        restore: [K, E, 1, 1].
        y: [N, K, P, Q], neither x nor z.
        reduce_bias: [1, E, 1, 1], of x's dtype or float32; so are the others, that of `restore` [1, K, 1, 1].
        middle_bias: See `reduce_bias`.
        restore_bias: See `reduce_bias`.
        shortcut: [K, C, 1, 1]; what it makes of x is added, and rounded before or not.
        shortcut_bias: As that of `restore`.
        z: What is added, as y.
        activation: f; None for the identity.
        stride: Of the middle convolution and of the shortcut.
        residual: Whether x is added.
        algorithm: Take the one of this name; None lets the handle's preference choose.
    """
    optional = (reduce_bias, middle_bias, restore_bias, shortcut, shortcut_bias, z)
    arguments = (
        *(x.descriptor, reduce.descriptor, middle.descriptor, restore.descriptor, y.descriptor),
        *(None if tensor is None else tensor.descriptor for tensor in optional),
        *(activation, stride, residual),
    )
    possible = (x, reduce, reduce_bias, middle, middle_bias, restore, restore_bias, shortcut, shortcut_bias, z)
    inputs = tuple(tensor for tensor in possible if tensor is not None)
    handle.execute(BottleneckProblem, arguments, alpha, inputs, beta, (y,), algorithm=algorithm)
