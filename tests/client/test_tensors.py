from __future__ import annotations

import numpy as np
import pytest
from dnnclient.errors import InvalidArgumentError, ServerError
from dnnclient.tensors import datatype_of, from_raw, to_raw
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

_SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
_KINDS = ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
_DTYPES = [np.dtype(order + kind) for kind in _KINDS for order in "<>"]
_NUMBERS = st.sampled_from(_DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, _SHAPES))
_STRINGS = hnp.arrays(np.dtype(object), _SHAPES, elements=st.binary(max_size=9))


@given(_NUMBERS | _STRINGS)
def test_an_array_comes_back_as_it_was(array: np.ndarray) -> None:
    back = from_raw(datatype_of(array), array.shape, to_raw(array))
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, array)


def test_raw_bytes_are_those_of_the_protocol() -> None:
    assert to_raw(np.array([[1, 2], [3, 4]], np.int16).T) == bytes([1, 0, 3, 0, 2, 0, 4, 0])
    assert to_raw(np.array([b"ab", b""], object)) == b"\x02\x00\x00\x00ab\x00\x00\x00\x00"
    assert datatype_of(np.zeros(1, np.float16)) == "FP16"


@pytest.mark.parametrize("array", [np.zeros(1, np.complex64), np.array(["text"]), np.array(["text"], object)])
def test_what_the_protocol_cannot_carry_is_refused(array: np.ndarray) -> None:
    with pytest.raises(InvalidArgumentError):
        to_raw(array)


@pytest.mark.parametrize(
    ("datatype", "shape", "raw"),
    [
        ("FP32", [2], b"\0" * 4),
        ("FP32", [1], b"\0" * 5),
        ("FP32", [-1], b"\0" * 4),
        ("FP7", [1], b"\0" * 4),
        ("BYTES", [1], b"\x02\x00\x00\x00a"),
        ("BYTES", [1], b"\x02\x00"),
        ("BYTES", [2], b"\x01\x00\x00\x00a"),
    ],
)
def test_bytes_that_are_not_the_tensor_announced_are_the_servers_error(
    datatype: str, shape: list[int], raw: bytes
) -> None:
    with pytest.raises(ServerError, match="came back"):
        from_raw(datatype, shape, raw)
