"""Activations and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import ActivationDescriptor, TensorDescriptor
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem, DropoutProblem
from dnncore.torch.bridge import operate
from dnncore.torch.dtypes import DTYPES
from dnncore.torch.functions.formats import like, wants_gradient
from dnncore.torch.functions.gradients import Function, first_derivative
from dnncore.torch.functions.link import DY, Settings
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.operation import Operation

__all__ = ["ACTIVATION_LINK", "DROPOUT_LINK", "activation", "drawn_state", "dropout"]


def _activated(activation: ActivationDescriptor, x: TensorDescriptor) -> Operation:
    """x -> y."""
    y = like(x)
    return Operation.of(ActivationForwardProblem(x, y, activation), (0, 1), y)


def _activation_gradient(
    activation: ActivationDescriptor, x: TensorDescriptor, y: TensorDescriptor, dy: TensorDescriptor
) -> Operation:
    """(x, or y where that tells the slope; y, dy) -> dx."""
    dx = like(x)
    return Operation.of(ActivationBackwardProblem(y, dy, x, dx, activation), (1, 2, 0, 3), dx)


class _Activation(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: ActivationDescriptor) -> Tensor:
        (y,) = operate(_activated, (activation,), (x,))
        ctx.save_for_backward(*((y,) if activation.result_tells_slope(DTYPES[x.dtype]) else (x, y)))
        ctx.activation = activation
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors
        (dx,) = operate(_activation_gradient, (ctx.activation,), (kept[0], kept[-1], dy))
        return dx, None


class _ActivationLink:
    """An activation as one of several layers: settings are this and the activation. Immutable."""

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:  # noqa: ARG002
        """x -> y."""
        return _activated(settings[1], *given)

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:  # noqa: ARG002
        """x, or y where that tells the slope; y, and dy."""
        return (1 if settings[1].result_tells_slope(given[0].dtype) else 0), 1, DY

    def backward(
        self,
        settings: Settings,
        given: Sequence[TensorDescriptor],  # noqa: ARG002 (it is read)
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],  # noqa: ARG002 (there is one)
    ) -> tuple[Operation, tuple[int, ...]]:
        """That of x."""
        return _activation_gradient(settings[1], *read), (0,)


ACTIVATION_LINK = _ActivationLink()


def _activated_in_place(activation: ActivationDescriptor, x: TensorDescriptor) -> Operation:
    """x -> x."""
    return Operation.of(ActivationForwardProblem(x, x, activation), (0, 0))


@breaks_graph
def activation(x: Tensor, activation: ActivationDescriptor, in_place: bool = False) -> Tensor:
    """f(x), element by element; x has up to 8 dimensions.

    Args:
        in_place: Whether x may be overwritten and returned, as it is where no gradient is wanted.
    """
    scalar = x.dim() == 0
    if scalar:
        x = x.reshape(1)
    if wants_gradient(x):
        y: Tensor = _Activation.apply(x, activation)
    elif in_place:
        operate(_activated_in_place, (activation,), (x,))
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)  # autograd then refuses what was saved of x before
        y = x
    else:
        y = operate(_activated, (activation,), (x,))[0]
    return y.reshape(()) if scalar else y


def _dropped(probability: float, x: TensorDescriptor, state: TensorDescriptor) -> Operation:
    """(x, state) -> y, and from dy likewise dx."""
    y = like(x)
    return Operation.of(DropoutProblem(x, state, y, probability), (0, 1, 2), y)


class _Dropout(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float, state: Tensor) -> Tensor:
        (y,) = operate(_dropped, (probability,), (x, state))
        ctx.save_for_backward(state)
        ctx.probability = probability
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (dx,) = operate(_dropped, (ctx.probability,), (dy, *ctx.saved_tensors))
        return dx, None, None


class _DropoutLink:
    """Dropout as one of several layers: settings are this and the probability. Immutable."""

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:  # noqa: ARG002
        """(x, state) -> y."""
        return _dropped(settings[1], *given)

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:  # noqa: ARG002
        """dy and the state."""
        return DY, 1

    def backward(
        self,
        settings: Settings,
        given: Sequence[TensorDescriptor],  # noqa: ARG002 (dx lies like dy)
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],  # noqa: ARG002 (there is one)
    ) -> tuple[Operation, tuple[int, ...]]:
        """That of x."""
        return _dropped(settings[1], *read), (0,)


DROPOUT_LINK = _DropoutLink()


def drawn_state(device: torch.device) -> Tensor:
    """A state for a dropout, from PyTorch's generator of a device."""
    return torch.randint(-(2**31), 2**31, (4,), dtype=torch.int32, device=device)


@breaks_graph
def dropout(x: Tensor, p: float = 0.5, training: bool = True, state: Tensor | None = None) -> Tensor:
    """x / (1 - p), or 0 with probability p; x outside training.

    Args:
        state: int32 [4] on x's device, seed and offset (`dnncore.ops.dropout_state`); None draws one from PyTorch's generator of
            that device, which `torch.manual_seed` seeds.
    """
    if not training:
        return x
    if state is None:
        state = drawn_state(x.device)
    scalar = x.dim() == 0
    if scalar:
        x = x.reshape(1)
    y: Tensor = _Dropout.apply(x, p, state) if wants_gradient(x) else operate(_dropped, (p,), (x, state))[0]
    return y.reshape(()) if scalar else y
