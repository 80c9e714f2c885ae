"""Bottlenecks: tiles that end within an image, whatever is added, and what only layers compute."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.descriptors import ActivationDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import BottleneckProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16 = DType.FLOAT16, DType.BFLOAT16


@dataclass(frozen=True)
class Block:
    """x [N, C, H, W], E channels within and K of y; `added` is "x", "z", "shortcut" or nothing."""

    name: str
    x: tuple[int, int, int, int]
    inner: int = 64
    outputs: int = 256
    dtype: DType = F16
    stride: int = 1
    added: str = ""
    biased: bool = True
    activation: str | None = "relu"
    layout: str = "NHWC"
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def case(self) -> Case:
        batch, channels, height, width = self.x
        inner, outputs = self.inner, self.outputs
        shape = (batch, outputs, *((extent - 1) // self.stride + 1 for extent in (height, width)))

        def bias(count: int) -> TensorDescriptor | None:
            return TensorDescriptor.packed((1, count, 1, 1)) if self.biased else None

        problem = BottleneckProblem(
            describe(self.x, self.dtype, self.layout),
            describe((inner, channels, 1, 1), self.dtype, "NHWC"),
            describe((inner, inner, 3, 3), self.dtype, "NHWC"),
            describe((outputs, inner, 1, 1), self.dtype, "NHWC"),
            describe(shape, self.dtype, self.layout),
            bias(inner),
            bias(inner),
            bias(outputs),
            describe((outputs, channels, 1, 1), self.dtype, "NHWC") if self.added == "shortcut" else None,
            bias(outputs) if self.added == "shortcut" else None,
            describe(shape, self.dtype, self.layout) if self.added == "z" else None,
            None if self.activation is None else ActivationDescriptor.make(self.activation),
            self.stride,
            self.added == "x",
        )
        return Case(f"bottleneck-{self.name}", problem, self.alpha, self.beta)


BLOCKS = (
    Block("x-added", (2, 256, 11, 19), added="x"),
    Block("z-added-bf16", (2, 64, 9, 10), dtype=BF16, added="z"),
    Block("blended-bf16", (1, 128, 8, 9), dtype=BF16, alpha=-0.5, beta=2.0),
    Block("linear", (3, 64, 3, 2), added="z", biased=False, activation=None),
    Block("shortcut", (2, 64, 10, 9), added="shortcut"),
    Block("shortcut-bf16", (1, 64, 7, 17), dtype=BF16, added="shortcut", alpha=0.5, beta=-1.0),
    Block("wide-shortcut", (1, 128, 3, 4), added="shortcut", biased=False),
    Block("halved", (1, 64, 5, 4), stride=2, added="shortcut"),
    Block("few-channels-bf16", (2, 24, 4, 5), 8, 24, BF16, added="x", activation="clipped_relu"),
    Block("planar", (1, 16, 5, 6), 8, 16, added="x", layout="NCHW"),
)

CASES = tuple(one.case for one in BLOCKS)
