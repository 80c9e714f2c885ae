"""Inverted residuals: tiles that end within an image, channels that do not fill a chunk, and what is left out."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.descriptors import ActivationDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import InvertedResidualProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16 = DType.FLOAT16, DType.BFLOAT16


@dataclass(frozen=True)
class Block:
    """x [N, C, H, W], E expanded and K output channels; no `expanded` where x is filtered as it is."""

    name: str
    x: tuple[int, int, int, int]
    expanded: int | None
    outputs: int
    dtype: DType = F16
    stride: int = 1
    residual: bool = False
    biased: bool = True
    activation: str | None = "clipped_relu"
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def case(self) -> Case:
        batch, channels, height, width = self.x
        wide = self.expanded or channels
        rows, columns = ((extent - 1) // self.stride + 1 for extent in (height, width))

        def bias(count: int) -> TensorDescriptor | None:
            return TensorDescriptor.packed((1, count, 1, 1)) if self.biased else None

        problem = InvertedResidualProblem(
            describe(self.x, self.dtype, "NHWC"),
            describe((wide, 1, 3, 3), self.dtype, "NHWC"),
            describe((self.outputs, wide, 1, 1), self.dtype, "NHWC"),
            describe((batch, self.outputs, rows, columns), self.dtype, "NHWC"),
            describe((wide, channels, 1, 1), self.dtype, "NHWC") if self.expanded else None,
            bias(wide) if self.expanded else None,
            bias(wide),
            bias(self.outputs),
            None if self.activation is None else ActivationDescriptor.make(self.activation),
            self.stride,
            self.residual,
        )
        return Case(f"inverted-residual-{self.name}", problem, self.alpha, self.beta)


BLOCKS = (
    Block("residual", (2, 24, 6, 7), 40, 24, residual=True),
    Block("halved-bf16", (1, 16, 9, 8), 72, 40, BF16, 2),
    Block("not-expanded", (1, 40, 5, 4), None, 16),
    Block("many-outputs", (1, 8, 3, 4), 16, 104, BF16, activation="relu", alpha=-0.5, beta=2.0),
    Block("most-outputs", (1, 8, 2, 3), 8, 168, biased=False, activation=None),
    Block("tiles-that-end-within", (1, 8, 13, 14), 32, 8, BF16, residual=True),
    Block("wide", (1, 8, 4, 5), 40, 40, residual=False),
    Block("many-outputs-fp16", (1, 8, 5, 3), 8, 104, stride=2),
    Block("most-outputs-bf16", (1, 8, 2, 2), 8, 168, BF16),
)

CASES = tuple(one.case for one in BLOCKS)
