"""Layer, RMS and group normalisation, forward, by a block for each group: every kernel, one warp and several, what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from dnncore import Handle, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.calls import KernelCall, WhereAligned
from dnncore.cuda.normalization import block_per_group
from dnncore.cuda.normalization.block_per_group import BlockPerGroup
from dnncore.figures import H200
from dnncore.problems import GroupNormForwardProblem, LayerNormForwardProblem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

Problem = GroupNormForwardProblem | LayerNormForwardProblem


@dataclass(frozen=True)
class Groups:
    """Of rows [rows, elements], or of images in so many groups."""

    kernel: str
    dtype: str
    shape: tuple[int, ...]
    groups: int = 1
    narrow: bool = False
    scale: bool = True
    bias: bool = True
    centred: bool = True

    @property
    def problem(self) -> Problem:
        x = TensorDescriptor.packed(self.shape, self.dtype)
        is_rows, compute = self.kernel == "rows", x.dtype.compute
        shape = (1, self.shape[1]) if is_rows else (1, self.shape[1], *(1,) * (len(self.shape) - 2))
        p = TensorDescriptor.packed(shape, x.dtype if self.narrow else compute)
        scale, bias = p if self.scale else None, p if self.bias else None
        if is_rows:
            s = TensorDescriptor.packed((self.shape[0], 1), compute)
            return LayerNormForwardProblem(x, x, s, 1, 1e-3, s if self.centred else None, scale, bias)
        s = TensorDescriptor.packed((self.shape[0], self.groups, *(1,) * (len(self.shape) - 2)), compute)
        return GroupNormForwardProblem(x, x, s, s, self.groups, 1e-3, scale, bias)

    @property
    def entry(self) -> str:
        return f"normalization_group_{self.dtype}_{self.kernel}".replace("float32", "float")


GROUPS = (
    Groups("rows", "float32", (5, 140)),
    Groups("rows", "float32", (3, 1036), bias=False, centred=False),
    Groups("rows", "float32", (2, 4400), scale=False),
    Groups("rows", "float16", (5, 264), narrow=True),
    Groups("rows", "float16", (3, 1096), bias=False, centred=False),
    Groups("rows", "bfloat16", (3, 1544)),
    Groups("rows", "bfloat16", (3, 2056), narrow=True, bias=False),
    Groups("planes", "float32", (2, 6, 6, 10), 2),
    Groups("planes", "float32", (2, 4, 20, 22), 2, scale=False),
    Groups("planes", "float16", (3, 8, 8, 12), 2, narrow=True),
    Groups("planes", "bfloat16", (2, 6, 8, 12), 2),
    Groups("planes", "bfloat16", (2, 6, 16, 12), 1, bias=False, narrow=True),
    Groups("planes_halves", "float16", (3, 8, 14, 14), 2),
    Groups("planes_halves", "bfloat16", (2, 9, 6, 10), 3, narrow=True),
)

KERNELS = {groups.entry for groups in GROUPS}
"""What the cases here run."""


@pytest.mark.cuda
@pytest.mark.parametrize("is_many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("groups", GROUPS, ids=lambda one: f"{one.kernel}-{one.dtype}-{'x'.join(map(str, one.shape))}")
def test_a_block_has_a_group(groups: Groups, is_many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a vector for each thread as with several, which threads have where there are many groups."""
    if is_many:
        monkeypatch.setattr(block_per_group, "_THREADS_AT_FULL_RATE", 0.01)
    (call,) = _prepared(groups.problem).aligned
    assert isinstance(call, KernelCall)
    assert call.unit.entry == groups.entry
    with Handle(CUDA_DEVICES[0]) as handle:
        for guard in (GUARD, GUARD + 1):  # aligned, and by the general kernels
            check(handle, Case(f"groups-{groups.kernel}", groups.problem, 0.5, 2.0), "block_per_group", guard)


def _prepared(problem: Problem) -> WhereAligned:
    offer = BlockPerGroup().offer(problem, H200)
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    return choice


def _threads(problem: Problem) -> int:
    (call,) = _prepared(problem).aligned
    assert isinstance(call, KernelCall)
    return call.block[0]


def test_threads_of_few_groups_have_a_vector_each_and_of_many_several() -> None:
    few, many = (Groups("rows", "float32", (rows, 1024)).problem for rows in (256, 65536))
    assert _threads(few) == 256
    assert _threads(many) == 64


def test_two_blocks_of_large_groups_fit_on_a_multiprocessor() -> None:
    assert _threads(Groups("planes", "float16", (64, 64, 112, 112), 32).problem) == 416


def test_scales_of_elements_must_be_aligned_too() -> None:
    choice = _prepared(Groups("rows", "float16", (256, 1024)).problem)
    assert [multiple for _, multiple in choice.alignments] == [16, 16, 32, 32]


ROWS, IMAGES = Groups("rows", "float32", (4, 256)).problem, Groups("planes", "float32", (2, 8, 8, 8), 2).problem
GAPS = TensorDescriptor(ROWS.x.dtype, (4, 256), (264, 1))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Groups("rows", "float64", (4, 256)).problem, "float64"),
        (Groups("rows", "float32", (0, 256)).problem, "empty"),
        (replace(ROWS, x=GAPS), "x \\(.*\\) is not in one piece"),
        (replace(ROWS, y=GAPS), "y \\(.*\\) is not in one piece"),
        (Groups("rows", "float32", (4, 257)).problem, "runs of 257 elements are no whole vectors of 4"),
        (Groups("planes", "float16", (2, 8, 7, 7), 2).problem, "runs of 49 elements are no whole vectors of 4"),
        (Groups("planes", "float32", (2, 256), 1).problem, "runs of 1 elements"),
        (Groups("rows", "float32", (4, 64)).problem, "groups of 64 elements are not 32 to 4096 vectors"),
        (Groups("planes", "float32", (64, 64, 112, 112), 32).problem, "are not 32 to 4096 vectors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_says_why(problem: Problem, reason: str) -> None:
    answer = BlockPerGroup().offer(problem, H200)
    assert isinstance(answer, str)
    assert re.search(reason, answer)
