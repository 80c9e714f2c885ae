"""Batch normalisation of planes with given statistics: what is chosen, what addresses must be multiples of, what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dnncore import BatchNormMode, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.calls import WhereAligned
from dnncore.cuda.normalization.given_planes import GivenPlanes
from dnncore.descriptors import Layout
from dnncore.figures import H200
from dnncore.problems import BatchNormInferenceProblem


def problem_of(
    shape: tuple[int, ...], dtype: str, layout: Layout = Layout.NCHW, mode: BatchNormMode = BatchNormMode.SPATIAL
) -> BatchNormInferenceProblem:
    x = TensorDescriptor.packed(shape, dtype, layout)
    of_channels = (1, shape[1], *(1 if mode is BatchNormMode.SPATIAL else extent for extent in shape[2:]))
    p = TensorDescriptor.packed(of_channels, x.dtype.compute)
    return BatchNormInferenceProblem(x, p, p, p, p, x, mode, 1e-5)


@pytest.mark.parametrize(
    ("extent", "dtype", "multiple"), [(14, "float16", 8), (16, "float16", 16), (14, "float32", 16)]
)
def test_vectors_are_as_long_as_planes_are_whole(extent: int, dtype: str, multiple: int) -> None:
    offer = GivenPlanes().offer(problem_of((64, 64, extent, extent), dtype), H200)
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    assert {found for _, found in choice.alignments} == {multiple}


IMAGES = problem_of((2, 4, 6, 6), "float32")


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (problem_of((2, 4, 6, 6), "float64"), "float64"),
        (problem_of((2, 4, 6, 6), "float32", mode=BatchNormMode.PER_ACTIVATION), "each element of a plane"),
        (problem_of((0, 4, 6, 6), "float32"), "empty"),
        (problem_of((2, 4, 6, 6), "float32", Layout.NHWC), "x .* is not in one piece"),
        (replace(IMAGES, y=problem_of((2, 4, 6, 6), "float32", Layout.NHWC).x), "y .* is not in one piece"),
        (problem_of((2, 4, 7, 7), "float16"), "planes of 49 elements"),
        (problem_of((2, 4, 3, 6), "float32"), "planes of 18 elements"),
        (problem_of((2**16, 2**11, 4, 4), "float16"), "more than 32 bits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_says_why(problem: BatchNormInferenceProblem, reason: str) -> None:
    answer = GivenPlanes().offer(problem, H200)
    assert isinstance(answer, str)
    assert re.search(reason, answer)
