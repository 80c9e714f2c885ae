"""Operands that share memory: refused, but where an operation may run in place."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from dnncore import RELU, ConvolutionDescriptor, DType, Handle, TensorDescriptor, ops, problems
from dnncore.aliasing import _interleaved
from dnncore.descriptors import BatchNormMode, BinaryOperator, SoftmaxAlgorithm, SoftmaxMode, UnaryOperator
from dnncore.errors import BadParamError
from dnncore.ops import TANH
from dnncore.problems import ConvolutionProblem, Direction, Problem

CONVOLUTION = ConvolutionDescriptor.make(2, padding=1)


def test_a_convolution_is_not_computed_in_place(handle: Handle) -> None:
    with handle.tensor((1, 1, 4, 4)) as x, handle.tensor((1, 1, 3, 3)) as w:
        with pytest.raises(BadParamError, match=r"^y \(.*\) shares memory with x \(.*: it must not"):
            ops.convolution_forward(handle, 1.0, x, w, CONVOLUTION, 0.0, x)
        dy = w.view(TensorDescriptor.packed((1, 1, 2, 2)))
        with pytest.raises(BadParamError, match=r"^dw .* shares memory with dy "):
            ops.convolution_backward_filter(handle, 1.0, x, dy, ConvolutionDescriptor.make(2), 0.0, w)


def test_a_tensor_is_not_transposed_in_place(handle: Handle) -> None:
    with handle.upload(np.arange(9, dtype=np.float32).reshape(3, 3)) as x:
        transposed = x.view(TensorDescriptor(x.descriptor.dtype, (3, 3), (1, 3)))
        with pytest.raises(BadParamError, match=r"^c .* shares memory with a .*equal descriptors"):
            ops.transform(handle, 1.0, x, 0.0, transposed)
        assert x.numpy().ravel().tolist() == list(range(9))


def test_a_shifted_copy_is_refused_and_one_beside_it_is_not(handle: Handle) -> None:
    row = TensorDescriptor.packed((4,))
    with handle.upload(np.arange(8, dtype=np.float32)) as x:
        with pytest.raises(BadParamError, match="shares memory"):
            ops.transform(handle, 1.0, x.view(row), 0.0, x.view(row, 3))
        ops.transform(handle, 1.0, x.view(row), 0.0, x.view(row, 4))
        assert x.numpy().tolist() == [0, 1, 2, 3] * 2


def test_a_broadcast_operand_is_not_overwritten_while_it_is_read(handle: Handle) -> None:
    with handle.upload(np.ones((3, 4), np.float32)) as c:
        row = c.view(TensorDescriptor.packed((1, 4)))
        with pytest.raises(BadParamError, match=r"^c .* shares memory with a "):
            ops.add(handle, 1.0, row, 1.0, c)


def test_many_operands_are_kept_apart_by_their_addresses(handle: Handle) -> None:
    count = 40
    with handle.upload(np.ones((3 * count, 4), np.float32)) as memory:
        row = TensorDescriptor.packed((4,))
        rows = [memory.view(row, 4 * place) for place in range(3 * count)]
        gradients, velocities, weights = (rows[start::3] for start in range(3))
        step = partial(ops.momentum_step, handle, -0.5, momentum=0.5)
        step(gradients, velocities, 1.0, weights)
        assert memory.numpy()[:3].tolist() == [[1.0] * 4, [1.5] * 4, [0.25] * 4]
        shifted = memory.view(row, 4 * (3 * 7 + 2) + 1)  # the weight that comes behind, but for an element
        with pytest.raises(BadParamError, match=r"^new_weight_9 .* shares memory with new_weight_7"):
            step(gradients, velocities, 1.0, [*weights[:9], shifted, *weights[10:]])
        with pytest.raises(BadParamError, match=r"^new_weight_3 .* shares memory with gradient_3"):
            step([*gradients[:3], weights[3], *gradients[4:]], velocities, 1.0, weights)
        with pytest.raises(BadParamError, match=r"^new_velocity_4 .* shares memory with velocity_5"):
            step(gradients, [*velocities[:5], velocities[4], *velocities[6:]], 1.0, weights)


def test_outputs_are_kept_apart(handle: Handle) -> None:
    with (
        handle.upload(np.ones((2, 3), np.float32)) as x,
        handle.tensor((2, 3)) as y,
        handle.tensor((2, 1)) as saved,
        pytest.raises(BadParamError, match=r"^saved_inv_std .* shares memory with saved_mean "),
    ):
        ops.layer_norm_forward(handle, 1, 1.0, x, 0.0, y, None, None, saved, saved)


def test_channel_ranges_of_one_tensor_are_apart(handle: Handle) -> None:
    for strides in ((24, 4, 2, 1), (24, 1, 12, 6)):
        with handle.upload(np.arange(48, dtype=np.float32)) as block:
            part = TensorDescriptor(block.descriptor.dtype, (2, 3, 2, 2), strides)
            first, second = block.view(part), block.view(part, 3 * strides[1])
            ops.activation_forward(handle, RELU, 2.0, first, 0.0, second)
            assert (second.numpy() == 2 * first.numpy()).all()
            with pytest.raises(BadParamError, match="shares memory"):
                ops.activation_forward(handle, RELU, 2.0, first, 0.0, block.view(part, 2 * strides[1]))


def test_a_recording_is_refused_too(handle: Handle) -> None:
    with handle.tensor((1, 1, 4, 4)) as x, handle.tensor((1, 1, 3, 3)) as w, handle.record() as program:
        with pytest.raises(BadParamError, match="shares memory"):
            ops.convolution_forward(handle, 1.0, x, w, CONVOLUTION, 0.0, x)
        assert program.steps == []


def test_an_empty_tensor_shares_nothing(handle: Handle) -> None:
    with handle.tensor((2, 3)) as x:
        ops.transform(
            handle, 1.0, x.view(TensorDescriptor.packed((0, 2)), 1), 0.0, x.view(TensorDescriptor.packed((0, 2)), 1)
        )
        ops.sum_to(
            handle, 1.0, x.view(TensorDescriptor.packed((0, 1)), 1), 0.0, x.view(TensorDescriptor.packed((1, 1)))
        )
        assert x.view(TensorDescriptor.packed((1, 1))).numpy().item() == 0


@pytest.mark.parametrize("seed", range(200))
def test_what_is_called_interleaved_has_no_common_element(seed: int) -> None:
    rng = np.random.default_rng(seed)
    descriptors, places = [], []
    start = int(rng.integers(-40, 40))
    for first in (0, start):
        shape, strides = rng.integers(1, 4, 3), rng.choice([0, 1, 2, 3, 6, 12, 24], 3)
        descriptors.append(TensorDescriptor(DType.FLOAT32, tuple(shape.tolist()), tuple(strides.tolist())))
        places.append({first + int(np.dot(index, strides)) for index in np.ndindex(*shape)})
    if _interleaved(descriptors[0], descriptors[1], 4 * start):
        assert not places[0] & places[1]


def _in_place(kind: Any) -> frozenset[tuple[str, str]]:
    """What some problem of a kind may have in place."""
    found: frozenset[tuple[str, str]] = getattr(kind, "possible_in_place", None) or _OF_MANY.get(kind, kind).in_place
    return found


_WEIGHTS = (TensorDescriptor.packed((2, 4, 5, 3)), TensorDescriptor.packed((1, 4, 1, 1)))
_OF_MANY: dict[Any, Any] = {
    problems.MomentumProblem: problems.MomentumProblem(_WEIGHTS, 0.75, True, 0.5),
    problems.AdamProblem: problems.AdamProblem(_WEIGHTS, 0.75, 0.5, 1e-2, 0.5),
}
"""An example of each kind whose operands are as many as it is made for."""


_KINDS = [getattr(problems, name) for name in problems.__all__ if name.endswith("Problem") and name != "Problem"]


@pytest.mark.parametrize("problem", _KINDS)
def test_what_may_be_in_place_are_operands(problem: Any) -> None:
    example = _OF_MANY.get(problem, problem)
    inputs: Any = getattr(problem, "possible_inputs", None) or example.input_names
    outputs: Any = getattr(problem, "possible_outputs", None) or example.output_names
    for source, target in _in_place(problem):
        assert source in inputs
        assert target in outputs


IMAGE, CHANNELS, GROUPS = (TensorDescriptor.packed(shape) for shape in ((2, 4, 5, 3), (1, 4, 1, 1), (2, 2, 1, 1)))
ROWS, ROW = TensorDescriptor.packed((2, 1, 1, 1)), TensorDescriptor.packed((1, 4, 5, 3))
SOFTMAX = SoftmaxAlgorithm.ACCURATE, SoftmaxMode.CHANNEL
SPATIAL = BatchNormMode.SPATIAL
FILTER = TensorDescriptor.packed((4, 4, 3, 3))
IN_PLACE: tuple[Problem, ...] = (
    problems.ActivationForwardProblem(IMAGE, IMAGE, RELU),
    problems.ActivationBackwardProblem(IMAGE, IMAGE, IMAGE, IMAGE, TANH),
    problems.AddProblem(IMAGE, IMAGE),
    problems.BinaryProblem(IMAGE, IMAGE, IMAGE, BinaryOperator.SUB, 2.0, 3.0),
    problems.UnaryProblem(IMAGE, IMAGE, UnaryOperator.SQUARE),
    problems.WhereProblem(TensorDescriptor.packed(IMAGE.shape, "bool"), IMAGE, IMAGE, IMAGE),
    problems.DropoutProblem(IMAGE, TensorDescriptor.packed((4,), "int32"), IMAGE, 0.5),
    problems.SoftmaxForwardProblem(IMAGE, IMAGE, *SOFTMAX),
    problems.SoftmaxBackwardProblem(IMAGE, IMAGE, IMAGE, *SOFTMAX),
    problems.BatchNormInferenceProblem(IMAGE, *(CHANNELS,) * 4, IMAGE, SPATIAL, 1e-3),
    problems.BatchNormForwardProblem(
        IMAGE, CHANNELS, CHANNELS, IMAGE, CHANNELS, CHANNELS, SPATIAL, 1e-3, 0.5, *(CHANNELS,) * 4
    ),
    problems.BatchNormBackwardProblem(
        IMAGE, IMAGE, *(CHANNELS,) * 3, IMAGE, *(CHANNELS,) * 2, SPATIAL, 1.0, 0.5, *(CHANNELS,) * 2
    ),
    problems.GroupNormForwardProblem(IMAGE, IMAGE, GROUPS, GROUPS, 2, 1e-3, CHANNELS, CHANNELS),
    problems.GroupNormBackwardProblem(
        IMAGE, IMAGE, GROUPS, GROUPS, IMAGE, 2, *(CHANNELS,) * 3, 1.0, 0.5, *(CHANNELS,) * 2
    ),
    problems.LayerNormForwardProblem(IMAGE, IMAGE, ROWS, 1, 1e-3, ROWS, ROW, ROW),
    problems.LayerNormBackwardProblem(IMAGE, IMAGE, ROWS, IMAGE, 1, ROWS, *(ROW,) * 3, 1.0, 0.5, *(ROW,) * 2),
    problems.FusedConvolutionProblem(
        IMAGE, FILTER, IMAGE, CONVOLUTION, bias=CHANNELS, z=IMAGE, activation=RELU, alpha2=0.5
    ),
    *_OF_MANY.values(),
)


def test_every_problem_that_may_be_in_place_is_tried() -> None:
    assert {type(problem) for problem in IN_PLACE} == {kind for kind in _KINDS if _in_place(kind)}


@pytest.mark.parametrize("problem", IN_PLACE, ids=lambda problem: type(problem).__name__)
def test_in_place_gives_the_same_as_apart(handle: Handle, problem: Any) -> None:
    names = problem.input_names
    rng = np.random.default_rng(5)
    values = [np.abs(rng.standard_normal(d.shape)).astype(d.dtype.numpy) for d in problem.inputs]
    for algorithm in handle.get_algorithms(problem):
        if algorithm.status is not None:
            continue
        plan = handle.plan(problem, algorithm=algorithm.name)
        targets = {target for _, target in problem.in_place}
        for pairs in {frozenset({pair}) for pair in problem.in_place} | (
            {problem.in_place} if len(targets) == len(problem.in_place) else set()
        ):
            inputs, outputs = [handle.upload(value) for value in values], [handle.tensor(d) for d in problem.outputs]
            same = {target: inputs[names.index(source)] for source, target in pairs}
            handle.run(plan, 1.0, inputs, 0.0, outputs)
            apart = [tensor.numpy() for tensor in outputs]
            together = [same.get(name, tensor) for name, tensor in zip(problem.output_names, outputs, strict=True)]
            handle.run(plan, 1.0, inputs, 0.0, together)
            for expected, tensor in zip(apart, together, strict=True):
                np.testing.assert_array_equal(tensor.numpy(), expected, f"{algorithm.name} {sorted(pairs)}")
            for tensor in (*inputs, *outputs):
                tensor.close()


def test_a_convolution_names_its_operands_by_direction() -> None:
    x, w, y = (TensorDescriptor.packed(shape) for shape in ((1, 1, 3, 3), (1, 1, 1, 1), (1, 1, 3, 3)))
    names = {}
    for direction in Direction:
        problem = ConvolutionProblem(direction, x, w, y, ConvolutionDescriptor.make(2))
        names[direction.value] = (problem.input_names, problem.output_names)
    assert names == {
        "forward": (("x", "w"), ("y",)),
        "backward_data": (("w", "dy"), ("dx",)),
        "backward_filter": (("x", "dy"), ("dw",)),
    }
