"""Which tensors a convolution and im2col take, and how they refuse others."""

from __future__ import annotations

import pytest

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.problems import Col2ImProblem, ConvolutionProblem, Direction, Im2ColProblem

CONV = ConvolutionDescriptor.make(padding=1)


def _convolution(direction: Direction, x: str, w: str, y: str) -> ConvolutionProblem:
    return ConvolutionProblem(
        direction,
        TensorDescriptor.packed((1, 2, 4, 5), x),
        TensorDescriptor.packed((3, 2, 3, 3), w),
        TensorDescriptor.packed((1, 3, 4, 5), y),
        CONV,
    )


@pytest.mark.parametrize("y", ["int8", "int32", "float32"])
def test_forward_takes_int8_and_gives_int8_int32_or_float32(y: str) -> None:
    assert _convolution(Direction.FORWARD, "int8", "int8", y).y.dtype.value == y


@pytest.mark.parametrize(
    ("direction", "dtypes", "message"),
    [
        (Direction.FORWARD, ("float16", "float32", "float16"), "x is float16 but w is float32"),
        (Direction.FORWARD, ("float32", "float32", "int8"), "x is float32 but y is int8"),
        (Direction.FORWARD, ("int8", "float32", "float32"), "x is int8 and w float32"),
        (Direction.FORWARD, ("int32", "int32", "int32"), "x is int32 and w int32"),
        (Direction.FORWARD, ("int8", "int8", "float16"), "y is float16 but x and w are int8"),
        (Direction.BACKWARD_DATA, ("int8", "int8", "int8"), "x is int8; backward_data needs a floating-point dtype"),
    ],
    ids=str,
)
def test_other_mixtures_of_dtypes_are_refused_by_name(
    direction: Direction, dtypes: tuple[str, str, str], message: str
) -> None:
    with pytest.raises(BadParamError, match=message):
        _convolution(direction, *dtypes)


def test_columns_must_have_a_row_a_tap_and_a_column_a_place() -> None:
    x = TensorDescriptor.packed((2, 3, 4, 5))
    good = TensorDescriptor.packed((2, 27, 20))
    assert Im2ColProblem(x, good, CONV, (3, 3)).output_shape == (4, 5)
    assert Col2ImProblem(good, x, CONV, (3, 3)).output_shape == (4, 5)
    bad = TensorDescriptor.packed((2, 27, 21))
    with pytest.raises(BadParamError, match=r"columns has shape \(2, 27, 21\) .* give \(2, 27, 20\)"):
        Im2ColProblem(x, bad, CONV, (3, 3))
    with pytest.raises(BadParamError, match=r"filter_shape is \(3,\)"):
        Col2ImProblem(good, x, CONV, (3,))


def test_int8_can_be_gathered_but_not_added_up() -> None:
    x, columns = TensorDescriptor.packed((2, 3, 4, 5), "int8"), TensorDescriptor.packed((2, 27, 20), "int8")
    assert Im2ColProblem(x, columns, CONV, (3, 3)).columns == columns
    with pytest.raises(BadParamError, match="floating-point"):
        Col2ImProblem(columns, x, CONV, (3, 3))
    with pytest.raises(BadParamError, match="x is int8 but columns is float32"):
        Im2ColProblem(x, TensorDescriptor.packed((2, 27, 20)), CONV, (3, 3))
