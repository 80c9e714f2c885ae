"""Dropout, without a mask to keep."""

from __future__ import annotations

import numpy as np

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.formats import like, with_leading
from dnncore.functional.operands import Operand, check_not_in_place, compute, owner_of
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.ops import dropout_state
from dnncore.problems import AddProblem, DropoutProblem
from dnncore.tensor import Tensor

__all__ = ["dropout"]


@remembered
def _dropout(p: float, given: TensorDescriptor, state: TensorDescriptor) -> Operation:
    x, draft = with_leading(given, 1), Draft(2, like(given))
    draft.step(DropoutProblem(x, state, like(x), p), 0, 1, *draft.results)
    return draft.operation()


@remembered
def _copy(given: TensorDescriptor) -> Operation:
    x, draft = with_leading(given, 1), Draft(1, like(given))
    draft.step(AddProblem(x, like(x)), 0, *draft.results)
    return draft.operation()


def dropout(
    input: Operand,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    seed: int | Operand | None = None,
    offset: int = 0,
) -> Tensor:
    """x / (1 - p), or 0 with probability p; x outside training.

    The same seed and offset drop the same elements, by their place in row-major order, in every layout and dtype, on every device.

    Args:
        input: Any shape.
        p: Probability of dropping, 0 to 1.
        training: Whether to drop at all. Outside training a tensor of ours is returned as it is, everything else copied.
        inplace: False; True is refused.
        seed: 64 bits; needed in training. Or the state itself, int32 [4] (`dnncore.ops.dropout_state`), on the input's device: a
            number is copied there first, and the call waits for the stream.
        offset: 64 bits beside a number as the seed: the step of a training run, say.
    """
    check_not_in_place(inplace)
    if not training:
        return input if isinstance(input, Tensor) else compute(_copy, (), input)[0]
    if seed is None:
        raise BadParamError(
            "dropout in training needs a seed: there is no global generator. Give seed=..., and offset=step in a loop"
        )
    if isinstance(seed, int | np.integer):
        state = owner_of(input).new(TensorDescriptor.packed((4,), DType.INT32))
        state.assign(dropout_state(int(seed), offset))
        seed = state
    return compute(_dropout, (p,), input, seed)[0]
