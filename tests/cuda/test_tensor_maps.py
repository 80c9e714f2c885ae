"""Tensor maps of one tensor at one address after another."""

from __future__ import annotations

import pytest

from dnncore import Handle
from dnncore.cuda.runtime.context import retained
from dnncore.cuda.runtime.driver_tensor_map import encode_tensor_map, tensor_map_encoder
from dnncore.cuda.tensor_map import BoxMap, PixelMap, TensorMap
from dnncore.dtypes import DType
from tests.conftest import CUDA_DEVICES

pytestmark = pytest.mark.cuda

TENSORS: dict[str, TensorMap] = {
    "box": BoxMap(DType.FLOAT16, (256, 512), (512,), (64, 128)),
    "pixels": PixelMap(DType.FLOAT32, (32, 14, 14, 4), (128, 1792, 25088), (-1, -1), (-1, -1), (1, 1), 32, 64),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_map_that_is_moved_is_one_that_is_encoded_there(name: str) -> None:
    tensor = TENSORS[name]
    with Handle(CUDA_DEVICES[0]) as handle, handle.tensor((1 << 20,), "int8") as memory, retained(0):
        encode = tensor_map_encoder(tensor)
        for address in (memory.pointer, memory.pointer + 512, memory.pointer + 4096, memory.pointer):
            assert encode(address) == encode_tensor_map(tensor, address)
