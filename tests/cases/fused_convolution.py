"""Convolutions with scale, bias, residual and activation: all that every algorithm has to get right about each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dnncore.descriptors import ActivationDescriptor, ActivationMode, ConvolutionDescriptor
from dnncore.dtypes import DType
from dnncore.problems import FusedConvolutionProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32, F64, I8 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT8
RELU = ActivationDescriptor(ActivationMode.RELU)
LEAKY = ActivationDescriptor.make("leaky_relu", 0.125)
CEILING = ActivationDescriptor.make("clipped_relu", 0.5)
SILU = ActivationDescriptor(ActivationMode.SILU)


@dataclass(frozen=True)
class Fused:
    """One case; `with_` says which of scale, bias and z there are: "s", "b", "z"."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    with_: str = "sbz"
    settings: dict[str, Any] = field(default_factory=dict)
    dtype: DType = F32
    y_dtype: DType | None = None
    parameters: DType | None = None
    layouts: tuple[str, str] = ("NCHW", "NCHW")
    z_layout: str | None = None
    activation: ActivationDescriptor | None = RELU
    alpha1: float = 1.0
    alpha2: float = 1.0
    alpha: float = 1.0
    beta: float = 0.0
    overwrites: bool = False


NHWC = ("NHWC", "NHWC")
_DEPTHWISE: dict[int, dict[str, Any]] = {
    3: {"padding": 1, "groups": 3},
    5: {"padding": 2, "groups": 5, "stride": 2},
    8: {"padding": 1, "groups": 8},
    16: {"padding": 2, "groups": 16, "stride": 2},
}
"""Settings that tiles are made for, by the number of channels."""

_SMALL_PLANES: dict[str, Any] = {"padding": 2, "groups": 5}

_WIDE = (1, 2, 4, 5, 3), (5, 2, 2, 3, 2), "sbz", {"spatial_ndim": 3, "padding": 1}

FUSED = (
    Fused("everything", (2, 3, 7, 6), (5, 3, 3, 3), "sbz", {"padding": 1}),
    Fused("overwrites", (2, 3, 7, 6), (5, 3, 3, 3), "sbz", {"padding": 1}, alpha=2.0, overwrites=True),
    Fused("overwrites-gaps", (2, 3, 5, 6), (4, 3, 3, 3), "bz", {"padding": 1}, layouts=("gaps", "gaps"), overwrites=True),
    Fused("overwrites-fp16-depthwise", (2, 9, 7, 5), (9, 1, 3, 3), "b", {"groups": 9}, F16, parameters=F32, overwrites=True),
    Fused("clamped", (2, 5, 8, 6), (130, 5, 1, 1), "bz", overwrites=True),
    Fused("clamped-ceiling-blend", (2, 5, 4, 5), (6, 5, 1, 1), "bz", activation=CEILING, alpha=-0.5, beta=2.0),
    Fused("clamped-groups", (2, 12, 5, 6), (8, 6, 3, 3), "b", {"groups": 2, "padding": 1}, activation=None),
    Fused("first-layer", (1, 3, 13, 12), (6, 3, 7, 6), "b", {"padding": 3, "stride": 2}),
    Fused("planes-of-5x5", (3, 24, 5, 5), (6, 24, 1, 1), "sbz", activation=CEILING, alpha=-0.5, beta=2.0),
    Fused("bias", (2, 3, 9, 8), (6, 3, 3, 3), "b", {"padding": 1, "stride": 2}),
    Fused("scale", (1, 4, 6, 5), (3, 4, 1, 1), "s", activation=None),
    Fused("residual", (2, 3, 5, 5), (4, 3, 3, 3), "z", {"padding": 1}, activation=LEAKY, alpha1=-0.5, alpha2=2.0),
    Fused("nothing", (1, 2, 4, 5), (3, 2, 2, 2), "", activation=None, alpha1=3.0),
    Fused("z-is-not-read", (1, 3, 5, 4), (2, 3, 3, 3), "bz", {"padding": 1}, alpha2=0.0),
    Fused("blend", (2, 3, 5, 6), (4, 3, 3, 3), "sbz", {"padding": 1}, alpha=-0.5, beta=2.0),
    Fused("nhwc", (2, 5, 6, 7), (8, 5, 3, 3), "sbz", {"padding": 1}, layouts=("NHWC", "NHWC"), activation=SILU),
    Fused("z-in-another-layout", (2, 4, 6, 5), (9, 4, 3, 3), "bz", {"padding": 1}, z_layout="NHWC"),
    Fused("z-in-another-layout-blend", (2, 3, 4, 19), (4, 3, 1, 1), "sz", z_layout="CHWN", alpha=2.0, beta=-1.0),
    Fused("gaps", (2, 3, 5, 6), (4, 3, 3, 3), "sbz", {"padding": 1}, layouts=("gaps", "gaps")),
    Fused("groups", (2, 12, 6, 5), (8, 6, 3, 3), "sbz", {"groups": 2, "padding": 1}),
    Fused("depthwise", (2, 5, 7, 7), (5, 1, 3, 3), "sbz", {"groups": 5, "padding": 1}),
    # What finishes sums in registers or in shared memory before it writes them: depthwise tiles and strips, Winograd, FFT.
    Fused("tiles-planes", (2, 3, 11, 24), (3, 1, 3, 3), "sbz", _DEPTHWISE[3], activation=CEILING, alpha=-0.5, beta=2.0),
    Fused("tiles-planes-fp16", (1, 5, 9, 32), (5, 1, 5, 5), "sbz", _DEPTHWISE[5], F16, parameters=F32, activation=SILU),
    Fused("tiles-channels", (2, 8, 9, 7), (8, 1, 3, 3), "sbz", _DEPTHWISE[8], layouts=NHWC, activation=SILU),
    Fused("tiles-channels-bf16", (1, 16, 9, 10), (16, 1, 5, 5), "bz", _DEPTHWISE[16], BF16, None, None, NHWC, activation=CEILING),
    Fused("small-planes", (2, 5, 9, 7), (5, 1, 5, 5), "sbz", _SMALL_PLANES, activation=CEILING, alpha=-0.5, beta=2.0),
    Fused("small-planes-fp16", (1, 5, 7, 18), (5, 1, 7, 7), "sbz", _SMALL_PLANES, F16, parameters=F32, activation=SILU),
    Fused("rows", (2, 16, 9, 8), (16, 1, 5, 5), "sz", _DEPTHWISE[16], F16, None, F32, NHWC, activation=CEILING, alpha=2.0),
    Fused("rows-alone", (2, 8, 9, 7), (8, 1, 3, 3), "b", _DEPTHWISE[8], F16, layouts=NHWC, activation=CEILING),
    Fused("rows-blend", (1, 8, 9, 7), (8, 1, 3, 3), "sb", _DEPTHWISE[8], BF16, layouts=NHWC, activation=SILU, beta=-1.0),
    Fused("rows-relu", (1, 8, 8, 9), (8, 1, 3, 3), "z", {"padding": 1, "groups": 8, "stride": 2}, layouts=NHWC, alpha1=-1.5),
    Fused("thin-fp16", (2, 72, 5, 7), (24, 72, 1, 1), "sbz", {}, F16, None, F32, NHWC, activation=CEILING, alpha=-0.5, beta=2.0),
    Fused("strips-channels", (1, 8, 9, 9), (8, 1, 3, 3), "bz", {"dilation": 2, "groups": 8}, layouts=NHWC, activation=LEAKY),
    Fused("winograd", (2, 12, 9, 7), (10, 6, 3, 3), "sbz", {"padding": 1, "groups": 2}, activation=SILU, alpha=0.5, beta=-1.5),
    Fused("winograd-fp16", (1, 5, 9, 10), (35, 5, 3, 3), "sbz", {}, F16, None, F32, NHWC, activation=CEILING, alpha1=2.0),
    Fused("fft", (2, 6, 26, 20), (6, 3, 5, 5), "sb", {"padding": 2, "groups": 2}, activation=SILU, alpha=2.0, beta=-1.0),
    Fused("fft-large-tile", (1, 2, 40, 41), (3, 2, 9, 9), "b", alpha1=-0.5),
    Fused("fft-fp16", (1, 3, 12, 13), (2, 3, 5, 5), "sb", {}, F16, parameters=F32, layouts=NHWC, activation=LEAKY),
    Fused("true-convolution", (1, 3, 6, 6), (4, 3, 3, 2), "sb", {"mode": "convolution"}),
    Fused("long-sum", (1, 60, 5, 5), (7, 60, 5, 5), "sbz", activation=SILU),
    Fused("long-sum-simple-epilogue", (1, 200, 4, 5), (40, 200, 1, 1), "bz"),
    Fused("long-sum-blend", (1, 512, 2, 3), (9, 512, 1, 1), "sb", alpha=2.0, beta=1.0),
    Fused("many-filters", (2, 3, 12, 12), (70, 3, 3, 3), "sbz", {"padding": 1}),
    Fused("1d", (2, 6, 17), (4, 6, 5), "sbz", {"spatial_ndim": 1}),
    Fused("3d", *_WIDE),
    Fused("4d", (1, 2, 3, 3, 4, 3), (2, 2, 2, 2, 2, 2), "sbz", {"spatial_ndim": 4, "padding": 1}),
    Fused("batch-0", (0, 2, 5, 5), (3, 2, 3, 3), "sbz"),
    Fused("no-channels", (2, 0, 5, 5), (3, 0, 3, 3), "b"),
    Fused("fp64", (2, 3, 6, 5), (4, 3, 3, 3), "sbz", {"padding": 1}, dtype=F64, activation=SILU),
    Fused("fp64-long-sum-nhwc", (1, 300, 3, 3), (5, 300, 3, 3), "bz", dtype=F64, layouts=("NHWC", "NHWC")),
    Fused("fp64-depthwise", (2, 3, 6, 6), (3, 1, 3, 3), "sb", {"groups": 3}, dtype=F64),
    Fused("fp16", (2, 3, 7, 6), (5, 3, 3, 3), "sbz", {"padding": 1}, dtype=F16),
    Fused("fp16-parameters-fp32", (2, 8, 6, 6), (12, 8, 3, 3), "sbz", {"padding": 1}, F16, parameters=F32, activation=SILU),
    Fused("fp16-long-sum", (1, 130, 3, 3), (5, 130, 3, 3), "sbz", dtype=F16, layouts=("NHWC", "NHWC"), parameters=F32),
    Fused("fp16-depthwise", (2, 9, 7, 5), (9, 1, 3, 3), "sbz", {"groups": 9, "padding": 1}, F16, parameters=F32),
    Fused("fp16-nhwc-vectors", (2, 40, 7, 6), (24, 40, 3, 3), "sbz", {"padding": 1}, F16, None, F32, ("NHWC", "NHWC"), beta=1.0),
    Fused("fp16-nchw-vectors", (2, 16, 5, 6), (24, 16, 3, 3), "sbz", {"padding": 1}, F16, None, F32, z_layout="NHWC", beta=1.0),
    Fused("bf16-nhwc-groups", (1, 16, 6, 7), (20, 8, 3, 2), "sbz", {"groups": 2}, BF16, layouts=("NHWC", "NHWC"), alpha2=-0.5),
    Fused("fp16-3d", *_WIDE, dtype=F16),
    Fused("bf16", (2, 5, 7, 6), (8, 5, 3, 3), "sbz", {"padding": 1}, BF16, layouts=("NHWC", "NHWC")),
    Fused("bf16-depthwise", (1, 4, 6, 6), (12, 1, 3, 3), "bz", {"groups": 4, "stride": 2}, BF16),
    Fused("bf16-long-sum", (1, 600, 2, 2), (6, 600, 2, 1), "sb", dtype=BF16),
    Fused("int8", (2, 3, 7, 6), (5, 3, 3, 3), "sbz", {"padding": 1}, I8, parameters=F32, alpha1=2.0**-10),
    Fused("int8-nhwc", (1, 8, 6, 5), (6, 8, 3, 3), "sb", {}, I8, None, F32, ("NHWC", "NHWC"), alpha1=2.0**-12),
    Fused("int8-vectors", (2, 32, 7, 6), (32, 32, 3, 3), "sbz", {}, I8, None, F32, ("NHWC", "NHWC"), alpha1=2.0**-12, beta=1.0),
    Fused("int8-vectors-to-fp32", (2, 32, 7, 6), (24, 32, 3, 3), "sbz", {}, I8, F32, F32, ("NHWC", "NHWC"), alpha1=2.0**-12),
    Fused("int8-long-sum", (1, 400, 2, 3), (9, 400, 1, 3), "sbz", {}, I8, None, F32, alpha1=2.0**-12, alpha2=-0.5),
    Fused("int8-long-sum-blend", (1, 400, 2, 3), (5, 400, 2, 1), "b", {}, I8, F32, F32, ("NHWC", "NHWC"), alpha=0.5, beta=-2.0),
    Fused("int8-3d", *_WIDE, I8, None, F32, alpha1=2.0**-9),
    Fused("int8-depthwise", (2, 5, 7, 7), (5, 1, 3, 3), "sb", {"groups": 5, "padding": 1}, I8, None, F32, alpha1=2.0**-9),
    Fused("int8-z-in-another-layout", (2, 4, 6, 5), (9, 4, 3, 3), "bz", {}, I8, None, F32, z_layout="NHWC", alpha1=2.0**-9),
    Fused("int8-to-fp32", (2, 4, 6, 6), (4, 2, 3, 3), "sbz", {"groups": 2}, I8, F32, F32, activation=SILU, alpha1=2.0**-12),
)  # fmt: skip


def _case(fused: Fused) -> Case:
    settings = dict(fused.settings)
    conv = ConvolutionDescriptor.make(settings.pop("spatial_ndim", 2), **settings)
    x_layout, y_layout = fused.layouts
    y_dtype, shape = fused.y_dtype or fused.dtype, conv.output_shape(fused.x, fused.w)
    per_filter = describe((1, fused.w[0], *(1,) * conv.spatial_ndim), fused.parameters or fused.dtype, "NCHW")
    problem = FusedConvolutionProblem(
        describe(fused.x, fused.dtype, x_layout),
        describe(fused.w, fused.dtype, x_layout),
        describe(shape, y_dtype, y_layout),
        conv,
        per_filter if "s" in fused.with_ else None,
        per_filter if "b" in fused.with_ else None,
        describe(shape, y_dtype, fused.z_layout or y_layout) if "z" in fused.with_ else None,
        fused.activation,
        fused.alpha1,
        fused.alpha2,
        fused.overwrites,
    )
    return Case(f"fused-convolution-{fused.name}", problem, fused.alpha, fused.beta)


CASES = tuple(_case(fused) for fused in FUSED)
