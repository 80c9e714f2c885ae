"""An optimizer's step on many parameters at once: SGD with momentum, and Adam."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.descriptors.settings import number
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.problems import AdamProblem, MomentumProblem
from dnncore.tensor import Tensor

__all__ = ["adam_step", "momentum_step"]


def momentum_step(
    handle: Handle,
    alpha: float,
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    beta: float,
    weights: Sequence[Tensor],
    *,
    momentum: float,
    nesterov: bool = False,
    decay: float = 0.0,
) -> None:
    """w = alpha * direction + beta * w for every weight, in as few launches as there are dozens of them.

        d = gradient + decay * w;  velocity = momentum * velocity + d;  direction = velocity
        or with `nesterov`  direction = d + momentum * velocity

    With alpha = -(learning rate) and beta 1 it is a step of `torch.optim.SGD`.

    Args:
        gradients: One for each weight, described alike; they are not changed.
        velocities: Likewise, updated; none with momentum 0, where d is the direction.
        weights: Of one floating-point dtype, any shapes, without gaps.
        momentum: Share of a velocity that is kept.
        nesterov: Whether the direction looks ahead.
        decay: Of the weights.

    Raises:
        BadParamError: tensors of a weight are not described alike or are missing, or a setting makes no sense.
    """
    described = tuple(weight.descriptor for weight in weights)
    settings = number(momentum, "momentum"), nesterov, number(decay, "decay")
    states = {"velocities": velocities} if settings[0] else {}
    if velocities and not states:
        raise BadParamError(f"{len(velocities)} velocities came with momentum 0, which keeps none")
    inputs, outputs = _operands(weights, {"gradients": gradients, **states}, decays=bool(settings[-1]))
    handle.execute(MomentumProblem, (described, *settings), alpha, inputs, beta, outputs)


def adam_step(
    handle: Handle,
    alpha: float,
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    beta: float,
    weights: Sequence[Tensor],
    *,
    momentum: float,
    momentum2: float,
    epsilon: float,
    decay: float = 0.0,
) -> None:
    """w = alpha * direction + beta * w for every weight, in as few launches as there are dozens of them.

        d = gradient + decay * w;  mean = momentum * mean + (1 - momentum) * d
        square = momentum2 * square + (1 - momentum2) * d^2;  direction = mean / (sqrt(square) + epsilon)

    In the step t, from 1, alpha is -(learning rate) * sqrt(1 - momentum2^t) / (1 - momentum^t), and beta 1.

    Args:
        gradients: One for each weight, described alike; they are not changed.
        means: Likewise, updated.
        squares: Likewise.
        weights: Of one floating-point dtype, any shapes, without gaps.
        momentum: Share of a mean that is kept.
        momentum2: Share of a mean of squares that is kept.
        epsilon: Added to the root.
        decay: Of the weights.

    Raises:
        BadParamError: tensors of a weight are not described alike or are missing, or a setting makes no sense.

    Source: arXiv 1412.6980, section 2, last paragraph.
    """
    described = tuple(weight.descriptor for weight in weights)
    given = {"momentum": momentum, "momentum2": momentum2, "epsilon": epsilon, "decay": decay}
    settings = [number(value, name) for name, value in given.items()]
    kinds = {"gradients": gradients, "means": means, "squares": squares}
    inputs, outputs = _operands(weights, kinds, decays=bool(settings[-1]))
    handle.execute(AdamProblem, (described, *settings), alpha, inputs, beta, outputs)


def _operands(
    weights: Sequence[Tensor], kinds: dict[str, Sequence[Tensor]], *, decays: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs: `kinds` are the gradients, and the states, which are both."""
    for name, tensors in kinds.items():
        if len(tensors) != len(weights):
            raise BadParamError(f"{len(tensors)} {name} for {len(weights)} weights; one for each is needed")
        for place, (tensor, weight) in enumerate(zip(tensors, weights, strict=True)):
            if tensor.descriptor != weight.descriptor:
                raise BadParamError(
                    f"of {name} number {place} is {tensor.descriptor}, its weight {weight.descriptor}; they must be alike"
                )
    inputs = [tensor for tensors in kinds.values() for tensor in tensors]
    _, *states = kinds.values()
    outputs = [*weights, *(tensor for tensors in states for tensor in tensors)]
    return ([*inputs, *weights] if decays else inputs), outputs
