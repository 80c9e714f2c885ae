"""Plans that are wired: launched in a row on addresses alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnncore import RELU, ConvolutionDescriptor, DType, Handle, Tensor, TensorDescriptor, ops
from dnncore.backend import TICKET_BYTES, Address
from dnncore.cuda.runtime.context import retained
from dnncore.cuda.runtime.replays import LEAST_LAUNCHES
from dnncore.errors import BadParamError, ClosedError
from dnncore.problems import ActivationForwardProblem, AddProblem, ConvolutionProblem, Direction
from dnncore.program import SCRATCH, WiredStep
from tests.conftest import CUDA_DEVICES

CONV = ConvolutionDescriptor.make(padding=1)
X = np.random.default_rng(0).uniform(-1, 1, (2, 3, 6, 6)).astype(np.float32)
W = np.random.default_rng(1).uniform(-1, 1, (4, 3, 3, 3)).astype(np.float32)
Y = TensorDescriptor.packed((2, 4, 6, 6))


def test_steps_run_in_a_row_on_the_addresses_of_the_call(handle: Handle) -> None:
    x, w, hidden, y, expected = handle.upload(X), handle.upload(W), *(handle.tensor(Y) for _ in range(3))
    ops.convolution_forward(handle, 1.0, x, w, CONV, 0.0, hidden, algorithm=None)
    ops.activation_forward(handle, RELU, 0.5, hidden, 0.0, expected)
    convolution = handle.plan(ConvolutionProblem(Direction.FORWARD, x.descriptor, w.descriptor, Y, CONV))
    relu = handle.plan(ActivationForwardProblem(Y, Y, RELU))
    enqueue = handle.wire(
        [
            WiredStep(convolution, 1.0, 0.0, ((2, 0), (0, 0), (1, 0))),
            WiredStep(relu, 0.5, 0.0, ((1, 0), (3, 0))),
        ]
    )
    for target in (y, handle.tensor(Y)):  # other addresses the second time
        enqueue([tensor.address for tensor in (w, hidden, x, target)])
        np.testing.assert_array_equal(target.numpy(), expected.numpy())


def test_an_operand_begins_behind_an_address(handle: Handle) -> None:
    both = TensorDescriptor.packed((2, 4))
    row = TensorDescriptor.packed((1, 4))
    x, y = handle.upload(np.array([[1, -2, 3, -4], [-5, 6, -7, 8]], np.float32)), handle.tensor(both)
    y.assign(np.zeros((2, 4), np.float32))
    plan = handle.plan(ActivationForwardProblem(row, row, RELU))
    handle.wire([WiredStep(plan, 1.0, 0.0, ((0, 16), (1, 16)))])([x.address, y.address])
    np.testing.assert_array_equal(y.numpy(), [[0, 0, 0, 0], [0, 6, 0, 8]])


def test_a_workspace_that_grows_is_followed(handle: Handle) -> None:
    def wired(own: Handle, extent: int) -> tuple[WiredStep, np.ndarray, np.ndarray]:
        x = np.random.default_rng(extent).uniform(-1, 1, (1, 2, extent, extent)).astype(np.float32)
        w = np.random.default_rng(2).uniform(-1, 1, (4, 2, 3, 3)).astype(np.float32)
        shape = TensorDescriptor.packed((1, 4, extent, extent))
        of_x, of_w = TensorDescriptor.packed(x.shape), TensorDescriptor.packed(w.shape)
        names = {
            each.name for each in own.get_algorithms(ConvolutionProblem(Direction.FORWARD, of_x, of_w, shape, CONV))
        }
        algorithm = "implicit_precomp_gemm" if "implicit_precomp_gemm" in names else None
        problem = ConvolutionProblem(Direction.FORWARD, of_x, of_w, shape, CONV)
        return WiredStep(own.plan(problem, algorithm=algorithm), 1.0, 0.0, ((0, 0), (1, 0), (2, 0))), x, w

    with Handle(handle.info.name) as own:
        small, large = (wired(own, extent) for extent in (5, 9))
        enqueues = [own.wire([step]) for step, _, _ in (small, large)]
        for index in (0, 1, 0):
            step, x, w = (small, large)[index]
            y, expected = (own.tensor(step.plan.problem.outputs[0]) for _ in range(2))
            tensors = own.upload(x), own.upload(w)
            enqueues[index]([tensor.address for tensor in (*tensors, y)])
            own.run(step.plan, 1.0, tensors, 0.0, [expected])
            np.testing.assert_array_equal(y.numpy(), expected.numpy())


@pytest.mark.parametrize("name", CUDA_DEVICES[:1])
def test_scratch_memory_comes_from_whoever_is_asked_for_it(name: str) -> None:
    with Handle(name) as handle:
        x, w, y, expected = handle.upload(X), handle.upload(W), handle.tensor(Y), handle.tensor(Y)
        problem = ConvolutionProblem(Direction.FORWARD, x.descriptor, w.descriptor, Y, CONV)
        plan = handle.plan(problem, algorithm="implicit_precomp_gemm")
        block = handle.upload(np.zeros(TICKET_BYTES + plan.workspace_bytes, np.uint8))
        asked: list[int] = []

        def reserve(nbytes: int) -> Address:
            asked.append(nbytes)
            return block.address + TICKET_BYTES

        handle.wire([WiredStep(plan, 1.0, 0.0, ((0, 0), (1, 0), (2, 0)))], reserve)([x.address, w.address, y.address])
        assert asked == [plan.workspace_bytes] != [0]
        assert handle.workspace_bytes == 0
        assert block.numpy()[TICKET_BYTES:].any()
        handle.run(plan, 1.0, (x, w), 0.0, [expected])
        np.testing.assert_array_equal(y.numpy(), expected.numpy())


def test_scratch_memory_holds_what_a_step_leaves_for_another(handle: Handle) -> None:
    """In front of what the steps themselves take: a convolution with a workspace reads and writes there."""
    x, w, y, expected = handle.upload(X), handle.upload(W), handle.tensor(Y), handle.tensor(Y)
    problem = ConvolutionProblem(Direction.FORWARD, x.descriptor, w.descriptor, Y, CONV)
    names = {each.name for each in handle.get_algorithms(problem)}
    algorithm = "implicit_precomp_gemm" if "implicit_precomp_gemm" in names else None
    convolution = handle.plan(problem, algorithm=algorithm)
    copy, relu = handle.plan(AddProblem(x.descriptor, x.descriptor)), handle.plan(ActivationForwardProblem(Y, Y, RELU))
    of_x, of_y, end = (
        (SCRATCH, 0),
        (SCRATCH, 1024),
        1024 + Y.nbytes,
    )  # which is no multiple of what memory is aligned to
    assert x.nbytes <= 1024
    assert end % 256
    steps = [
        WiredStep(copy, 1.0, 0.0, ((0, 0), of_x)),
        WiredStep(convolution, 1.0, 0.0, (of_x, (1, 0), of_y)),
        WiredStep(relu, 1.0, 0.0, (of_y, (2, 0))),
    ]
    handle.wire(steps, scratch_bytes=end)([x.address, w.address, y.address])
    handle.run(convolution, 1.0, (x, w), 0.0, [expected])
    ops.activation_forward(handle, RELU, 1.0, expected, 0.0, expected)
    np.testing.assert_array_equal(y.numpy(), expected.numpy())


def test_another_handles_plan_is_refused(handle: Handle) -> None:
    with Handle(handle.info.name) as other:
        plan = other.plan(ActivationForwardProblem(Y, Y, RELU))
        with pytest.raises(BadParamError, match="planned by another handle"):
            handle.wire([WiredStep(plan, 1.0, 0.0, ((0, 0), (1, 0)))])


@pytest.mark.parametrize("name", CUDA_DEVICES[1:2])
@pytest.mark.parametrize("stream", [None, 0, 1], ids=["own", "default", "legacy"])
def test_launches_reach_their_device_whichever_is_current(name: str, stream: int | None) -> None:
    row = TensorDescriptor.packed((1, 4), DType.FLOAT32)
    with Handle(name, stream=stream) as handle:
        x = handle.upload(np.array([[1, -2, 3, -4]], np.float32))
        plan = handle.plan(ActivationForwardProblem(row, row, RELU))
        enqueue = handle.wire([WiredStep(plan, 1.0, 0.0, ((0, 0), (1, 0)))])
        for context in (retained(0), retained(1)):
            y = handle.tensor(row)
            with context:
                enqueue([x.address, y.address])
            np.testing.assert_array_equal(y.numpy(), [[1, 0, 3, 0]])


def _affine(handle: Handle, times: int) -> tuple[list[WiredStep], list[Tensor]]:
    """Steps of y = 2 y + x, behind one of y = x, which come to (2 ** times - 1) x; and x, y and another y."""
    row = TensorDescriptor.packed((1, 4))
    add = handle.plan(AddProblem(row, row))
    steps = [WiredStep(add, 1.0, 2.0 if number else 0.0, ((0, 0), (1, 0))) for number in range(times)]
    return steps, [handle.tensor(row) for _ in range(3)]


@pytest.mark.parametrize("name", CUDA_DEVICES[:1])
@pytest.mark.parametrize("stream", [None, 0], ids=["own", "default"])
def test_what_comes_again_at_the_same_addresses_is_replayed(name: str, stream: int | None) -> None:
    with Handle(name, stream=stream) as handle:
        steps, (x, y, other) = _affine(handle, LEAST_LAUNCHES)
        enqueue = handle.wire(steps, replayed_unless=lambda: False)
        device: Any = handle.device
        graphs = []
        for number in range(6):
            for target in (y,) if number % 2 else (y, other):
                x.assign(np.full((1, 4), number, np.float32))
                target.assign(np.full((1, 4), np.nan, np.float32))
                enqueue([x.address, target.address])
                np.testing.assert_array_equal(target.numpy(), np.full((1, 4), number * (2**LEAST_LAUNCHES - 1)))
            graphs.append(len(device._graphs))
        assert graphs == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("name", CUDA_DEVICES[:1])
def test_graphs_go_with_their_handle(name: str) -> None:
    for end in (Handle.close, Handle.abandon):
        handle = Handle(name)
        steps, (x, y, _) = _affine(handle, LEAST_LAUNCHES)
        x.assign(np.ones((1, 4), np.float32))
        enqueue, addresses = handle.wire(steps, replayed_unless=lambda: False), [x.address, y.address]
        for _ in range(3):
            enqueue(addresses)
        handle.synchronize()
        end(handle)
        with pytest.raises(ClosedError, match="graph"):
            enqueue(addresses)


@pytest.mark.parametrize("device", ["cpu", *CUDA_DEVICES[:1]])
def test_nothing_is_replayed_unless_that_was_allowed(device: str) -> None:
    with Handle(device) as handle:
        steps, (x, y, _) = _affine(handle, LEAST_LAUNCHES)
        x.assign(np.ones((1, 4), np.float32))
        for unless in (None, lambda: True):
            enqueue = handle.wire(steps, replayed_unless=unless)
            for _ in range(4):
                enqueue([x.address, y.address])
            np.testing.assert_array_equal(y.numpy(), np.full((1, 4), 2**LEAST_LAUNCHES - 1))
        assert not getattr(handle.device, "_graphs", ())


@pytest.mark.parametrize("name", CUDA_DEVICES[:1])
def test_a_graph_follows_an_operand_that_few_of_its_launches_touch(name: str) -> None:
    """Wherever that is, aligned for another kernel or not; what was enqueued before keeps what it had."""
    with Handle(name) as handle:
        steps, (x, y, _) = _affine(handle, LEAST_LAUNCHES)
        row = x.descriptor
        steps.append(WiredStep(handle.plan(AddProblem(row, row)), 1.0, 0.0, ((1, 0), (2, 0))))
        enqueue = handle.wire(steps, replayed_unless=lambda: False)
        x.assign(np.ones((1, 4), np.float32))
        z = handle.upload(np.zeros((1, 64), np.float32))
        device: Any = handle.device
        for place in range(8):
            enqueue([x.address, y.address, z.address + 4 * (5 * place)])
        assert len(device._graphs) == 1
        expected = np.zeros((1, 64), np.float32)
        for place in range(8):
            expected[0, 5 * place : 5 * place + 4] = 2**LEAST_LAUNCHES - 1
        np.testing.assert_array_equal(z.numpy(), expected)
