"""Element types: ours and PyTorch's."""

from __future__ import annotations

import torch

from dnncore.dtypes import DType

__all__ = ["DTYPES", "TORCH_DTYPES"]

DTYPES = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.int32: DType.INT32,
    torch.bool: DType.BOOL,
}
"""Ours, by PyTorch's."""

TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}
"""PyTorch's, by ours."""
