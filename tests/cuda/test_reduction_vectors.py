"""Reductions by vectors: what they refuse, how they are shared out, and what happens at addresses that no vector may begin at."""

from __future__ import annotations

import math

import pytest

from dnncore import TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.calls import KernelCall, Place, WhereAligned
from dnncore.cuda.reduced import Geometry
from dnncore.cuda.reduction_vectors import Columns, Lines
from dnncore.descriptors import ReduceOperator
from dnncore.dtypes import DType
from dnncore.figures import A100, H200
from dnncore.problems import ReduceProblem

IMAGES = (4, 16, 6, 8)


def problem(
    large: tuple[int, ...], small: tuple[int, ...], layout: str = "NCHW", *, indices: bool = False
) -> ReduceProblem:
    x, y = (TensorDescriptor.packed(shape, "float32", layout) for shape in (large, small))
    return ReduceProblem(x, y, ReduceOperator.MAX, y.with_dtype(DType.INT32) if indices else None)


@pytest.mark.parametrize("indices", [False, True], ids=["values", "indices"])
def test_indices_are_found_only_where_memory_has_their_order(indices: bool) -> None:
    of_pixels = problem(IMAGES, (4, 1, 1, 1), "NHWC", indices=indices)  # in memory by rows, columns and channels
    offer = Lines().offer(of_pixels, H200)
    if indices:
        assert isinstance(offer, str)
        assert "another order" in offer
    else:
        assert isinstance(offer, Offer)
    assert isinstance(Lines().offer(problem(IMAGES, (4, 1, 1, 1), indices=indices), H200), Offer)


def test_what_is_no_whole_vectors_is_refused() -> None:
    assert "not whole vectors" in str(Lines().offer(problem((4, 35), (4, 1)), H200))
    assert "not whole vectors" in str(Columns().offer(problem((35, 6), (1, 6)), H200))
    assert "apart" in str(Lines().offer(problem((35, 8), (1, 8)), H200))
    assert "apart" in str(Columns().offer(problem((8, 35), (8, 1)), H200))
    assert "nothing" in str(Lines().offer(problem((0, 8), (0, 1)), H200))


@pytest.mark.parametrize("algorithm", [Lines(), Columns()], ids=["lines", "columns"])
def test_only_addresses_of_vectors_are_read_by_vectors(algorithm: Lines | Columns) -> None:
    large, small = ((64, 48), (64, 1)) if isinstance(algorithm, Lines) else ((64, 48), (1, 48))
    offer = algorithm.offer(problem(large, small), H200)
    assert isinstance(offer, Offer)
    (call,) = offer.prepare()
    assert isinstance(call, WhereAligned)
    assert call.alignments == ((Place(0), 16),)
    names = [
        [each.unit.entry for each in way if isinstance(each, KernelCall)] for way in (call.aligned, call.otherwise)
    ]
    assert names == [[f"reduce_{algorithm.name}_extrema_float_16_bytes"], ["reduce_block_float"]]


@pytest.mark.parametrize(
    ("large", "small"),
    [((1 << 24,), (1,)), ((1 << 18, 64), (1, 64)), ((300, 1 << 16), (300, 1)), ((64, 64, 14, 14), (1, 64, 1, 1))],
    ids=str,
)
def test_parts_cover_the_elements_and_are_no_more_than_the_device_runs_at_a_time(
    large: tuple[int, ...], small: tuple[int, ...]
) -> None:
    asked = problem(large, small)
    for figures in (H200, A100):
        for algorithm in (Lines(), Columns()):
            offer = algorithm.offer(asked, figures)
            if isinstance(offer, str):
                continue
            outputs, length = math.prod(small), math.prod(large) // math.prod(small)
            splits = max(offer.workspace_bytes // (16 * outputs), 1)
            cut = algorithm._cut(asked, Geometry.of(asked.x, asked.y), figures)
            assert not isinstance(cut, str)
            assert cut.splits == splits
            assert (cut.splits - 1) * cut.part < length <= cut.splits * cut.part
            assert cut.splits == 1 or algorithm._blocks(cut) <= 8 * figures.multiprocessors
