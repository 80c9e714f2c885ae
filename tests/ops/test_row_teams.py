"""Rows in the registers of teams, layer and RMS normalisation and softmax: every kernel, teams of each size, what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from dnncore import Handle, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.calls import KernelCall, WhereAligned
from dnncore.cuda.normalization.rows import Rows
from dnncore.cuda.softmax_rows import SoftmaxRows
from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.figures import H200
from dnncore.problems import LayerNormForwardProblem, SoftmaxForwardProblem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check


@dataclass(frozen=True)
class Normalized:
    """Rows [rows, elements] with parameters or without."""

    dtype: str
    shape: tuple[int, int]
    narrow: bool = False
    scale: bool = True
    bias: bool = True
    centred: bool = True

    @property
    def problem(self) -> LayerNormForwardProblem:
        x = TensorDescriptor.packed(self.shape, self.dtype)
        p = TensorDescriptor.packed((1, self.shape[1]), x.dtype if self.narrow else x.dtype.compute)
        s = TensorDescriptor.packed((self.shape[0], 1), x.dtype.compute)
        scale, bias = p if self.scale else None, p if self.bias else None
        return LayerNormForwardProblem(x, x, s, 1, 1e-3, s if self.centred else None, scale, bias)

    @property
    def entry(self) -> str:
        return f"normalization_rows_{self.dtype}".replace("float32", "float")


NORMALIZED = (
    Normalized("float32", (9, 260)),
    Normalized("float32", (7, 1028), bias=False, centred=False),
    Normalized("float32", (3, 4096), scale=False),
    Normalized("float16", (6, 1000), narrow=True),
    Normalized("float16", (5, 1544), bias=False, centred=False),
    Normalized("float16", (3, 2056), narrow=True, bias=False),
    Normalized("bfloat16", (5, 1024)),
    Normalized("bfloat16", (3, 1032), narrow=True, bias=False, centred=False),
    Normalized("bfloat16", (2, 3080), scale=False, bias=False),
)


def softmax(
    dtype: str, shape: tuple[int, ...], algorithm: SoftmaxAlgorithm, mode: SoftmaxMode = SoftmaxMode.CHANNEL
) -> SoftmaxForwardProblem:
    x = TensorDescriptor.packed(shape, dtype)
    return SoftmaxForwardProblem(x, x, algorithm, mode)


SOFTMAX = tuple(
    softmax(dtype, (rows, length), algorithm)
    for dtype in ("float16", "bfloat16", "float32")
    for algorithm, rows, length in (
        (SoftmaxAlgorithm.ACCURATE, 7, 1000),
        (SoftmaxAlgorithm.FAST, 5, 2000),
        (SoftmaxAlgorithm.LOG, 6, 520),
        (SoftmaxAlgorithm.LOG, 3, 2056),
    )
)

KERNELS = {one.entry for one in NORMALIZED} | {
    f"softmax_rows_{dtype}{suffix}" for dtype in ("float16", "bfloat16", "float") for suffix in ("", "_log")
}
"""What the cases here run."""


@pytest.fixture(scope="module")
def handle() -> Handle:
    return Handle(CUDA_DEVICES[0])


@pytest.mark.cuda
@pytest.mark.parametrize("one", NORMALIZED, ids=lambda one: f"{one.dtype}-{'x'.join(map(str, one.shape))}")
def test_a_team_normalises_a_row(handle: Handle, one: Normalized) -> None:
    assert _call(Rows().offer(one.problem, H200)).unit.entry == one.entry
    for guard in (GUARD, GUARD + 1):  # aligned, and by the general kernels
        check(handle, Case("normalized-rows", one.problem, 0.5, 2.0), "rows", guard)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "problem", SOFTMAX, ids=lambda one: f"{one.x.dtype.value}-{one.algorithm.value}-{one.x.shape[1]}"
)
def test_a_team_takes_the_softmax_of_a_row(handle: Handle, problem: SoftmaxForwardProblem) -> None:
    suffix = "_log" if problem.algorithm is SoftmaxAlgorithm.LOG else ""
    assert _call(SoftmaxRows().offer(problem, H200)).unit.entry.endswith(f"{suffix}")
    for guard in (GUARD, GUARD + 1):
        check(handle, Case("softmax-rows", problem, 0.5, 2.0), "rows", guard)


def _call(offer: Offer | str) -> KernelCall:
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    (call,) = choice.aligned
    assert isinstance(call, KernelCall)
    return call


@pytest.mark.parametrize(("length", "blocks"), [(512, 16), (1024, 16), (1032, 32), (2048, 32), (2056, 64), (4096, 64)])
def test_a_team_is_as_small_as_its_row_allows(length: int, blocks: int) -> None:
    call = _call(Rows().offer(Normalized("float16", (64, length)).problem, H200))
    assert (call.grid, call.block) == ((blocks, 1, 1), (128, 1, 1))


def test_scales_of_elements_must_be_aligned_too() -> None:
    offer = Rows().offer(Normalized("float16", (256, 1024)).problem, H200)
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    assert sorted(multiple for _, multiple in choice.alignments) == [16, 16, 32, 32]


PACKED = Normalized("float32", (4, 1024)).problem
GAPS = TensorDescriptor(PACKED.x.dtype, (4, 1024), (1028, 1))
ACCURATE = softmax("float16", (4, 1024), SoftmaxAlgorithm.ACCURATE)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (replace(PACKED, x=GAPS), "x .* is not in one piece, row by row"),
        (Normalized("float64", (4, 1024)).problem, "x is of float64"),
        (Normalized("float16", (4, 1004)).problem, "rows of 1004 elements are no whole packs of 8"),
        (Normalized("float16", (4, 504)).problem, "rows of 504 elements are not 512 to 4096 long"),
        (Normalized("float32", (4, 4100)).problem, "rows of 4100 elements are not 256 to 4096 long"),
        (Normalized("float32", (0, 1024)).problem, "there are 0 rows"),
        (replace(ACCURATE, x=TensorDescriptor(ACCURATE.x.dtype, (4, 1024), (1032, 1))), "x .* is not in one piece"),
        (softmax("float16", (4, 1024, 2), SoftmaxAlgorithm.ACCURATE), "elements of a row are no neighbours"),
        (softmax("float16", (4, 96), SoftmaxAlgorithm.ACCURATE), "rows of 96 elements are not 512 to 4096 long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_says_why(problem: LayerNormForwardProblem | SoftmaxForwardProblem, reason: str) -> None:
    algorithm = Rows() if isinstance(problem, LayerNormForwardProblem) else SoftmaxRows()
    answer = algorithm.offer(problem, H200)  # type: ignore[arg-type]
    assert isinstance(answer, str)
    assert re.search(reason, answer)


def test_an_image_is_a_row_in_the_other_mode() -> None:
    call = _call(
        SoftmaxRows().offer(softmax("float16", (4, 8, 8, 16), SoftmaxAlgorithm.FAST, SoftmaxMode.INSTANCE), H200)
    )
    assert call.grid == (1, 1, 1)
