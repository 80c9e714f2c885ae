"""The CPU as a device: prepared work, programs as one launch, and the order of its algorithms."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from dnncore import RELU, ConvolutionDescriptor, TensorDescriptor
from dnncore.backend import Bound, Offer
from dnncore.errors import ClosedError
from dnncore.problems import ActivationForwardProblem, AddProblem, ConvolutionProblem, Direction, Problem
from dnncore.reference import ReferenceDevice
from dnncore.reference.launch import ReferenceWork

DEVICE = ReferenceDevice()
FOUR = TensorDescriptor.packed((4,))


def work(problem: Problem) -> ReferenceWork:
    (algorithm,) = DEVICE.algorithms(problem)
    offer = algorithm.offer(problem, DEVICE.figures)
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


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("window", [1, 3, 7])
def test_patches_are_estimated_to_be_faster_than_taps(direction: Direction, window: int) -> None:
    convolution = ConvolutionDescriptor.make(2, padding=window // 2)
    x, w = (2, 3, 9, 8), (4, 3, window, window)
    a, b, c = (TensorDescriptor.packed(shape) for shape in (x, w, convolution.output_shape(x, w)))
    problem = ConvolutionProblem(direction, a, b, c, convolution)
    offers = [algorithm.offer(problem, DEVICE.figures) for algorithm in DEVICE.algorithms(problem)]
    seconds = [offer.seconds for offer in offers if isinstance(offer, Offer)]
    assert len(seconds) == len(offers)
    assert seconds == sorted(set(seconds))
