"""Steps of optimizers, of all parameters of a net at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import TensorDescriptor
from dnncore.descriptors.settings import HashedOnce, number, settle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.problem import Problem

__all__ = ["AdamProblem", "MomentumProblem", "OptimizerProblem", "num_blended"]


class OptimizerProblem:
    """What both kinds share: w = alpha * direction + beta * w for each of many weights, and states that the direction goes by.

    All weights are blended, not the first alone; the states are overwritten. Inputs are the gradients, the states, one kind after
    the other, and with `decay` the weights, whose product with it is added to the gradients; outputs are the weights, and the
    states. A weight or state that is read may be the one that is written. All tensors of a parameter are described as its weight
    is, which has no gaps. Immutable.
    """

    __slots__ = ()
    weights: tuple[TensorDescriptor, ...]
    decay: float
    state_names: ClassVar[tuple[str, ...]]

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states that there are."""
        return self.state_names

    @property
    def dtype(self) -> DType:
        """Of all tensors; float32 where there are none."""
        return self.weights[0].dtype if self.weights else DType.FLOAT32

    @property
    def reads(self) -> tuple[str, ...]:
        """Which kinds of tensors the inputs are."""
        return ("gradient", *self.states, *(("weight",) if self.decay else ()))

    @property
    def writes(self) -> tuple[str, ...]:
        """Which kinds of tensors the outputs are."""
        return ("weight", *self.states)

    @property
    def input_names(self) -> tuple[str, ...]:
        """A kind and the parameter's place: "gradient_0"."""
        return tuple(f"{kind}_{place}" for kind in self.reads for place in range(len(self.weights)))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Likewise: "new_weight_0"."""
        return tuple(f"new_{kind}_{place}" for kind in self.writes for place in range(len(self.weights)))

    @property
    def in_place(self) -> frozenset[tuple[str, str]]:
        """What is read and written."""
        kinds, places = set(self.reads).intersection(self.writes), range(len(self.weights))
        return frozenset((f"{kind}_{place}", f"new_{kind}_{place}") for kind in kinds for place in places)

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read."""
        return self.weights * len(self.reads)

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is written."""
        return self.weights * len(self.writes)

    @property
    def macs(self) -> int:
        """0: moving the operands is all there is to it."""
        return 0

    def _check(self, **settings: float) -> None:
        """Refuse weights of several dtypes or with gaps, and settings that are no finite numbers of 0 or more."""
        settle(self, **{name: number(value, name) for name, value in settings.items()}, weights=tuple(self.weights))
        for name in settings:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise BadParamError(f"{name} is {value}; a finite number of 0 or more is needed")
        for place, weight in enumerate(self.weights):
            if weight.dtype is not self.dtype or not weight.dtype.is_floating:
                raise BadParamError(
                    f"weight_{place} is {weight.dtype.value}, weight_0 {self.dtype.value}; one floating-point dtype is needed"
                )
            if not weight.is_packed:
                raise BadParamError(f"weight_{place} ({weight}) has gaps; tensors in one piece are needed")


def num_blended(problem: Problem) -> int:
    """How many of a problem's outputs are blended, the first ones: all weights of an optimizer's step, one output of all else."""
    return len(problem.weights) if isinstance(problem, OptimizerProblem) else 1


@dataclass(frozen=True, slots=True)
class MomentumProblem(HashedOnce, OptimizerProblem):
    """Stochastic gradient descent, as PyTorch defines it.

        d = gradient + decay * weight;  velocity = momentum * velocity + d;  direction = velocity
        or with Nesterov's variant  direction = d + momentum * velocity

    Without momentum there are no velocities, and d is the direction.

    Args:
        weights: Of the parameters, of one floating-point dtype, without gaps.
        momentum: Share of a velocity that is kept.
        nesterov: Whether the direction looks ahead.
        decay: Of the weights.

    Raises:
        BadParamError: dtypes disagree, a weight has gaps, a setting is negative, or `nesterov` came without momentum.
    """

    weights: tuple[TensorDescriptor, ...]
    momentum: float
    nesterov: bool = False
    decay: float = 0.0
    state_names: ClassVar[tuple[str, ...]] = ("velocity",)
    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        self._check(momentum=self.momentum, decay=self.decay)
        if self.nesterov and not self.momentum:
            raise BadParamError("nesterov is True but momentum is 0; it looks ahead by momentum")

    @property
    def states(self) -> tuple[str, ...]:
        """None without momentum."""
        return self.state_names if self.momentum else ()


@dataclass(frozen=True, slots=True)
class AdamProblem(HashedOnce, OptimizerProblem):
    """Adam without the correction of its first steps, which is the same for all weights and so a matter of alpha.

        d = gradient + decay * weight;  mean = momentum * mean + (1 - momentum) * d
        square = momentum2 * square + (1 - momentum2) * d^2;  direction = mean / (sqrt(square) + epsilon)

    Args:
        weights: Of the parameters, of one floating-point dtype, without gaps.
        momentum: Share of a mean that is kept.
        momentum2: Share of a mean of squares that is kept.
        epsilon: Added to the root, before any correction.
        decay: Of the weights.

    Raises:
        BadParamError: dtypes disagree, a weight has gaps, or a setting is negative.

    Source: arXiv 1412.6980, section 2, last paragraph.
    """

    weights: tuple[TensorDescriptor, ...]
    momentum: float
    momentum2: float
    epsilon: float
    decay: float = 0.0
    state_names: ClassVar[tuple[str, ...]] = ("mean", "square")
    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        self._check(momentum=self.momentum, momentum2=self.momentum2, epsilon=self.epsilon, decay=self.decay)
