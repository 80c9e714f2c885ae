"""Convolutions whose results are pooled: channels and filters that fill no tile, layouts, and whatever a convolution may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dnncore.descriptors import ActivationDescriptor, ActivationMode, ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import PooledConvolutionProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
RELU = ActivationDescriptor(ActivationMode.RELU)
LEAKY = ActivationDescriptor.make("leaky_relu", 0.125)
CEILING = ActivationDescriptor.make("clipped_relu", 0.5)


@dataclass(frozen=True)
class Pooled:
    """x [N, C, H, W] and w [K, C/G, R, S]; `parameters` is the bias's dtype, None for none, and `layouts` are those of x and y."""

    name: str
    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    dtype: DType = F16
    parameters: DType | None = F32
    activation: ActivationDescriptor | None = RELU
    settings: dict[str, Any] = field(default_factory=lambda: {"padding": 1})
    layouts: tuple[str, str] = ("NHWC", "NHWC")
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def case(self) -> Case:
        convolution = ConvolutionDescriptor.make(**self.settings)
        batch, filters, rows, columns = convolution.output_shape(self.x, self.w)
        of_x, of_y = self.layouts
        problem = PooledConvolutionProblem(
            describe(self.x, self.dtype, of_x),
            describe(self.w, self.dtype, "NHWC" if of_x == "NHWC" else "NCHW"),
            describe((batch, filters, rows // 2, columns // 2), self.dtype, of_y),
            convolution,
            None if self.parameters is None else TensorDescriptor.packed((1, filters, 1, 1), self.parameters),
            self.activation,
        )
        return Case(f"pooled-convolution-{self.name}", problem, self.alpha, self.beta)


_SETTINGS = {"padding": 1, "stride": 2, "dilation": (1, 2), "groups": 2}

POOLED = (
    Pooled("vgg", (2, 16, 6, 8), (24, 16, 3, 3)),
    Pooled("vgg-bf16", (1, 24, 8, 6), (16, 24, 3, 3), BF16),
    Pooled("tiles-that-end-within", (3, 8, 10, 14), (8, 8, 3, 3), BF16, None, LEAKY),
    Pooled("one-window", (1, 8, 2, 2), (72, 8, 3, 3), F16, F16, CEILING),
    Pooled("vgg-fp32", (2, 16, 6, 8), (24, 16, 3, 3), F32, layouts=("NCHW", "NCHW")),
    Pooled("odd-channels", (2, 5, 6, 4), (7, 5, 3, 3), F16, F16, None),
    Pooled("odd-channels-bf16", (1, 3, 4, 6), (9, 3, 3, 3), BF16, BF16, CEILING),
    Pooled("blend", (2, 8, 4, 6), (16, 8, 3, 3), F16, F32, LEAKY, alpha=-0.5, beta=2.0),
    Pooled("blend-bf16", (1, 8, 6, 4), (8, 8, 3, 3), BF16, None, None, alpha=2.0, beta=-1.0),
    Pooled("scaled", (1, 8, 4, 4), (8, 8, 3, 3), F16, None, alpha=0.25),
    Pooled("without-padding", (1, 8, 6, 8), (8, 8, 3, 3), settings={}),
    Pooled("uneven-padding", (1, 8, 5, 6), (8, 8, 3, 3), settings={"padding": ((2, 1), (0, 2))}),
    Pooled("rows", (2, 4, 6, 8), (6, 4, 3, 3), layouts=("NCHW", "NCHW")),
    Pooled("to-rows", (2, 8, 4, 6), (16, 8, 3, 3), BF16, layouts=("NHWC", "NCHW")),
    Pooled("from-rows", (1, 8, 4, 6), (16, 8, 3, 3), layouts=("NCHW", "NHWC")),
    Pooled("gaps", (2, 3, 4, 6), (5, 3, 3, 3), BF16, BF16, layouts=("gaps", "gaps"), beta=1.0),
    Pooled("strides-and-groups", (1, 4, 7, 11), (6, 2, 3, 2), settings=_SETTINGS),
    Pooled("one-tap", (2, 16, 4, 2), (8, 16, 1, 1), settings={}),
)

CASES = tuple(one.case for one in POOLED)
