from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncore import ConvolutionDescriptor, DType, PoolingDescriptor, TensorDescriptor
from dnncore.errors import BadParamError

shapes = st.lists(st.integers(0, 5), min_size=2, max_size=6).map(tuple)


@given(shapes, st.sampled_from(["NCHW", "NHWC", "CHWN"]))
def test_a_packed_tensor_fills_its_extent_once(shape: tuple[int, ...], layout: str) -> None:
    descriptor = TensorDescriptor.packed(shape, "float32", layout)
    assert descriptor.is_packed
    assert descriptor.extent == descriptor.size
    places = {sum(i * s for i, s in zip(index, descriptor.strides, strict=True)) for index in np.ndindex(*shape)}
    assert len(places) == descriptor.size


def test_layouts_put_the_named_dimension_last() -> None:
    shape = (2, 3, 4, 5)
    assert TensorDescriptor.packed(shape).strides == (60, 20, 5, 1)
    assert TensorDescriptor.packed(shape, layout="NHWC").strides == (60, 1, 15, 3)
    assert TensorDescriptor.packed(shape, layout="CHWN").strides == (1, 40, 10, 2)


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [((2, 3), (3, 1), False), ((2, 3), (0, 1), True), ((2, 3), (1, 1), True), ((1, 3), (0, 1), False),
     ((2, 3), (2, 1), True), ((3, 2), (1, 3), False), ((0, 3), (0, 1), False),
     ((2, 0, 3), (0, 0, 0), False)],
)  # fmt: skip
def test_overlap_is_seen(shape: tuple[int, ...], strides: tuple[int, ...], overlaps: bool) -> None:
    assert TensorDescriptor(DType.FLOAT32, shape, strides).overlaps is overlaps


@pytest.mark.parametrize(
    ("shape", "strides", "message"),
    [((2,), (1, 1), "differ in length"), ((-1, 2), (2, 1), "negative"), ((2, 2), (2, -1), "negative"),
     ((1,) * 9, (1,) * 9, "9 dimensions"), ((2**40, 2**40), (2**40, 1), "spans more than"),
     ((0, 2), (2**70, 1), "spans more than")],
)  # fmt: skip
def test_bad_tensors_are_refused(shape: tuple[int, ...], strides: tuple[int, ...], message: str) -> None:
    with pytest.raises(BadParamError, match=message):
        TensorDescriptor(DType.FLOAT32, shape, strides)


def test_a_single_element_needs_no_dimension() -> None:
    one = TensorDescriptor.packed((), "float64")
    assert (one.shape, one.strides, one.size, one.extent, one.nbytes) == ((), (), 1, 1, 8)
    assert (one.is_packed, one.is_row_major, one.overlaps) == (True, True, False)


def test_an_unknown_dtype_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(BadParamError, match="bfloat16, float32, float64, int8"):
        TensorDescriptor.packed((2,), "complex64")


@pytest.mark.parametrize(
    ("x", "w", "settings", "message"),
    [((1, 3, 5, 5), (2, 4, 3, 3), {}, "x has 3 channels"),
     ((1, 4, 5, 5), (3, 2, 3, 3), {"groups": 2}, "do not divide"),
     ((1, 3, 2, 2), (2, 3, 3, 3), {}, "covers 3, more than the padded input's 2"),
     ((1, 3, 5), (2, 3, 3), {}, "need 4 dimensions")],
)  # fmt: skip
def test_convolutions_that_do_not_fit_name_what_disagrees(x: tuple[int, ...], w: tuple[int, ...], settings: dict[str, Any],
                                                           message: str) -> None:  # fmt: skip
    with pytest.raises(BadParamError, match=message):
        ConvolutionDescriptor.make(**settings).output_shape(x, w)


@pytest.mark.parametrize(
    "settings",
    [
        {"stride": 0},
        {"dilation": 0},
        {"groups": 0},
        {"padding": -1},
        {"padding": (1, 1, 1)},
        {"padding": ((1, 1, 1), (0, 0))},
    ],
)
def test_bad_convolution_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadParamError):
        ConvolutionDescriptor.make(**settings)


def test_a_word_that_is_no_setting_is_refused_with_those_that_are() -> None:
    with pytest.raises(BadParamError, match="'NWHC' is no Layout; use one of NCHW, NHWC, CHWN"):
        TensorDescriptor.packed((1, 2, 3), layout="NWHC")
    with pytest.raises(BadParamError, match="use one of cross_correlation, convolution"):
        ConvolutionDescriptor.make(mode="correlation")
    with pytest.raises(BadParamError, match="use one of max, average_include_padding"):
        PoolingDescriptor.make("mean", 2)


@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 4), st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_no_pooling_window_is_wholly_in_the_padding(
    extent: int, window: int, stride: int, before: int, after: int, ceil_mode: bool
) -> None:
    if max(before, after) >= window or extent + before + after < window:
        return
    pooling = PoolingDescriptor.make(
        "max", window, spatial_ndim=1, stride=stride, padding=[(before, after)], ceil_mode=ceil_mode
    )
    (count,) = pooling.output_shape((1, 1, extent))[2:]
    start = (count - 1) * stride - before
    assert start < extent
    assert count >= 1
