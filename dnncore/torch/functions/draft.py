"""An operation that is more than one launch, while it is put together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnncore.descriptors import ActivationDescriptor, ActivationMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.formats import as_rows, like
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem, AddProblem, FillProblem, Problem
from dnncore.torch.operation import Operation, Place, Scratch, Step, Way

__all__ = ["RELU", "Draft", "is_cast", "relu_in_place", "sum_dtype"]

RELU = ActivationDescriptor(ActivationMode.RELU)

_CAST = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32}
"""What `torch.autocast` casts."""

_ALIGNMENT_BYTES = 256
"""Of tensors in scratch memory, as of memory that is allocated."""

_MOST_SCRATCH_BYTES = 1 << 25
"""Of a tensor in scratch memory, which is kept: a launch that reads or writes more takes longer than a call of PyTorch's allocator,
which gives the memory to others afterwards.
"""


class Draft:
    """Results and steps in the order in which they are asked for. Mutable.

    Args:
        given: How many tensors the operation is given; None among them counts.
    """

    def __init__(self, given: int) -> None:
        self._given = given
        self._results: list[TensorDescriptor] = []
        self._steps: list[Step] = []
        self._scratch_bytes = 0

    def make(self, result: TensorDescriptor) -> int:
        """Let the operation make a tensor.

        Returns:
            Its place among the operation's tensors.
        """
        self._results.append(result)
        return self._given + len(self._results) - 1

    def make_wanted(self, results: Sequence[TensorDescriptor], wanted: Sequence[bool]) -> list[int | None]:
        """Let it make those tensors that are wanted.

        Returns:
            Their places, None for the others.
        """
        return [self.make(result) if is_wanted else None for result, is_wanted in zip(results, wanted, strict=True)]

    def scratch(self, tensor: TensorDescriptor) -> int | Scratch:
        """Let it have a tensor that nobody reads behind it, in scratch memory if it is not large.

        Returns:
            Its place.
        """
        if tensor.nbytes > _MOST_SCRATCH_BYTES:
            return self.make(tensor)
        place = Scratch(self._scratch_bytes)
        self._scratch_bytes += -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return place

    def step(self, problem: Problem, *operands: Place, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Let it launch a problem on the tensors at these places."""
        self._steps.append(Step(problem, operands, alpha, beta))

    def constant(self, value: float, tensor: TensorDescriptor) -> int:
        """Let it make a tensor that holds one number everywhere.

        Returns:
            Its place.
        """
        place = self.make(tensor)
        self.step(FillProblem(tensor), place, alpha=value)
        return place

    def parameter(
        self, tensor: TensorDescriptor, place: int, *dtypes: DType, lying: TensorDescriptor | None = None
    ) -> tuple[TensorDescriptor, int]:
        """Let it have a parameter in one of these dtypes as `torch.autocast` does: copied in the first where it has another.

        Nothing is copied where autocast leaves a tensor as it is: to or from float64, and integers.

        Args:
            tensor: The parameter.
            place: Of it.
            dtypes: That it may have.
            lying: How a copy lies in memory; None for as the parameter does.

        Returns:
            The parameter and its place.
        """
        if not is_cast(tensor.dtype, *dtypes):
            return tensor, place
        copy = (lying or like(tensor)).with_dtype(dtypes[0])
        copied = self.make(copy)
        self.step(AddProblem(tensor, copy), place, copied)
        return copy, copied

    def compute(self, place: int, problem: Problem, *operands: Place) -> None:
        """Let a result be what a problem computes from the tensors at these places.

        Where the problem's output has another dtype, or lies otherwise, it is computed in scratch memory and copied from there. It
        may have other dimensions of the same memory.
        """
        (output,), result = problem.outputs, self._results[place - self._given]
        same_shape = output.shape == result.shape
        if output.dtype is result.dtype and (not same_shape or output.strides == result.strides):
            self.step(problem, *operands, place)
            return
        computed = self.scratch(output)
        self.step(problem, *operands, computed)
        self.step(AddProblem(output, result if same_shape else output.with_dtype(result.dtype)), computed, place)

    def copied(self, tensor: TensorDescriptor, place: Place, copy: TensorDescriptor) -> int | Scratch:
        """Let it have a tensor as it may lie otherwise in memory, or in another dtype.

        Returns:
            Its place.
        """
        copied = self.scratch(copy)
        self.step(AddProblem(tensor, copy), place, copied)
        return copied

    def rows(self, tensor: TensorDescriptor, place: int | Scratch) -> tuple[TensorDescriptor, int | Scratch]:
        """Let it have a tensor [..., C] as [M, C]: where it lies or, where its strides do not allow that, copied.

        Returns:
            The rows and their place.
        """
        rows = as_rows(tensor)
        if rows is not None:
            return rows, place
        copied = self.copied(tensor, place, TensorDescriptor.packed(tensor.shape, tensor.dtype))
        return TensorDescriptor.packed((math.prod(tensor.shape[:-1]), tensor.shape[-1]), tensor.dtype), copied

    def relu_gradient(
        self, y: TensorDescriptor, y_at: Place, dy: TensorDescriptor, dy_at: Place
    ) -> tuple[TensorDescriptor, int | Scratch]:
        """Let it have dy where y, what a ReLU gave, is above 0, and 0 elsewhere: what came to that ReLU, whose gradient this is, is
        not asked for.

        Returns:
            The gradient, which lies like y, and its place.
        """
        dx_at = self.scratch(y)
        self.step(ActivationBackwardProblem(y, dy, y, y, RELU), y_at, dy_at, y_at, dx_at)
        return y, dx_at

    def operation(self, *ways: tuple[Step, ...]) -> Operation:
        """What has been put together, and one of several ways to end it where some are given."""
        results = tuple(self._results)
        return Operation(tuple(Way(results, (*self._steps, *way), self._scratch_bytes) for way in ways or ((),)))


def relu_in_place(tensor: TensorDescriptor, place: Place) -> Step:
    """The launch that writes 0 over what is below it."""
    return Step(ActivationForwardProblem(tensor, tensor, RELU), (place, place))


def is_cast(dtype: DType, *dtypes: DType) -> bool:
    """Whether `torch.autocast` casts a parameter of this dtype where one of these is wanted, the first in the first place."""
    return dtype not in dtypes and {dtype, dtypes[0]} <= _CAST


def sum_dtype(of_x: DType, wanted: DType) -> DType:
    """What a sum of x has where a gradient is wanted in another dtype: that one where a sum may have it, else that of x."""
    return wanted if wanted is of_x.compute else of_x
