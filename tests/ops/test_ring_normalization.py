"""Batch normalisation of planes in shared memory: channels in turn, what passes through registers, refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from dnncore import ActivationDescriptor, BatchNormMode, Handle, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.calls import KernelCall, WhereAligned
from dnncore.cuda.normalization import ring
from dnncore.cuda.normalization.ring import Ring
from dnncore.figures import A100, H200, DeviceFigures
from dnncore.problems import BatchNormBackwardProblem, BatchNormForwardProblem
from tests.cases import Case
from tests.cases.normalization import slice_of_channels
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

SPATIAL, RELU = BatchNormMode.SPATIAL, ActivationDescriptor.make("relu")
Problem = BatchNormForwardProblem | BatchNormBackwardProblem

THREADS = 32
"""Of a block in these tests, where a thread then has as many vectors as in large tensors."""


@dataclass(frozen=True)
class Maps:
    """What is normalised, and by how many blocks: fewer than channels."""

    shape: tuple[int, int, int, int]
    dtype: str = "float32"
    blocks: int = 1
    narrow: bool = False

    def problem(self, direction: str, what: str = "", layout: str = "NCHW") -> Problem:
        """With running statistics or old gradients; `what` is "relu", "add-relu" or nothing."""
        x = TensorDescriptor.packed(self.shape, self.dtype, layout)
        s = TensorDescriptor.packed((1, self.shape[1], 1, 1), x.dtype.compute)
        p = TensorDescriptor.packed(s.shape, x.dtype if self.narrow else x.dtype.compute)
        activation, z = RELU if what else None, x if what == "add-relu" else None
        if direction == "forward":
            return BatchNormForwardProblem(x, p, p, x, s, s, SPATIAL, 1e-3, 0.3, p, p, p, p, z, activation)
        plain = BatchNormBackwardProblem(x, x, p, s, s, x, p, p, SPATIAL, 0.5, -2.0, p, p)
        if not what:
            return plain
        return replace(plain, y=x, dz=z, bias=None if z else p, activation=activation)

    def entry(self, direction: str) -> str:
        return f"normalization_ring_{direction}_{self.dtype}".replace("float32", "float")

    def force(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have it chosen, with few threads."""

        shape_of = ring._shape

        def forced(problem: Problem, figures: DeviceFigures) -> Any:
            shape = shape_of(problem, figures)
            assert shape is not None
            return replace(shape, threads=THREADS, multiprocessors=self.blocks)

        monkeypatch.setattr(ring, "_shape", forced)


MAPS = (  # vectors of a thread: forward 28 have slots, 20 of which are added up ahead; backward half as many
    Maps((3, 5, 8, 12), blocks=2),  # 3
    Maps((3, 7, 4, 4), blocks=3),  # none, but of the first threads
    Maps((6, 3, 20, 24)),  # 23
    Maps((5, 3, 32, 31)),  # 39
    Maps((9, 2, 36, 36), blocks=2),  # 92
    Maps((2, 3, 16, 20), "float16", blocks=2),  # 3
    Maps((5, 3, 40, 24), "float16", narrow=True),  # 19
    Maps((14, 2, 32, 27), "float16"),  # 48
    Maps((7, 3, 32, 32), "bfloat16"),  # 28
    Maps((3, 3, 8, 33), "bfloat16", narrow=True),  # 4
)

KERNELS = {maps.entry(direction) for maps in MAPS for direction in ("forward", "backward")}
"""What the cases here run."""


def named(maps: Maps) -> str:
    return f"{maps.dtype}-{'x'.join(map(str, maps.shape))}"


def prepared(problem: Problem) -> WhereAligned:
    direction = "forward" if isinstance(problem, BatchNormForwardProblem) else "backward"
    offer = Ring(direction).offer(problem, H200)
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    return choice


@pytest.mark.cuda
@pytest.mark.parametrize("what", ["", "relu", "add-relu"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("maps", MAPS, ids=named)
def test_blocks_that_stay_have_one_channel_after_the_other(
    maps: Maps, direction: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps.force(monkeypatch)
    problem = maps.problem(direction, what)
    (call,) = prepared(problem).aligned
    assert isinstance(call, KernelCall)
    assert call.unit.entry == maps.entry(direction)
    assert call.grid[0] == maps.blocks
    with Handle(CUDA_DEVICES[0]) as handle:
        for guard in (GUARD, GUARD + 1):  # aligned, and by the general kernels
            check(handle, Case("ring", problem, 0.5, 2.0), "ring", guard)


@pytest.mark.cuda
@pytest.mark.parametrize("what", ["", "add-relu"])
@pytest.mark.parametrize("maps", MAPS, ids=named)
def test_dy_may_be_some_of_the_channels_of_another_tensor(
    maps: Maps, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps.force(monkeypatch)
    problem = maps.problem("backward", what)
    assert isinstance(problem, BatchNormBackwardProblem)
    with Handle(CUDA_DEVICES[0]) as handle:
        check(handle, Case("ring-slice", replace(problem, dy=slice_of_channels(problem.x)), 0.5, 2.0), "ring")


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("channels", "blocks"), [(64, 64), (512, H200.multiprocessors)])
def test_a_launch_has_as_many_blocks_as_run_at_the_same_time(channels: int, blocks: int, direction: str) -> None:
    (call,) = prepared(Maps((64, channels, 28, 28), "float16").problem(direction)).aligned
    assert isinstance(call, KernelCall)
    assert call.grid[0] == blocks
    assert call.shared_bytes <= H200.shared_bytes


def test_a_channel_that_slots_hold_is_read_once() -> None:
    def read_again(direction: str, images: int) -> float:
        shape = ring._shape(Maps((images, 64, 28, 28), "float16").problem(direction), H200)
        assert shape is not None
        return shape.read_again

    assert read_again("forward", 128) == 0
    assert 0 < read_again("backward", 128) < read_again("backward", 256) < 1


@pytest.mark.parametrize(
    ("problem", "figures", "reason"),
    [
        (Maps((2, 3, 4, 4), "float64").problem("forward"), H200, "float64"),
        (Maps((0, 3, 4, 4)).problem("forward"), H200, "empty"),
        (Maps((64, 64, 14, 14), "float16").problem("forward"), H200, "vectors"),
        (Maps((64, 64, 16, 16)).problem("backward", layout="NHWC"), H200, "planes"),
        (Maps((64, 64, 16, 16)).problem("forward"), A100, "sm_90a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_says_why(problem: Problem, figures: Any, reason: str) -> None:
    direction = "forward" if isinstance(problem, BatchNormForwardProblem) else "backward"
    answer = Ring(direction).offer(problem, figures)
    assert isinstance(answer, str)
    assert reason in answer
