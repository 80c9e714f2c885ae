"""Convolutions of pixels that are normalised first, some images at a time."""

from __future__ import annotations

import pytest

from dnncore import Handle
from dnncore.cuda import algorithms
from dnncore.cuda.convolution.images import ConvertedFirst
from dnncore.problems import ImageConvolutionProblem
from tests.cases.image import CONVOLUTIONS
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import check

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("most_bytes", [1, 400], ids=["image by image", "parts of one and of two"])
def test_parts_come_one_after_the_other_through_the_same_workspace(
    most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = (one.case for one in CONVOLUTIONS if one.x[0] == 3)
    assert isinstance(case.problem, ImageConvolutionProblem)
    assert case.problem.images.nbytes == 3 * 180
    with Handle(CUDA_DEVICES[0]) as own:
        algorithm = ConvertedFirst(most_bytes / own.device.figures.l2_bytes)
        monkeypatch.setitem(algorithms._ALGORITHMS, ImageConvolutionProblem, (algorithm,))
        parts = own.plan(case.problem).describe().count("image_normalization")
        assert parts == {1: 3, 400: 2}[most_bytes]
        check(own, case, "converted_first")
