"""Arrays as other dtypes, in NumPy, as ONNX's Cast has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from dnncore.errors import BadParamError
from dnncore.importers.onnx.folding.fold import Fold, Folding
from dnncore.importers.onnx.tensors import dtype_of

__all__ = ["FOLDS"]

_SATURATED: dict[np.dtype, float] = {
    np.dtype(ml_dtypes.float8_e4m3fn): 448.0,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 240.0,
    np.dtype(ml_dtypes.float8_e5m2): 57344.0,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 57344.0,
}
"""Types whose largest number, this one, stands for all that are larger, unless the node says otherwise."""

_POWER_OF_TWO = np.dtype(ml_dtypes.float8_e8m0fnu)
_BIAS, _LARGEST, _NAN = 127, 254, 255
"""Of `_POWER_OF_TWO`: what is added to an exponent, and the largest sum. All bits set stand for NaN."""

_ROUNDED_UP = {"up": 0.5, "nearest": 0.75 - 2**-53, "down": 1.0}
"""Above which significand, from 1/2 to 1, a number goes to the next power of two: any, the middle and more, none."""


def _as_dtype(node: Folding, dtype: np.dtype) -> Sequence[np.ndarray]:
    x = node[0]
    saturate = bool(node.attributes.integer("saturate", 1))
    rounding = node.attributes.text("round_mode", "up")
    node.claim(x.shape, dtype.itemsize)
    if dtype == _POWER_OF_TWO:
        node.claim(x.shape, 4 * 8)
        return (_powers_of_two(x, saturate, rounding),)
    if saturate and dtype in _SATURATED:
        node.claim(x.shape)
        limit = _SATURATED[dtype]
        return (np.clip(x.astype(np.float64), -limit, limit).astype(dtype),)
    return (x.astype(dtype),)


def _powers_of_two(x: np.ndarray, saturate: bool, rounding: str) -> np.ndarray:
    """Exponents alone, as microscaling formats have them for a block of elements."""
    if rounding not in _ROUNDED_UP:
        raise BadParamError(f"round_mode {rounding!r} must be one of {', '.join(_ROUNDED_UP)}")
    significand, exponent = np.frexp(np.abs(x.astype(np.float64)))
    biased = exponent - 1 + _BIAS + (significand > _ROUNDED_UP[rounding])
    biased = np.where(significand == 0, -1, np.where(np.isinf(significand), _NAN, biased))
    outside = (biased < 0) | (biased > _LARGEST)
    bits = np.clip(biased, 0, _LARGEST) if saturate else np.where(outside, _NAN, biased)
    return np.where(np.isnan(significand), _NAN, bits).astype(np.uint8).view(_POWER_OF_TWO)


def _cast(node: Folding) -> Sequence[np.ndarray]:
    return _as_dtype(node, dtype_of(node.attributes.integer("to", 0)))


def _cast_like(node: Folding) -> Sequence[np.ndarray]:
    return _as_dtype(node, node[1].dtype)


FOLDS: Mapping[str, Fold] = {"Cast": _cast, "CastLike": _cast_like}
