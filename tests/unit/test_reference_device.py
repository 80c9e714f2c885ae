"""The CPU as a device: prepared work, programs as one launch, and the order of its algorithms."""

from __future__ import annotations

import tracemalloc
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from dnncore import RELU, ConvolutionDescriptor, Handle, TensorDescriptor, ops
from dnncore.backend import Bound, Offer
from dnncore.errors import ClosedError, NotSupportedError
from dnncore.problems import (
    ActivationForwardProblem,
    AddProblem,
    ConvolutionProblem,
    Direction,
    FusedConvolutionProblem,
    Problem,
)
from dnncore.reference import ReferenceDevice, launch
from dnncore.reference.launch import ReferenceWork

DEVICE = ReferenceDevice()
FOUR = TensorDescriptor.packed((4,))


def work(problem: Problem, algorithm: int = -1) -> ReferenceWork:
    offer = DEVICE.algorithms(problem)[algorithm].offer(problem, DEVICE.figures)
    assert isinstance(offer, Offer)
    prepared = offer.prepare()
    assert isinstance(prepared, ReferenceWork)
    return prepared


def pointer(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_prepared_work_is_a_value() -> None:
    problem = ActivationForwardProblem(FOUR, FOUR, RELU)
    prepared = work(problem)
    assert prepared == work(problem)
    assert hash(prepared) == hash(work(problem))
    assert DEVICE.describe(prepared) == ["elementwise: NumPy in float64"]
    assert DEVICE.describe(work(problem, 0)) == ["elementwise_fp32: NumPy in float32"]
    with pytest.raises(FrozenInstanceError):
        prepared.algorithm = "another"  # type: ignore[misc]  # what is tested


def test_a_launch_blends_and_ignores_what_comes_behind_the_operands() -> None:
    x, y = np.array([-1, 2, -3, 4], np.float32), np.ones(4, np.float32)
    launch = DEVICE.bind(work(ActivationForwardProblem(FOUR, FOUR, RELU)))
    for _ in range(2):
        launch(DEVICE.create_stream(), 2.0, 1.0, [x.view(np.uint8), y.view(np.uint8), None])
    assert y.tolist() == [1, 9, 1, 17]


class TestGraph:
    """y = relu(x), then z += y, over x, y and z that lie behind each other in one block."""

    @pytest.fixture
    def block(self) -> np.ndarray:
        return np.array([[-1, 2, -3, 4], [0] * 4, [10] * 4], np.float32)

    @pytest.fixture
    def steps(self, block: np.ndarray) -> list[Bound]:
        x, y, z = (row.view(np.uint8) for row in block)
        return [
            Bound(work(ActivationForwardProblem(FOUR, FOUR, RELU)), 1.0, 0.0, (x, y, None)),
            Bound(work(AddProblem(FOUR, FOUR)), 1.0, 1.0, (y, z, None)),
        ]

    def test_steps_run_one_after_the_other(self, block: np.ndarray, steps: list[Bound]) -> None:
        graph = DEVICE.capture(steps)
        assert block[1].tolist() == [0] * 4, "a capture runs nothing"
        for expected in (12, 14):
            graph.launch(DEVICE.create_stream())
            assert block[2].tolist() == [10, expected, 10, 2 * expected - 10]

    def test_operands_move_with_the_memory_that_they_lie_in(self, block: np.ndarray, steps: list[Bound]) -> None:
        graph = DEVICE.capture(steps)
        elsewhere = np.full(8 + block.size, -7, np.float32)
        graph.move([(pointer(block), pointer(block) + block.nbytes, elsewhere[8:].view(np.uint8))])
        elsewhere[8:12] = 1, 1, 1, -1
        graph.launch(DEVICE.create_stream())
        assert elsewhere[8:].reshape(3, 4).tolist() == [[1, 1, 1, -1], [1, 1, 1, 0], [-6, -6, -6, -7]]
        assert block[1:].tolist() == [[0] * 4, [10] * 4]

    def test_ranges_are_those_of_the_capture_and_end_before_their_end(
        self, block: np.ndarray, steps: list[Bound]
    ) -> None:
        graph = DEVICE.capture(steps)
        z, others = block[2], [np.full(4, 5, np.float32) for _ in range(2)]
        for other in others:
            graph.move([(pointer(z), pointer(z) + z.nbytes, other.view(np.uint8))])
            graph.launch(DEVICE.create_stream())
        x = np.zeros(4, np.float32)
        graph.move([(pointer(block), pointer(block[1]), x.view(np.uint8))])  # y begins where x ends
        graph.launch(DEVICE.create_stream())
        assert [other.tolist() for other in others] == [[5, 7, 5, 9]] * 2
        assert block.tolist() == [[-1, 2, -3, 4], [0] * 4, [10] * 4]

    def test_a_closed_graph_refuses(self, steps: list[Bound]) -> None:
        graph = DEVICE.capture(steps)
        graph.close()
        graph.close()
        with pytest.raises(ClosedError):
            graph.launch(DEVICE.create_stream())
        with pytest.raises(ClosedError):
            graph.move([])


def _convolution(direction: Direction, window: int, dtype: str = "float32", groups: int = 1) -> ConvolutionProblem:
    convolution = ConvolutionDescriptor.make(2, padding=window // 2, groups=groups)
    x, w = (2, 12, 9, 8), (24, 12 // groups, window, window)
    a, b, c = (TensorDescriptor.packed(shape, dtype) for shape in (x, w, convolution.output_shape(x, w)))
    return ConvolutionProblem(direction, a, b, c, convolution)


def _offers(problem: Problem) -> dict[str, Offer]:
    found = {each.name: each.offer(problem, DEVICE.figures) for each in DEVICE.algorithms(problem)}
    return {name: offer for name, offer in found.items() if isinstance(offer, Offer)}


def _is_ordered(offers: dict[str, Offer]) -> bool:
    seconds = [offer.seconds for offer in offers.values()]
    return seconds == sorted(set(seconds))


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("window", [1, 3, 7])
def test_convolutions_are_estimated_to_be_fastest_in_float32_and_by_patches(direction: Direction, window: int) -> None:
    offers = _offers(_convolution(direction, window))
    assert _is_ordered(offers)
    assert [offer.math for offer in offers.values()] == ["dtype"] + ["fp64"] * (len(offers) - 1)


@pytest.mark.parametrize("direction", list(Direction))
def test_float64_is_computed_in_float64(direction: Direction) -> None:
    offers = _offers(_convolution(direction, 3, "float64"))
    assert {offer.math for offer in offers.values()} == {"fp64"}
    assert _is_ordered(offers)


def test_what_is_computed_in_float32_is_chosen_unless_the_other_is_asked_for_by_name() -> None:
    """A float32 of 2^24 does not change when 1 is added, so that the sum tells which it was."""
    w = np.repeat(np.array([1 << 24, 1, -(1 << 24)], np.float32), 1000).reshape(1, 3000, 1, 1)
    with Handle("cpu") as handle:
        x, filters, y = handle.upload(np.ones_like(w)), handle.upload(w), handle.tensor((1, 1, 1, 1))
        convolution = ConvolutionDescriptor.make()
        problem = ConvolutionProblem(Direction.FORWARD, x.descriptor, filters.descriptor, y.descriptor, convolution)
        assert handle.plan(problem).offer.math == "dtype"
        for algorithm in (None, "gemm"):
            ops.convolution_forward(handle, 1.0, x, filters, convolution, 0.0, y, algorithm=algorithm)
            assert (y.numpy().item() == 1000) is (algorithm == "gemm")


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("groups", [1, 12])
def test_convolutions_in_parts_are_those_of_the_whole(
    direction: Direction, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of all images, of one, and of some rows of one."""
    problem = _convolution(direction, 3, groups=groups)
    offers = _offers(problem)
    exact = offers.pop("taps")
    random = np.random.default_rng(0)
    operands = [random.standard_normal(each.size).astype(np.float32) for each in problem.inputs]

    def result(offer: Offer) -> np.ndarray:
        output = np.full(problem.outputs[0].size, np.nan, np.float32)
        addresses = [array.view(np.uint8) for array in (*operands, output)]
        DEVICE.bind(offer.prepare())(DEVICE.create_stream(), 1.0, 0.0, [*addresses, None])
        return output

    for elements in (1, 1000, 3000, 1 << 20):
        monkeypatch.setattr(launch, "BLOCK_ELEMENTS", elements)
        for offer in offers.values():
            np.testing.assert_allclose(result(offer), result(exact), rtol=1e-4, atol=1e-5)


def test_memory_does_not_grow_with_the_batch() -> None:
    """What one launch has at a time beside its operands; it is the same for 32 images as for 64."""

    def peak(images: int) -> int:
        x, w = (images, 16, 32, 32), (16, 16, 3, 3)
        convolution = ConvolutionDescriptor.make(padding=1)
        a, b, c = (TensorDescriptor.packed(shape) for shape in (x, w, convolution.output_shape(x, w)))
        offer = _offers(ConvolutionProblem(Direction.FORWARD, a, b, c, convolution))["gemm_in_blocks"]
        addresses = [np.zeros(each.nbytes, np.uint8) for each in (a, b, c)]
        run = DEVICE.bind(offer.prepare())
        tracemalloc.start()
        try:
            run(DEVICE.create_stream(), 1.0, 0.0, [*addresses, None])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(64) == pytest.approx(peak(32), rel=0.01)
    assert peak(64) < 4 * 4 * launch.BLOCK_ELEMENTS


def test_fused_depthwise_convolutions_are_computed_in_float32() -> None:
    """The estimate of the exact algorithm counts what it gathers: it was chosen for MobileNets, and took three times as long."""
    with Handle("cpu") as handle:
        shapes = (1, 96, 56, 56), (96, 1, 3, 3), (1, 96, 28, 28)
        x, w, y = (TensorDescriptor.packed(shape) for shape in shapes)
        convolution = ConvolutionDescriptor.make(padding=1, stride=2, groups=96)
        bias = TensorDescriptor.packed((1, 96, 1, 1))
        problem = FusedConvolutionProblem(x, w, y, convolution, bias=bias, activation=RELU)
        assert handle.plan(problem).algorithm == "depthwise"


def test_an_inverted_residual_of_no_images_writes_nothing() -> None:
    with Handle("cpu") as handle:
        shapes = (0, 4, 6, 6), (4, 1, 3, 3), (5, 4, 1, 1), (0, 5, 6, 6)
        x, depthwise, project, y = (handle.tensor(shape, "float16") for shape in shapes)
        ops.inverted_residual(handle, 1.0, x, depthwise, project, 0.0, y)
        assert y.numpy().shape == (0, 5, 6, 6)


def test_a_bottleneck_of_no_images_writes_nothing() -> None:
    with Handle("cpu") as handle:
        shapes = (0, 4, 6, 6), (2, 4, 1, 1), (2, 2, 3, 3), (5, 2, 1, 1), (0, 5, 6, 6)
        x, reduce, middle, restore, y = (handle.tensor(shape, "float16") for shape in shapes)
        ops.bottleneck(handle, 1.0, x, reduce, middle, restore, 0.0, y)
        assert y.numpy().shape == (0, 5, 6, 6)


def test_arrays_are_copied_one_behind_the_other_and_no_pages_are_locked_for_that() -> None:
    parts = [np.full((rows, 3), rows, np.float32) for rows in (2, 0, 1, 4)]
    memory = DEVICE.allocate(90)
    DEVICE.gather_to_device(DEVICE.create_stream(), memory.at(2), parts)
    assert np.array_equal(memory.at(2)[:84].view(np.float32).reshape(7, 3), np.concatenate(parts))
    with pytest.raises(NotSupportedError, match="4096 B cannot be page-locked for cpu"):
        DEVICE.lock_pages(np.zeros(4096, np.uint8))
