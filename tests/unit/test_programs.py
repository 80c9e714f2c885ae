"""Programs as data: printed, run step by step, captured as one launch, moved to other memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from dnncore import RELU, ConvolutionDescriptor, Handle, TensorDescriptor, ops
from dnncore.arena import Arena
from dnncore.backend import Bound, BoundGraph, Offer
from dnncore.cuda.runtime.driver import CudaCallError
from dnncore.cuda.runtime.driver_graph import DriverGraph
from dnncore.errors import BadParamError, ClosedError, OutOfMemoryError
from dnncore.plan import Plan
from dnncore.problems import SumProblem
from dnncore.program import Program
from dnncore.tensor import Tensor

X = np.random.default_rng(0).uniform(-1, 1, (2, 3, 6, 6)).astype(np.float32)
W = np.random.default_rng(1).uniform(-1, 1, (4, 3, 3, 3)).astype(np.float32)
CONV = ConvolutionDescriptor.make(padding=1)
HIDDEN = TensorDescriptor.packed(CONV.output_shape(X.shape, W.shape))


@pytest.fixture
def own(handle: Handle) -> Iterator[Handle]:
    with Handle(handle.info.name) as opened:
        yield opened


def _net(handle: Handle, x: Tensor, w: Tensor, arena: Arena) -> Program:
    """hidden = conv(x, w), y = 2 relu(hidden), total = sum of y: two steps and one with a workspace."""
    with handle.record() as program:
        ops.convolution_forward(handle, 1.0, x, w, CONV, 0.0, arena["hidden"])
        ops.activation_forward(handle, RELU, 2.0, arena["hidden"], 0.0, arena["y"])
        ops.sum_to(handle, 1.0, arena["y"], 0.0, arena["total"])
    return program


def _arena(handle: Handle) -> Arena:
    return handle.arena({"hidden": HIDDEN, "y": HIDDEN, "total": TensorDescriptor.packed((1, 4, 1, 1))})


def _expected(own: Handle, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    y = own.tensor(HIDDEN)
    ops.convolution_forward(own, 1.0, own.upload(x), own.upload(w), CONV, 0.0, y)
    found: np.ndarray = 2 * np.maximum(y.numpy(), 0)
    return found


def test_a_captured_program_gives_what_its_steps_give(own: Handle) -> None:
    x, w, arena = own.upload(X), own.upload(W), _arena(own)
    program = _net(own, x, w, arena)
    program.run()
    by_steps = arena["y"].numpy()
    arena["y"].assign(np.full(HIDDEN.shape, np.nan, np.float32))
    captured = program.capture()
    captured.run()
    np.testing.assert_array_equal(arena["y"].numpy(), by_steps)
    np.testing.assert_array_equal(by_steps, _expected(own, X, W))
    x.assign(-X)
    captured.run()
    np.testing.assert_array_equal(arena["y"].numpy(), _expected(own, -X, W))


def test_a_capture_knows_the_operands_that_no_step_writes(own: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the filters is written by a later step: the next launch's convolution reads it."""
    taken: list[Bound] = []
    capture = own.device.capture

    def watched(steps: Sequence[Bound]) -> BoundGraph:
        taken.extend(steps)
        return capture(steps)

    monkeypatch.setattr(own.device, "capture", watched)
    x, w, arena = own.upload(X), own.upload(W), _arena(own)
    last = w.view(TensorDescriptor.packed((1, 4, 1, 1)), w.descriptor.size - 4)
    program = _net(own, x, w, arena)
    program.capture()
    with own.record() as more:
        ops.transform(own, 1.0, arena["total"], 0.0, last)
    Program(own, program.steps + more.steps).capture()
    found = [bound.constants for bound in taken]
    if not own.device.addresses_are_pointers:
        assert not any(found)
        return
    assert found == [frozenset({0, 1}), frozenset(), frozenset(), frozenset({0}), *[frozenset()] * 3]


def test_inputs_and_outputs_are_exchanged_without_capturing_again(own: Handle) -> None:
    x, w, arena = own.upload(X), own.upload(W), _arena(own)
    captured = _net(own, x, w, arena).capture()
    other_x, other_y = own.upload(X[::-1].copy()), own.tensor(HIDDEN)
    captured.move({x: other_x, arena["y"]: other_y})
    captured.run()
    np.testing.assert_array_equal(other_y.numpy(), _expected(own, X[::-1].copy(), W))
    captured.move({x: x})  # what is not named stays where it is
    captured.run()
    np.testing.assert_array_equal(other_y.numpy(), _expected(own, X, W))


def test_an_address_that_is_aligned_otherwise_takes_the_kernels_for_it(own: Handle) -> None:
    conv = ConvolutionDescriptor.make(padding=1, groups=8)
    tensors = {"x": (2, 8, 8, 8), "w": (8, 1, 3, 3), "y": (2, 8, 8, 8)}
    x, w = (np.random.default_rng(i).uniform(-1, 1, tensors[name]).astype(np.float32) for i, name in enumerate("xw"))
    given, filters, y = own.upload(x), own.upload(w), own.tensor(tensors["y"])
    algorithm = "depthwise" if own.info.name != "cpu" else None
    with own.record() as program:
        ops.convolution_forward(own, 1.0, given, filters, conv, 0.0, y, algorithm=algorithm)
    captured = program.capture()
    captured.run()
    expected = y.numpy()
    room = own.tensor((x.size + 1,))
    odd = room.view(TensorDescriptor.packed(tensors["x"]), 1)
    odd.assign(x)
    y.assign(np.zeros(tensors["y"], np.float32))
    captured.move({given: odd})
    captured.run()
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_program_that_is_captured_twice_is_in_flight_twice(own: Handle) -> None:
    x, w, arena = own.upload(X), own.upload(W), _arena(own)
    program = _net(own, x, w, arena)
    with arena.another() as beside:
        first, second = program.capture(), program.capture({arena: beside, x: own.upload(-X)})
        streams = [own.device.create_stream() for _ in range(2)]
        for _ in range(3):
            for captured, stream in zip((first, second), streams, strict=True):
                captured.run(stream)
        for stream in streams:
            stream.synchronize()
        np.testing.assert_array_equal(arena["y"].numpy(), _expected(own, X, W))
        np.testing.assert_array_equal(beside["y"].numpy(), _expected(own, -X, W))
        second.close()


def test_a_workspace_stays_where_it_is(own: Handle) -> None:
    x = own.upload(np.ones((1, 4, 300, 300), np.float32))
    total = own.tensor((1, 4, 1, 1))
    with own.record() as program:
        ops.sum_to(own, 1.0, x, 0.0, total)
    captured = program.capture()
    needed = own.plan(SumProblem(x.descriptor, total.descriptor)).workspace_bytes
    assert program.workspace_bytes == needed
    own._workspace.reserve(needed + 1_000_000)  # the handle's own moves; the program's does not
    captured.run()
    assert total.numpy().ravel().tolist() == [90_000.0] * 4


def test_a_description_names_steps_kernels_and_totals(own: Handle) -> None:
    x, w, arena = own.upload(X), own.upload(W), _arena(own)
    program = _net(own, x, w, arena)
    text = program.describe()
    first, *_, last = text.splitlines()
    outputs, taps = 2 * 4 * 6 * 6, 3 * 3 * 3
    gflop, mb = f"{2 * outputs * taps / 1e9:.3g} GFLOP", f"{(X.nbytes + W.nbytes + 4 * outputs) / 1e6:.3g} MB"
    seconds = [_estimate(own, step.plan) for step in program.steps]
    assert "Convolution float32[2, 4, 6, 6]" in first
    assert f": {seconds[0] * 1e6:.1f} us estimated, {mb} of operands, {gflop}, 0 B of workspace" in first
    all_mb = (X.nbytes + W.nbytes + 4 * outputs) + 2 * 4 * outputs + 4 * (outputs + 4)
    assert last.split(", ") == [
        f"3 steps: {sum(seconds) * 1e3:.3f} ms estimated",
        f"{all_mb / 1e6:.3g} MB of operands",
        gflop,
        f"{program.workspace_bytes} B of workspace",
    ]
    if own.info.name != "cpu":
        (relu,) = (line for line in text.splitlines() if "activation_forward_relu_float:" in line)
        (call,) = program.steps[1].plan.work
        threads, vector = 128, 4
        blocks = -(-outputs // (threads * vector))
        assert relu.split(": ")[1] == f"{blocks} blocks of {threads} threads, {len(call.params)} B parameters"
    plan = own.plan(SumProblem(arena["y"].descriptor, arena["total"].descriptor))
    assert plan.describe().startswith(f"Sum {arena['total'].descriptor} by {plan.algorithm}")


def _estimate(own: Handle, plan: Plan) -> float:
    """What the algorithm of a plan says that it takes."""
    (algorithm,) = (each for each in own.device.algorithms(plan.problem) if each.name == plan.algorithm)
    offer = algorithm.offer(plan.problem, own.device.figures)
    assert isinstance(offer, Offer)
    return offer.seconds


def test_what_may_not_be_done_is_refused(own: Handle) -> None:
    x, w, arena = own.upload(X), own.upload(W), _arena(own)
    program = _net(own, x, w, arena)
    captured = program.capture()
    with pytest.raises(BadParamError, match="whose place it would take"):
        captured.move({x: own.tensor((1,))})
    with own.record(), pytest.raises(BadParamError, match="no part of a recorded program"):
        captured.run()
    with own.record(), pytest.raises(BadParamError, match="no part of a recorded program"):
        program.capture()
    captured.close()
    captured.close()
    with pytest.raises(ClosedError):
        captured.run()


def test_a_handle_closes_what_was_captured_on_it(handle: Handle) -> None:
    own = Handle(handle.info.name)
    captured = _net(own, own.upload(X), own.upload(W), _arena(own)).capture()
    own.close()
    with pytest.raises(ClosedError):
        captured.run()


def test_tensors_of_an_arena_lie_apart_and_end_with_it(own: Handle) -> None:
    arena = own.arena({"a": TensorDescriptor.packed((3,)), "b": TensorDescriptor.packed((5,), "float64")})
    a, b = arena["a"], arena["b"]
    assert a.pointer % 256 == b.pointer % 256 == 0
    assert a.pointer + a.nbytes <= b.pointer
    assert b.pointer + b.nbytes <= arena.pointer + arena.nbytes
    arena.close()
    for tensor in (a, b):
        with pytest.raises(ClosedError):
            tensor.numpy()


class TestPool:
    def test_memory_goes_back_when_nobody_refers_to_it(self, own: Handle) -> None:
        x = own.new(HIDDEN)
        held = own._belongings.memory
        assert len(held) == 1
        view = x.reshape(HIDDEN.size)
        del x
        assert len(held) == 1, "a view keeps what it looks into"
        view.assign(np.arange(HIDDEN.size, dtype=np.float32))
        assert view.numpy()[-1] == HIDDEN.size - 1
        del view
        assert not held

    def test_what_was_enqueued_before_still_has_it(self, own: Handle) -> None:
        x, y = own.new(HIDDEN), own.tensor(HIDDEN)
        x.assign(np.full(HIDDEN.shape, 3, np.float32))
        ops.activation_forward(own, RELU, 1.0, x, 0.0, y)
        del x
        ops.activation_forward(own, RELU, 1.0, y, 0.0, own.new(HIDDEN))
        assert set(y.numpy().ravel()) == {3.0}

    def test_a_program_cannot_be_recorded_with_it(self, own: Handle) -> None:
        with own.record(), pytest.raises(BadParamError, match="no part of a recorded program"):
            own.new(HIDDEN)

    def test_it_may_outlive_its_handle(self, handle: Handle) -> None:
        own = Handle(handle.info.name)
        x = own.new(HIDDEN)
        own.close()
        with pytest.raises(ClosedError):
            x.numpy()
        del x


class TestMoves:
    def test_memory_of_another_handle_and_read_only_memory_are_refused(self, own: Handle, handle: Handle) -> None:
        x, w, arena = own.upload(X), own.upload(W), _arena(own)
        captured = _net(own, x, w, arena).capture()
        foreign = handle.tensor(HIDDEN)
        with pytest.raises(BadParamError, match="belongs to another handle"):
            captured.move({arena["y"]: foreign})
        foreign.close()
        sealed = own.tensor(HIDDEN)
        sealed.read_only = True
        with pytest.raises(BadParamError, match="is read-only"):
            captured.move({arena["y"]: sealed})
        captured.run()
        np.testing.assert_array_equal(arena["y"].numpy(), _expected(own, X, W))

    def test_a_refused_move_makes_the_graph_again_or_gives_it_back(
        self, own: Handle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if own.info.name == "cpu":
            return
        x, y = own.upload(np.arange(16, dtype=np.float32)), own.tensor((16,))
        room = own.upload(np.arange(100, 117, dtype=np.float32))
        with own.record() as program:
            ops.activation_forward(own, RELU, 1.0, x, 0.0, y)
        captured = program.capture()

        def refuse(*_: object) -> None:
            raise CudaCallError("cuGraphExecKernelNodeSetParams", "CUDA_ERROR_UNKNOWN")

        def full(*_: object) -> None:
            raise OutOfMemoryError("full")

        destroyed: list[DriverGraph] = []
        destroy = DriverGraph.destroy

        def counted(graph: DriverGraph) -> None:
            destroyed.append(graph)
            destroy(graph)

        other = room.view(x.descriptor, 1)
        with monkeypatch.context() as patch:
            patch.setattr(DriverGraph, "set_kernel", refuse)
            captured.move({x: other})  # by making the graph again
        captured.run()
        assert y.numpy()[0] == 101
        with monkeypatch.context() as patch:
            patch.setattr(DriverGraph, "set_kernel", refuse)
            patch.setattr(DriverGraph, "instantiate", full)
            patch.setattr(DriverGraph, "destroy", counted)
            with pytest.raises(OutOfMemoryError):
                captured.move({x: x})
        assert len(destroyed) == 2  # the one that there was, and the one that could not be made
        with pytest.raises(ClosedError):
            captured.run()


def test_closing_what_was_retired_does_nothing(own: Handle) -> None:
    x = own.tensor(HIDDEN)
    own.retire([x])
    own.synchronize()
    x.close()


def test_memory_of_the_pool_follows_a_change_of_stream(own: Handle) -> None:
    x, y = own.new(HIDDEN), own.tensor(HIDDEN)
    x.assign(np.full(HIDDEN.shape, 5, np.float32))
    own.set_stream(None)
    ops.activation_forward(own, RELU, 1.0, x, 0.0, y)
    del x
    ops.activation_forward(own, RELU, 1.0, y, 0.0, own.new(HIDDEN))
    assert set(y.numpy().ravel()) == {5.0}


def test_an_abandoned_handle_gives_captured_programs_back(handle: Handle) -> None:
    own = Handle(handle.info.name)
    captured = _net(own, own.upload(X), own.upload(W), _arena(own)).capture()
    captured.run()
    own.abandon()
    assert captured._graph is None
    assert captured._memory is None
