"""Which operands are copied for matrix units, and into what. No device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dnncore import ConvolutionDescriptor, DType, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.calls import Calls, KernelCall, WhereAligned
from dnncore.cuda.convolution.relaid import RelaidConvolution
from dnncore.descriptors import Layout
from dnncore.figures import A100, H200
from dnncore.problems import ConvolutionProblem, Direction

F16 = DType.FLOAT16
_LAYOUTS = pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC], ids=lambda layout: layout.value)


def _problem(
    direction: Direction, channels: int, filters: int, taps: int, layout: Layout, dtype: DType = F16
) -> ConvolutionProblem:
    conv = ConvolutionDescriptor.make(padding=taps // 2)
    shapes = (8, channels, 28, 28), (filters, channels, taps, taps), (8, filters, 28, 28)
    x, w, y = (TensorDescriptor.packed(shape, dtype, layout) for shape in shapes)
    return ConvolutionProblem(direction, x, w, y, conv)


def _relaid(problem: ConvolutionProblem) -> RelaidConvolution:
    return next(each for each in algorithms_for(problem) if isinstance(each, RelaidConvolution))


def _kernels(problem: ConvolutionProblem) -> list[str]:
    """What they do: "copy", or the names of others."""
    offer = _relaid(problem).offer(problem, H200)
    assert isinstance(offer, Offer), offer

    def names(calls: Calls) -> Iterator[str]:
        for call in calls:
            if isinstance(call, WhereAligned):
                yield from names(call.aligned)
                continue
            assert isinstance(call, KernelCall)
            entry = call.unit.entry
            yield "copy" if "copy" in entry or "transpose" in entry else entry.split("_float16")[0]

    return list(names(offer.prepare()))


@_LAYOUTS
@pytest.mark.parametrize("channels", [9, 133])
@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
def test_pixels_that_the_copy_engine_does_not_take_are_copied_for_it(
    direction: Direction, channels: int, layout: Layout
) -> None:
    kernels = _kernels(_problem(direction, channels, 64, 5, layout))
    products = [name for name in kernels if name != "copy" and not name.endswith("_parts")]
    assert len(products) == 1
    assert products[0].startswith("convolution_wgmma")
    assert kernels[0] == "copy"


@pytest.mark.parametrize(
    ("direction", "channels", "filters", "expected"),
    [
        (Direction.FORWARD, 64, 133, ["convolution_wgmma", "copy"]),
        (Direction.FORWARD, 133, 64, ["copy", "copy", "convolution_wgmma"]),
        (Direction.BACKWARD_DATA, 133, 64, ["copy", "convolution_wgmma_backward_data", "copy"]),
        (Direction.BACKWARD_DATA, 64, 133, ["copy", "convolution_wgmma_backward_data"]),
        (
            Direction.BACKWARD_FILTER,
            133,
            64,
            ["copy", "convolution_wgmma_backward_filter", "convolution_wgmma_backward_filter_parts"],
        ),
    ],
)
def test_what_the_copy_engine_takes_stays_where_it_is(
    direction: Direction, channels: int, filters: int, expected: list[str]
) -> None:
    assert _kernels(_problem(direction, channels, filters, 3, Layout.NHWC)) == expected


def test_filters_of_images_are_read_where_they_are() -> None:
    """Threads lay out rows of three channels, which want no gaps, and load filters from anywhere."""
    assert _kernels(_problem(Direction.FORWARD, 3, 64, 7, Layout.NCHW)) == ["copy", "convolution_wgmma_rows", "copy"]


@_LAYOUTS
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value)
def test_what_matrix_units_do_not_round_is_not_copied_for_them(dtype: DType, layout: Layout) -> None:
    problem = _problem(Direction.FORWARD, 133, 64, 3, layout, dtype)
    assert "copies pay where" in str(_relaid(problem).offer(problem, H200))


def test_operands_that_need_no_copy_are_left_to_the_others() -> None:
    problem = _problem(Direction.FORWARD, 128, 64, 3, Layout.NHWC)
    assert _relaid(problem).offer(problem, H200) == "the copy engine takes every operand as it is"
    assert "over copies" in str(_relaid(problem).offer(_problem(Direction.FORWARD, 133, 64, 3, Layout.NHWC), A100))
