"""What numbers a kernel multiplies, and how its tensors lie."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore import DType, MathType
from dnncore.descriptors import Layout

__all__ = ["INT8", "PRECISIONS", "Precision"]


@dataclass(frozen=True)
class Precision:
    """Immutable.

    Args:
        name: As commands take it.
        dtype: Of the tensors.
        layout: Of images and filters.
        math: Whether float32 may be rounded to TF32.
    """

    name: str
    dtype: DType
    layout: Layout
    math: MathType = MathType.STRICT

    @property
    def suffix(self) -> str:
        """Of files."""
        return f"{self.dtype.value}-{self.layout.value}{'-tf32' if self.math is MathType.TF32 else ''}"

    @property
    def facts(self) -> dict[str, str]:
        """What a file says of all of its rows."""
        math = {"math": self.math.value} if self.math is MathType.TF32 else {}
        return {"dtype": self.dtype.value, "layout": self.layout.value, **math}


PRECISIONS = {
    one.name: one
    for one in (
        Precision("fp16", DType.FLOAT16, Layout.NHWC),
        Precision("fp32", DType.FLOAT32, Layout.NCHW),
        Precision("tf32", DType.FLOAT32, Layout.NHWC, MathType.TF32),
        Precision("bf16", DType.BFLOAT16, Layout.NHWC),
    )
}
"""In order of importance."""

INT8 = Precision("int8", DType.INT8, Layout.NHWC)
