"""Tensor maps as the driver encodes them: 128 bytes that a copy of the tensor memory accelerator takes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from dnncore.cuda.runtime.driver import bindings, call
from dnncore.cuda.tensor_map import TENSOR_MAP_BYTES, BoxMap, TensorMap
from dnncore.dtypes import DType

__all__ = ["encode_tensor_map", "tensor_map_encoder"]

_MAP_TYPES = {
    DType.FLOAT16: "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    DType.BFLOAT16: "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
    DType.INT8: "CU_TENSOR_MAP_DATA_TYPE_UINT8",  # copies do not know signs
    DType.FLOAT32: "CU_TENSOR_MAP_DATA_TYPE_FLOAT32",
}
_ROUNDING_MAP_TYPE = "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32"
_MAP_SWIZZLES = {
    0: "CU_TENSOR_MAP_SWIZZLE_NONE",
    64: "CU_TENSOR_MAP_SWIZZLE_64B",
    128: "CU_TENSOR_MAP_SWIZZLE_128B",
}
"""By the bytes of a window's rows, whose chunks are exchanged."""


def encode_tensor_map(tensor: TensorMap, address: int) -> bytes:
    """The CUtensorMap of a tensor at an address, swizzled as it says and with zeros around it."""
    return _bytes(_encoded(tensor, address))


def tensor_map_encoder(tensor: TensorMap) -> Callable[[int], bytes]:
    """`encode_tensor_map` of one tensor, at one address after another: from the second on only that is replaced, in a tenth of the
    time. Owned by one thread.
    """
    made: Any = None

    def encode(address: int) -> bytes:
        nonlocal made
        if made is None:
            made = _encoded(tensor, address)
        else:
            call("cuTensorMapReplaceAddress", made, address)
        return _bytes(made)

    return encode


def _bytes(made: Any) -> bytes:
    return ctypes.string_at(int(made.getPtr()), TENSOR_MAP_BYTES)


def _encoded(tensor: TensorMap, address: int) -> Any:
    names = bindings()
    kind = getattr(names.CUtensorMapDataType, _ROUNDING_MAP_TYPE if tensor.rounds else _MAP_TYPES[tensor.dtype])
    sizes, strides = (list(map(names.cuuint64_t, numbers)) for numbers in (tensor.sizes, tensor.strides_bytes))
    modes = (
        names.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(names.CUtensorMapSwizzle, _MAP_SWIZZLES[tensor.swizzle_bytes]),
        names.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        names.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    common = (kind, len(sizes), address, sizes, strides)
    if isinstance(tensor, BoxMap):
        box, steps = list(map(names.cuuint32_t, tensor.box)), [names.cuuint32_t(1)] * len(sizes)
        return call("cuTensorMapEncodeTiled", *common, box, steps, *modes)
    corners = list(tensor.lower), list(tensor.upper)
    steps = list(map(names.cuuint32_t, (1, *tensor.steps, 1)))
    return call("cuTensorMapEncodeIm2col", *common, *corners, tensor.channels, tensor.pixels, steps, *modes)
