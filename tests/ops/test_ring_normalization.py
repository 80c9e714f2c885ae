"""Batch normalisation of planes in shared memory: channels in turn, clusters of every size, what passes through registers, refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from dnncore import ActivationDescriptor, BatchNormMode, Handle, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.calls import KernelCall, WhereAligned
from dnncore.cuda.normalization import ring
from dnncore.cuda.normalization.ring import Ring
from dnncore.figures import A100, H200
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
    """What is normalised, and by clusters of how many blocks, of which there are as many as are said: fewer than channels."""

    blocks: int
    shape: tuple[int, int, int, int]
    dtype: str = "float32"
    clusters: int = 1
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
        by = "" if self.blocks == 1 else f"_by_{self.blocks}"
        return f"normalization_ring_{direction}_{self.dtype}{by}".replace("float32", "float")

    def force(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have it chosen, with few threads."""

        def forced(problem: Problem, figures: Any) -> Any:
            shape = next(one for one in ring._shapes(problem, figures) if one.blocks == self.blocks)
            return replace(shape, threads=THREADS, multiprocessors=self.clusters * self.blocks)

        monkeypatch.setattr(ring, "_fastest", forced)


MAPS = (  # vectors of a thread: forward 28 have slots, 20 of which are added up ahead; backward half as many
    Maps(1, (3, 5, 8, 12), clusters=2),  # 3
    Maps(1, (6, 3, 20, 24)),  # 23
    Maps(1, (5, 3, 32, 31)),  # 39
    Maps(2, (5, 3, 16, 20)),  # 7
    Maps(8, (3, 2, 4, 4)),  # none but in the first blocks
    Maps(8, (7, 4, 24, 52), clusters=2),  # 9
    Maps(8, (10, 2, 50, 52)),  # 26
    Maps(8, (9, 2, 72, 72)),  # 46
    Maps(1, (5, 3, 40, 24), "float16", narrow=True),  # 19
    Maps(2, (9, 3, 56, 36), "float16", clusters=2),  # 36
    Maps(8, (13, 3, 50, 72), "float16"),  # 23
    Maps(8, (14, 2, 80, 81), "float16"),  # 45
    Maps(1, (7, 3, 32, 32), "bfloat16"),  # 28
    Maps(2, (3, 3, 8, 33), "bfloat16", narrow=True),  # 2
    Maps(8, (14, 3, 80, 81), "bfloat16", clusters=2),  # 45
)

KERNELS = {maps.entry(direction) for maps in MAPS for direction in ("forward", "backward")}
"""What the cases here run."""


def named(maps: Maps) -> str:
    return f"{maps.dtype}-{'x'.join(map(str, maps.shape))}-by-{maps.blocks}"


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
    assert call.grid[0] == maps.clusters * maps.blocks
    with Handle(CUDA_DEVICES[0]) as handle:
        for guard in (GUARD, GUARD + 1):  # aligned, and by the general kernels
            check(handle, Case(f"ring-{maps.blocks}", problem, 0.5, 2.0), "ring", guard)


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
def test_a_launch_has_as_many_clusters_as_run_at_the_same_time(direction: str) -> None:
    (call,) = prepared(Maps(8, (64, 64, 112, 112), "float16").problem(direction)).aligned
    assert isinstance(call, KernelCall)
    assert call.grid[0] == 8 * (H200.multiprocessors // 8)
    assert call.shared_bytes <= H200.shared_bytes


def test_a_channel_that_slots_hold_is_read_once() -> None:
    def read_again(direction: str, dtype: str) -> list[float]:
        problem = Maps(8, (64, 64, 112, 112), dtype).problem(direction)
        return [shape.read_again for shape in ring._shapes(problem, H200)]

    assert read_again("forward", "float16")[-1] == 0
    one, two, eight = read_again("backward", "float32")
    assert one > two > eight > 0


@pytest.mark.parametrize(
    ("problem", "figures", "reason"),
    [
        (Maps(1, (2, 3, 4, 4), "float64").problem("forward"), H200, "float64"),
        (Maps(1, (0, 3, 4, 4)).problem("forward"), H200, "empty"),
        (Maps(1, (64, 64, 14, 14), "float16").problem("forward"), H200, "vectors"),
        (Maps(1, (64, 64, 16, 16)).problem("backward", layout="NHWC"), H200, "planes"),
        (Maps(1, (64, 64, 16, 16)).problem("forward"), A100, "sm_90a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_says_why(problem: Problem, figures: Any, reason: str) -> None:
    direction = "forward" if isinstance(problem, BatchNormForwardProblem) else "backward"
    answer = Ring(direction).offer(problem, figures)
    assert isinstance(answer, str)
    assert reason in answer
