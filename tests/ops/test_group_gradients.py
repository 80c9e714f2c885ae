"""Gradients of group normalisation in one pass: planes of one warp and of several, what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from dnncore import Handle, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.calls import KernelCall, WhereAligned
from dnncore.cuda.normalization.group_gradients import GroupGradients
from dnncore.figures import H200
from dnncore.problems import GroupNormBackwardProblem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check


@dataclass(frozen=True)
class Groups:
    """Of images in so many groups; with all that a problem may have, or without gradients of parameters."""

    kernel: str
    dtype: str
    shape: tuple[int, ...]
    groups: int
    warps: int
    narrow: bool = False
    wants: str = "scale and bias"

    @property
    def problem(self) -> GroupNormBackwardProblem:
        x = TensorDescriptor.packed(self.shape, self.dtype)
        ones = (1,) * (len(self.shape) - 2)
        p = TensorDescriptor.packed((1, self.shape[1], *ones), x.dtype if self.narrow else x.dtype.compute)
        s = TensorDescriptor.packed((self.shape[0], self.groups, *ones), x.dtype.compute)
        if not self.wants:
            return GroupNormBackwardProblem(x, x, s, s, x, self.groups)
        bias = p if "bias" in self.wants else None
        return GroupNormBackwardProblem(x, x, s, s, x, self.groups, p, p, bias, 0.5, -2.0, p, bias)

    @property
    def entry(self) -> str:
        return f"normalization_group_gradients_{self.dtype}{self.kernel}".replace("float32", "float")


GROUPS = (
    Groups("", "float32", (3, 6, 6, 12), 2, 1),
    Groups("", "float32", (2, 4, 30, 34), 2, 2),
    Groups("", "float32", (2, 35, 8, 9), 5, 1, wants=""),
    Groups("", "float32", (2, 9, 20, 48), 1, 1, wants="scale"),
    Groups("", "float16", (3, 8, 12, 12), 2, 1, narrow=True),
    Groups("", "float16", (2, 3, 40, 46), 3, 2, wants="scale"),
    Groups("", "bfloat16", (2, 6, 40, 42), 2, 2, narrow=True),
    Groups("_halves", "float16", (5, 8, 14, 14), 4, 1),
    Groups("_halves", "float16", (2, 4, 14, 46), 2, 2, wants=""),
    Groups("_halves", "bfloat16", (3, 6, 14, 14), 2, 1, narrow=True),
)

KERNELS = {groups.entry for groups in GROUPS}
"""What the cases here run."""


@pytest.mark.cuda
@pytest.mark.parametrize(
    "groups", GROUPS, ids=lambda one: f"{one.dtype}{one.kernel}-{'x'.join(map(str, one.shape))}-by-{one.groups}"
)
def test_a_block_has_a_group(groups: Groups) -> None:
    (call, *columns) = _prepared(groups.problem).aligned
    assert isinstance(call, KernelCall)
    planes = groups.shape[1] // groups.groups
    assert (call.unit.entry, call.block[0]) == (groups.entry, groups.warps * planes * 32)
    assert bool(columns) == bool(groups.wants)
    with Handle(CUDA_DEVICES[0]) as handle:
        for guard in (GUARD, GUARD + 1):  # aligned, and by the general kernels
            check(handle, Case(f"group-gradients-{groups.dtype}", groups.problem, 0.5, 2.0), "group_gradients", guard)


def _prepared(problem: GroupNormBackwardProblem) -> WhereAligned:
    offer = GroupGradients().offer(problem, H200)
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    return choice


IMAGES = Groups("", "float32", (2, 8, 8, 8), 2, 1).problem
GAPS = TensorDescriptor(IMAGES.x.dtype, (2, 8, 8, 8), (520, 64, 8, 1))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Groups("", "float64", (2, 8, 8, 8), 2, 1).problem, "float64"),
        (Groups("", "float32", (0, 8, 8, 8), 2, 1).problem, "empty"),
        (replace(IMAGES, x=GAPS), "x .* is not in one piece"),
        (replace(IMAGES, dx=GAPS), "dx .* is not in one piece"),
        (Groups("", "float16", (2, 8, 7, 7), 2, 1).problem, "planes of 49 elements are no whole vectors"),
        (Groups("", "float32", (2, 8, 2, 3), 2, 1).problem, "planes of 6 elements are no whole vectors"),
        (Groups("", "float32", (2, 8, 2, 2), 2, 1).problem, "fewer than 16 vectors"),
        (Groups("", "float32", (2, 64, 112, 112), 32, 1).problem, "groups of 2 planes of 12544 elements are more"),
        (Groups("", "float32", (2, 64, 8, 8), 2, 1).problem, "groups of 32 planes of 64 elements are more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_says_why(problem: GroupNormBackwardProblem, reason: str) -> None:
    answer = GroupGradients().offer(problem, H200)
    assert isinstance(answer, str)
    assert re.search(reason, answer)
