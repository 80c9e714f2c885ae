"""Pixels of 8 bits as what a net computes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import Operator, Spec
from dnncore.tensor import Tensor

__all__ = ["ImageNormalization"]


@dataclass(frozen=True)
class ImageNormalization(Operator):
    """y [N, C, H, W] from pixels x, uint8 [N, H, W, C]: table[c, pixel] - mean[c, h, w]; it has no gradient.

    `table` is float32 [C, 256], what each value of a pixel becomes, and `mean` float32 [C, H, W] or left out:
    `dnncore.preprocessing.Normalization.operands` gives both.

    Args:
        order: For each channel of y that of x; empty for the same order.
        dtype: Of y: "float32", "float16" or "bfloat16".
    """

    kind: ClassVar[str] = "image_normalization"
    input_names: ClassVar[tuple[str, ...]] = ("x", "table", "mean")
    optional: ClassVar[int] = 1
    batched: ClassVar[frozenset[int]] = frozenset({0})

    order: tuple[int, ...] = ()
    dtype: str = "float32"

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, table, mean = (*inputs, None)[:3]
        assert x is not None
        assert table is not None
        if x.dtype is not DType.UINT8 or len(x.shape) != 4:
            raise BadParamError(f"{self.kind} reads uint8 [N, H, W, C], x is {x}")
        batch, height, width, channels = x.shape
        if table != Spec(DType.FLOAT32, (channels, 256)):
            raise BadParamError(
                f"{self.kind} of {channels} channels needs a table float32[{channels}, 256], not {table}"
            )
        if mean is not None and mean != Spec(DType.FLOAT32, (channels, height, width)):
            raise BadParamError(f"{self.kind} needs a mean float32[{channels}, {height}, {width}], not {mean}")
        return (Spec(DType.of(self.dtype), (batch, channels, height, width)),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, table, mean = (*inputs, None)[:3]
        assert x is not None
        assert table is not None
        pixels = x.view(x.descriptor.transposed(0, 3, 1, 2))
        ops.image_normalization(handle, 1.0, pixels, table, 0.0, outputs[0], mean=mean, order=self.order or None)
