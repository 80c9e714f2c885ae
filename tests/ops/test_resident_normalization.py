"""Batch normalisation whose channels stay in registers: clusters of every size, planes in turns, what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from dnncore import ActivationDescriptor, BatchNormMode, Handle, TensorDescriptor
from dnncore.backend import Offer
from dnncore.choice import fastest
from dnncore.cuda import normalization
from dnncore.cuda.calls import KernelCall, WhereAligned
from dnncore.cuda.normalization import resident
from dnncore.cuda.normalization.resident import Resident
from dnncore.figures import A100, H200
from dnncore.problems import BatchNormBackwardProblem, BatchNormForwardProblem
from tests.cases import Case
from tests.cases.normalization import slice_of_channels
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

SPATIAL, RELU = BatchNormMode.SPATIAL, ActivationDescriptor.make("relu")
Problem = BatchNormForwardProblem | BatchNormBackwardProblem


@dataclass(frozen=True)
class Maps:
    """What is normalised, and by which kernel: of clusters of so many blocks, each with so many packs of channels.

    Elements of a channel are as many as leave the last block fewer than the others, and threads fewer than others. Blocks have few
    threads, so that not so many elements are more than they keep.
    """

    kernel: str
    blocks: int
    shape: tuple[int, int, int, int]
    dtype: str = "float32"
    columns: int = 1
    narrow: bool = False

    @property
    def is_last(self) -> bool:
        return self.kernel == "last"

    def problem(self, direction: str, what: str = "") -> Problem:
        """With running statistics or old gradients; `what` is "relu", "add-relu" or nothing."""
        layout = "NHWC" if self.is_last else "NCHW"
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
        return f"normalization_resident_{direction}_{self.dtype}_{self.kernel}{by}".replace("float32", "float")


MAPS = (
    Maps("planes", 1, (3, 2, 6, 10)),
    Maps("planes", 2, (5, 2, 4, 19)),
    Maps("planes", 8, (3, 2, 10, 14)),
    Maps("planes", 1, (5, 2, 4, 6), "float16", narrow=True),
    Maps("planes", 2, (3, 2, 16, 33), "float16"),
    Maps("planes", 8, (7, 2, 8, 30), "float16"),
    Maps("planes", 1, (2, 2, 8, 9), "bfloat16"),
    Maps("planes", 2, (3, 2, 8, 11), "bfloat16", narrow=True),
    Maps("planes", 8, (3, 2, 16, 23), "bfloat16"),
    Maps("planes_halves", 1, (5, 2, 14, 14), "float16"),
    Maps("planes_halves", 2, (9, 2, 14, 14), "float16", narrow=True),
    Maps("planes_halves", 8, (11, 2, 14, 14), "float16"),
    Maps("planes_halves", 1, (3, 2, 2, 6), "bfloat16", narrow=True),
    Maps("planes_halves", 2, (5, 2, 6, 10), "bfloat16"),
    Maps("planes_halves", 8, (7, 2, 14, 14), "bfloat16"),
    Maps("planes", 8, (11, 2, 58, 58)),
    Maps("planes", 8, (9, 2, 56, 68), "float16"),
    Maps("planes", 8, (6, 2, 80, 81), "bfloat16", narrow=True),
    Maps("planes_halves", 8, (12, 2, 38, 38), "float16"),
    Maps("planes_halves", 8, (9, 2, 42, 46), "bfloat16"),
    Maps("planes_singles", 1, (37, 2, 7, 7)),
    Maps("planes_singles", 2, (5, 2, 3, 5)),
    Maps("planes_singles", 8, (11, 2, 5, 5)),
    Maps("planes_singles", 1, (48, 2, 7, 7), "float16", narrow=True),
    Maps("planes_singles", 2, (7, 2, 9, 9), "float16"),
    Maps("planes_singles", 8, (19, 2, 3, 3), "float16"),
    Maps("planes_singles", 1, (3, 2, 21, 21), "bfloat16"),
    Maps("planes_singles", 2, (35, 2, 7, 7), "bfloat16", narrow=True),
    Maps("planes_singles", 8, (9, 2, 5, 7), "bfloat16"),
    Maps("last", 1, (3, 8, 5, 7), columns=2),
    Maps("last", 2, (3, 12, 9, 11)),
    Maps("last", 8, (5, 8, 9, 11), columns=2),
    Maps("last", 1, (3, 24, 5, 7), "float16"),
    Maps("last", 2, (3, 16, 9, 9), "float16", columns=2, narrow=True),
    Maps("last", 8, (5, 8, 9, 11), "float16"),
    Maps("last", 1, (3, 16, 5, 7), "bfloat16", columns=2),
    Maps("last", 2, (3, 8, 9, 11), "bfloat16"),
    Maps("last", 8, (5, 16, 9, 11), "bfloat16", columns=2, narrow=True),
)

KERNELS = {maps.entry(direction) for maps in MAPS for direction in ("forward", "backward")}
"""What the cases here run."""


@pytest.mark.cuda
@pytest.mark.parametrize("what", ["", "relu", "add-relu"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    "maps",
    MAPS,
    ids=lambda maps: f"{maps.kernel}-{maps.dtype}-{maps.shape[0]}x{maps.shape[2]}x{maps.shape[3]}-by-{maps.blocks}",
)
def test_blocks_of_a_cluster_have_a_channel_together(
    maps: Maps, direction: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forced(problem: Problem, figures: Any) -> Any:
        wanted = (maps.blocks, maps.columns)
        return next(one for one in resident._Shape.all_of(problem, figures) if (one.blocks, one.columns) == wanted)

    monkeypatch.setattr(resident, "_fastest", forced)
    monkeypatch.setattr(resident, "_threads", lambda _vectors: 64)
    problem = maps.problem(direction, what)
    (choice,) = _prepared(problem)
    (call,) = choice.aligned
    assert isinstance(call, KernelCall)
    assert call.unit.entry == maps.entry(direction)
    with Handle(CUDA_DEVICES[0]) as handle:
        for guard in (GUARD, GUARD + 1):  # aligned, and by the general kernels
            check(handle, Case(f"resident-{maps.kernel}-{maps.blocks}", problem, 0.5, 2.0), "resident", guard)


@pytest.mark.cuda
@pytest.mark.parametrize("what", ["", "add-relu"])
@pytest.mark.parametrize(
    "maps",
    MAPS,
    ids=lambda maps: f"{maps.kernel}-{maps.dtype}-{maps.shape[0]}x{maps.shape[2]}x{maps.shape[3]}-by-{maps.blocks}",
)
def test_dy_may_be_some_of_the_channels_of_another_tensor(
    maps: Maps, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forced(problem: Problem, figures: Any) -> Any:
        wanted = (maps.blocks, maps.columns)
        return next(one for one in resident._Shape.all_of(problem, figures) if (one.blocks, one.columns) == wanted)

    monkeypatch.setattr(resident, "_fastest", forced)
    monkeypatch.setattr(resident, "_threads", lambda _vectors: 64)
    problem = maps.problem("backward", what)
    assert isinstance(problem, BatchNormBackwardProblem)
    problem = replace(problem, dy=slice_of_channels(problem.x))
    (choice,) = _prepared(problem)
    (call,) = choice.aligned
    assert isinstance(call, KernelCall)
    assert call.unit.entry == maps.entry("backward")
    with Handle(CUDA_DEVICES[0]) as handle:
        check(handle, Case(f"resident-slice-{maps.kernel}-{maps.blocks}", problem, 0.5, 2.0), "resident")


def _prepared(problem: Problem) -> tuple[WhereAligned]:
    direction = "forward" if isinstance(problem, BatchNormForwardProblem) else "backward"
    offer = Resident(direction).offer(problem, H200)
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    return (choice,)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_small_maps_take_one_launch(direction: str, layout: str) -> None:
    maps = Maps("last" if layout == "NHWC" else "planes", 1, (64, 64, 14, 14))
    (choice,) = _prepared(maps.problem(direction))
    assert len(choice.aligned) == 1


@pytest.mark.parametrize("what", ["", "relu", "add-relu"])
@pytest.mark.parametrize("shape", [(128, 64, 28, 28), (128, 512, 14, 14), (128, 64, 56, 56)], ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_slice_of_channels_is_no_slower_by_estimate_than_a_tensor_of_its_own(
    layout: str, shape: tuple[int, int, int, int], what: str
) -> None:
    problem = Maps("last" if layout == "NHWC" else "planes", 1, shape, "float16").problem("backward", what)
    assert isinstance(problem, BatchNormBackwardProblem)
    own, part = (
        fastest(normalization.ALGORITHMS[BatchNormBackwardProblem], replace(problem, dy=dy), H200)
        for dy in (problem.x, slice_of_channels(problem.x))
    )
    assert own is not None
    assert part is not None
    assert (part[0].name, part[1].seconds) == (own[0].name, own[1].seconds)


def test_planes_that_no_cluster_keeps_are_read_in_turns() -> None:
    problem = Maps("planes", 8, (64, 64, 112, 112)).problem("forward")
    shape = resident._fastest(problem, H200)
    assert shape is not None
    assert 0 < shape.kept(problem) < shape.part
    (choice,) = _prepared(problem)
    assert [call.unit.entry for call in choice.aligned if isinstance(call, KernelCall)] == [
        "normalization_resident_forward_float_planes_by_8"
    ]


def test_vectors_are_of_half_the_bytes_where_planes_are_no_more() -> None:
    (choice,) = _prepared(Maps("planes_halves", 1, (64, 64, 14, 14), "float16").problem("forward"))
    assert {multiple for _, multiple in choice.alignments} == {8}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_planes_that_are_no_whole_vectors_are_read_by_single_elements(direction: str, dtype: str) -> None:
    problem = Maps("planes_singles", 1, (64, 512, 7, 7), dtype).problem(direction)
    (choice,) = _prepared(problem)
    assert {multiple for _, multiple in choice.alignments} == {problem.x.dtype.itemsize}
    (call,) = choice.aligned
    assert isinstance(call, KernelCall)
    assert call.block[0] == 224  # 4 planes of 49: each thread has one element of every fourth image


def test_planes_that_are_whole_vectors_are_not_read_by_single_elements() -> None:
    small = Maps("planes", 1, (4, 512, 4, 4), "float16").problem("forward")
    assert {shape.vector_bytes for shape in resident._Shape.all_of(small, H200)} == {16}


def test_without_clusters_a_block_keeps_a_channel() -> None:
    small, large = (Maps("planes", 1, (batch, 64, 14, 14)).problem("forward") for batch in (64, 128))
    assert isinstance(Resident("forward").offer(small, A100), Offer)
    assert isinstance(Resident("forward").offer(large, H200), Offer)  # several blocks keep it together
    assert "registers" in str(Resident("forward").offer(large, A100))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Maps("planes", 1, (2, 3, 4, 4), "float64").problem("forward"), "float64"),
        (Maps("planes", 1, (0, 3, 4, 4)).problem("forward"), "empty"),
        (Maps("last", 1, (64, 64, 112, 112)).problem("forward"), "registers"),
        (Maps("planes", 1, (2, 3, 23, 23), "float16").problem("backward"), "at most 448"),
        (Maps("planes", 1, (2048, 3, 7, 7)).problem("forward"), "registers"),
        (Maps("last", 1, (2, 13, 5, 5), "float16").problem("backward"), "vectors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_says_why(problem: Problem, reason: str) -> None:
    direction = "forward" if isinstance(problem, BatchNormForwardProblem) else "backward"
    answer = Resident(direction).offer(problem, H200)
    assert isinstance(answer, str)
    assert reason in answer
