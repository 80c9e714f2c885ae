"""Gradients of layer normalisation in one pass over the rows: teams of every size that go on to further rows, what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dnncore import Handle, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.calls import WhereAligned
from dnncore.cuda.normalization import row_gradients
from dnncore.cuda.normalization.row_gradients import RowGradients
from dnncore.figures import H200
from dnncore.problems import LayerNormBackwardProblem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check


def problem_of(
    rows: int, length: int, dtype: str, parameters: str | None = None, *, centred: bool = True
) -> LayerNormBackwardProblem:
    """With all that it may have; parameters in the compute type unless said otherwise. Without a mean there is no bias either."""
    x, s = TensorDescriptor.packed((rows, length), dtype), TensorDescriptor.packed((rows, 1), compute_of(dtype))
    p = TensorDescriptor.packed((1, length), parameters or compute_of(dtype))
    bias = p if centred else None
    return LayerNormBackwardProblem(x, x, s, x, 1, s if centred else None, p, p, bias, 0.5, -1.0, p, bias)


def compute_of(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


@pytest.fixture
def walker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    """A handle whose rows are shared by two blocks, however many there are."""
    monkeypatch.setattr(row_gradients, "_blocks", lambda _problem, _figures: 2)
    with Handle(CUDA_DEVICES[0]) as opened:
        yield opened


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("rows", "length", "dtype", "parameters"),
    [
        (27, 40, "float16", None),
        (19, 1000, "bfloat16", "bfloat16"),
        (11, 1544, "float16", "float16"),
        (7, 4096, "bfloat16", None),
        (13, 1028, "float32", None),
        (9, 2052, "float32", None),
        (11, 514, "float64", None),
    ],
)
@pytest.mark.parametrize("centred", [True, False])
def test_a_team_goes_on_to_further_rows(
    walker: Handle, rows: int, length: int, dtype: str, parameters: str | None, centred: bool
) -> None:
    problem = problem_of(rows, length, dtype, parameters, centred=centred)
    for guard in (GUARD, GUARD + 1):  # aligned, and by the general kernels
        check(walker, Case(f"rows-{rows}-{length}", problem, 0.5, 2.0), "rows", guard)


def test_an_address_that_is_not_aligned_takes_the_general_kernels() -> None:
    offer = RowGradients().offer(problem_of(256, 1024, "float16"), H200)
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    assert len(choice.aligned) == 2
    assert [multiple for _, multiple in choice.alignments] == [16, 16, 16, 32]


PACKED = problem_of(6, 64, "float16")
GAPS = TensorDescriptor(PACKED.x.dtype, (6, 64), (72, 1))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (replace(PACKED, dscale=None, dbias=None, old_dscale=None, old_dbias=None), "no gradient of a parameter"),
        (replace(PACKED, x=GAPS), "x .* is not in one piece, row by row"),
        (replace(PACKED, dx=GAPS), "dx .* is not in one piece"),
        (problem_of(6, 60, "float16"), "rows of 60 elements are no whole packs of 8"),
        (problem_of(6, 4104, "float16"), "rows of 4104 elements are more than a block of 256 threads keeps"),
        (problem_of(0, 64, "float16"), "x is empty"),
    ],
)
def test_what_it_cannot_do_is_refused(problem: LayerNormBackwardProblem, reason: str) -> None:
    found = RowGradients().offer(problem, H200)
    assert isinstance(found, str)
    assert re.search(reason, found)
