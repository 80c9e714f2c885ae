"""Normalisations: local response, batch, layer, RMS, group and instance normalisation, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dnncore.descriptors import ActivationDescriptor, BatchNormMode, LRNDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    GroupNormBackwardProblem,
    GroupNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
    LRNBackwardProblem,
    LRNForwardProblem,
)
from dnncore.problems.normalization.batch_norm import batch_norm_parameters
from tests.cases.case import Case, describe

__all__ = ["CASES", "slice_of_channels"]

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64
SPATIAL, ACTIVATION = BatchNormMode.SPATIAL, BatchNormMode.PER_ACTIVATION

ACROSS, WITHIN = "across_channels", "within_channel"

# name, mode, n, alpha, beta, k, shape, dtype, layout, alpha, beta of the blend
WINDOWS = (
    ("alexnet", ACROSS, 5, 1e-4, 0.75, 2.0, (2, 11, 5, 6), F32, "NCHW", 1.0, 0.0),
    ("strong", ACROSS, 5, 2.0, 0.75, 1.0, (2, 19, 3, 5), F32, "NCHW", 1.0, 0.0),
    ("nhwc", ACROSS, 5, 1.0, 0.75, 1.0, (2, 37, 3, 2), F32, "NHWC", 1.0, 0.0),
    ("chwn-even", ACROSS, 4, 1.0, 0.5, 1.0, (3, 10, 2, 2), F32, "CHWN", 1.0, 0.0),
    ("even-gaps-blend", ACROSS, 2, 3.0, 1.0, 0.5, (2, 7, 3, 3), F32, "gaps", 2.0, -0.5),
    ("own-element", ACROSS, 1, 1.0, 0.6, 1e-5, (2, 5, 3), F32, "NCHW", 1.0, 0.0),
    ("longer-than-channels", ACROSS, 13, 1.0, 0.75, 2.0, (2, 3, 4), F32, "NCHW", 1.0, 0.0),
    ("long", ACROSS, 9, 1.0, 0.75, 1.0, (1, 30, 3, 3), F32, "NCHW", 1.0, 0.0),
    ("matrix", ACROSS, 3, 1.0, 2.0, 1.0, (4, 21), F32, "NCHW", 1.0, 0.0),
    ("six-dimensions", ACROSS, 3, 1.0, 0.75, 1.0, (1, 5, 2, 1, 2, 2, 1, 2), F32, "NCHW", 1.0, 0.0),
    ("fp64", ACROSS, 5, 1.0, 0.75, 1.0, (2, 9, 2, 3), F64, "NCHW", 1.0, 0.0),
    ("fp64-nhwc", ACROSS, 5, 1.0, 0.3, 1.0, (2, 9, 2, 3), F64, "NHWC", 1.0, 0.0),
    ("fp16", ACROSS, 5, 1.0, 0.75, 1.0, (2, 9, 3, 3), F16, "NCHW", 1.0, 0.0),
    ("fp16-nhwc", ACROSS, 5, 1.0, 0.75, 1.0, (2, 9, 3, 3), F16, "NHWC", 1.0, 0.0),
    ("bf16", ACROSS, 5, 1.0, 0.75, 1.0, (2, 9, 3, 3), BF16, "NCHW", 1.0, 0.0),
    ("bf16-nhwc-blend", ACROSS, 5, 1.0, 0.75, 1.0, (2, 9, 3, 3), BF16, "NHWC", -1.0, 1.0),
    ("planes-in-parts", ACROSS, 5, 2.0, 0.75, 1.0, (2, 71, 3, 5), F32, "NCHW", 1.0, 0.0),
    ("planes-in-parts-exponent", ACROSS, 5, 2.0, 0.6, 1.0, (1, 66, 3, 3), F32, "NCHW", 2.0, 0.5),
    ("planes-in-parts-fp16", ACROSS, 5, 1.0, 0.75, 1.0, (2, 71, 3, 4), F16, "NCHW", 1.0, 0.0),
    ("planes-in-parts-bf16-blend", ACROSS, 5, 1.0, 0.75, 1.0, (2, 67, 2, 4), BF16, "NCHW", -1.0, 0.5),
    ("one-image-chw", ACROSS, 5, 1.0, 0.75, 1.0, (1, 37, 6, 6), F16, "NCHW", 1.0, 0.0),
    ("vectors", ACROSS, 5, 2.0, 0.75, 1.0, (2, 20, 3, 2), F32, "NHWC", 1.0, 0.0),
    ("vectors-exponent-blend", ACROSS, 5, 2.0, 0.4, 1.0, (2, 12, 3, 2), F32, "NHWC", -1.0, 0.5),
    ("vectors-fp16", ACROSS, 5, 1.0, 0.75, 1.0, (2, 40, 3, 3), F16, "NHWC", 1.0, 0.0),
    ("vectors-bf16-blend", ACROSS, 5, 1.0, 0.75, 1.0, (2, 24, 3, 3), BF16, "NHWC", -1.0, 1.0),
    ("empty", ACROSS, 5, 1.0, 0.75, 1.0, (0, 9, 3, 3), F32, "NCHW", 1.0, 0.0),
    ("within", WITHIN, 3, 1.0, 0.75, 1.0, (2, 3, 7, 6), F32, "NCHW", 1.0, 0.0),
    ("within-even-nhwc-blend", WITHIN, 4, 2.0, 0.75, 1.0, (2, 5, 6, 5), F32, "NHWC", 0.5, 2.0),
    ("within-volume-fp64", WITHIN, 3, 1.0, 0.5, 1.0, (1, 2, 4, 3, 5), F64, "NCHW", 1.0, 0.0),
    ("within-line-gaps", WITHIN, 5, 1.0, 0.75, 1.0, (2, 3, 9), F32, "gaps", 1.0, 0.0),
    ("within-matrix", WITHIN, 5, 1.0, 0.75, 1.0, (3, 4), F32, "NCHW", 1.0, 0.0),
    ("within-fp16", WITHIN, 3, 1.0, 0.75, 1.0, (2, 3, 5, 5), F16, "NCHW", 1.0, 0.0),
    ("within-bf16", WITHIN, 3, 1.0, 0.75, 1.0, (2, 3, 5, 5), BF16, "NHWC", 1.0, 0.0),
)


@dataclass(frozen=True)
class Statistic:
    """A tensor that is normalised with statistics, how its gradients are blended, and whether parameters are stored as it is."""

    name: str
    shape: tuple[int, ...]
    dtype: DType = F32
    layout: str = "NCHW"
    alpha: float = 1.0
    beta: float = 0.0
    parameters: tuple[float, float] = (1.0, 0.0)
    epsilon: float = 1e-5
    narrow: bool = False

    @property
    def x(self) -> TensorDescriptor:
        return describe(self.shape, self.dtype, self.layout)

    def parameter(self, shape: tuple[int, ...]) -> TensorDescriptor:
        """With gaps where the tensor has some."""
        return describe(shape, self.dtype if self.narrow else self.dtype.compute, self._gaps)

    def saved(self, shape: tuple[int, ...]) -> TensorDescriptor:
        """A statistic that the backward operation reads; likewise."""
        return describe(shape, self.dtype.compute, self._gaps)

    @property
    def _gaps(self) -> str:
        return "gaps" if self.layout == "gaps" else "NCHW"


BLENDED = (0.5, -2.0)

# What is normalised in parts needs, for each thread of a block, four packs of 16 bytes in each of four parts; two where not all are
# whole.
BATCHES = (
    (SPATIAL, Statistic("images", (3, 5, 4, 6))),
    (SPATIAL, Statistic("odd-planes", (2, 7, 5, 5), alpha=2.0, beta=-0.5, parameters=BLENDED)),
    (SPATIAL, Statistic("nhwc", (2, 22, 3, 5), layout="NHWC")),
    (SPATIAL, Statistic("chwn", (9, 3, 2, 3), layout="CHWN", epsilon=1e-3)),
    (SPATIAL, Statistic("gaps", (2, 3, 4, 5), layout="gaps", alpha=0.5, beta=2.0, parameters=BLENDED)),
    (SPATIAL, Statistic("matrix", (13, 10))),
    (SPATIAL, Statistic("one-image", (1, 3, 2, 2))),
    (SPATIAL, Statistic("six-dimensions", (2, 3, 2, 1, 2, 1, 2, 2))),
    (SPATIAL, Statistic("volumes-fp64", (2, 3, 3, 2, 5), F64, parameters=(1.0, 1.0))),
    (SPATIAL, Statistic("fp16", (2, 5, 6, 8), F16)),
    (SPATIAL, Statistic("fp16-nhwc", (2, 24, 5, 3), F16, "NHWC", alpha=1.0, beta=1.0)),
    (SPATIAL, Statistic("bf16-odd", (3, 4, 5, 5), BF16)),
    (SPATIAL, Statistic("halves-fp16", (5, 3, 2, 6), F16, alpha=0.5, beta=1.0, parameters=BLENDED)),
    (SPATIAL, Statistic("halves-all-bf16", (5, 3, 2, 6), BF16, parameters=BLENDED, narrow=True)),
    (SPATIAL, Statistic("all-fp16", (2, 5, 6, 8), F16, parameters=BLENDED, narrow=True)),
    (SPATIAL, Statistic("all-fp16-nhwc", (2, 24, 5, 3), F16, "NHWC", narrow=True)),
    (SPATIAL, Statistic("all-fp16-odd-nhwc", (2, 13, 5, 3), F16, "NHWC", beta=1.0, parameters=BLENDED, narrow=True)),
    (SPATIAL, Statistic("all-fp16-gaps", (2, 3, 4, 5), F16, "gaps", parameters=BLENDED, narrow=True)),
    (SPATIAL, Statistic("all-bf16-odd", (3, 4, 5, 5), BF16, narrow=True)),
    (SPATIAL, Statistic("all-bf16-matrix", (13, 16), BF16, parameters=(1.0, 1.0), narrow=True)),
    (SPATIAL, Statistic("no-channels", (2, 0, 3))),
    (SPATIAL, Statistic("parts-of-planes", (2, 2, 89, 97))),
    (SPATIAL, Statistic("parts-of-planes-fp64-blend", (3, 1, 56, 56), F64, beta=1.0, parameters=BLENDED)),
    (SPATIAL, Statistic("parts-of-planes-fp16", (4, 1, 88, 96), F16)),
    (SPATIAL, Statistic("parts-of-planes-bf16", (4, 1, 88, 96), BF16)),
    (SPATIAL, Statistic("parts-of-planes-all-bf16", (4, 1, 88, 96), BF16, parameters=BLENDED, narrow=True)),
    (SPATIAL, Statistic("parts-of-halves-fp16", (41, 1, 14, 14), F16)),
    (SPATIAL, Statistic("parts-of-rows", (3, 40, 10, 11), layout="NHWC", parameters=BLENDED)),
    (SPATIAL, Statistic("parts-of-rows-bf16", (3, 70, 10, 12), BF16, "NHWC")),
    (SPATIAL, Statistic("parts-of-rows-all-fp16", (3, 72, 10, 12), F16, "NHWC", narrow=True)),
    (SPATIAL, Statistic("parts-of-whole-packs-fp16", (3, 72, 10, 12), F16, "NHWC", parameters=BLENDED)),
    (SPATIAL, Statistic("parts-of-whole-packs-bf16", (3, 72, 10, 12), BF16, "NHWC", alpha=0.5, beta=1.0)),
    (
        SPATIAL,
        Statistic("parts-of-whole-packs-all-bf16", (3, 72, 10, 12), BF16, "NHWC", parameters=BLENDED, narrow=True),
    ),
    (SPATIAL, Statistic("parts-in-more-than-a-warp", (2, 128, 18, 17), layout="NHWC")),
    (SPATIAL, Statistic("parts-of-few-channels", (1, 3, 67, 65), layout="NHWC")),
    (ACTIVATION, Statistic("images", (6, 3, 2, 5))),
    (ACTIVATION, Statistic("nhwc", (5, 3, 3, 4), layout="NHWC", parameters=BLENDED)),
    (ACTIVATION, Statistic("matrix-fp64", (7, 9), F64)),
    (ACTIVATION, Statistic("gaps-fp16", (4, 3, 5), F16, "gaps")),
    (ACTIVATION, Statistic("all-bf16", (4, 3, 2, 4), BF16, parameters=BLENDED, narrow=True)),
    (ACTIVATION, Statistic("parts-of-a-large-batch", (1100, 5, 3))),
)

# Of those, what is followed by a ReLU too, after a residual and without one.
ACTIVATED = (
    "images",
    "odd-planes",
    "gaps",
    "halves-fp16",
    "fp16-nhwc",
    "all-fp16-odd-nhwc",
    "no-channels",
    "parts-of-planes",
    "parts-of-planes-fp64-blend",
    "parts-of-planes-fp16",
    "parts-of-rows",
    "parts-of-rows-all-fp16",
    "parts-of-whole-packs-fp16",
    "parts-of-whole-packs-bf16",
    "parts-of-whole-packs-all-bf16",
)
RELU = ActivationDescriptor.make("relu")

# Of BATCHES, those that are tried with a dy that is some of the channels of another tensor, too: what a concatenation passes back.
SLICED = (
    "images",
    "halves-fp16",
    "fp16-nhwc",
    "parts-of-planes-bf16",
    "parts-of-rows",
    "parts-of-whole-packs-fp16",
    "parts-of-whole-packs-bf16",
)

# first normalised dimension, scale, bias
LAYERS = (
    (1, True, True, Statistic("tokens", (9, 33))),
    (2, True, True, Statistic("sequences", (2, 5, 64), parameters=BLENDED)),
    (1, True, False, Statistic("images-no-bias", (3, 4, 3, 5), alpha=2.0, beta=0.5)),
    (1, False, True, Statistic("bias-alone", (4, 6, 3))),
    (2, False, False, Statistic("no-parameters", (3, 4, 10))),
    (0, True, True, Statistic("everything", (3, 50))),
    (1, True, True, Statistic("one-element", (5, 1))),
    (1, True, True, Statistic("nhwc", (2, 6, 3, 4), layout="NHWC")),
    (3, True, True, Statistic("last-of-nhwc", (2, 6, 3, 4), layout="NHWC")),
    (1, True, True, Statistic("gaps", (4, 3, 7), layout="gaps", parameters=BLENDED)),
    (1, True, True, Statistic("fp64", (5, 30), F64)),
    (1, True, True, Statistic("fp16", (6, 72), F16)),
    (1, True, True, Statistic("long-rows-fp16", (3, 2048), F16, alpha=0.5, beta=1.0, parameters=BLENDED)),
    (1, True, False, Statistic("longest-rows-all-bf16", (2, 4096), BF16, parameters=BLENDED, narrow=True)),
    (2, False, True, Statistic("longest-rows", (1, 3, 4096))),
    (1, True, True, Statistic("longest-rows-fp64", (2, 2048), F64)),
    (1, True, True, Statistic("bf16-odd", (6, 35), BF16, beta=1.0)),
    (1, True, True, Statistic("all-fp16", (6, 72), F16, parameters=BLENDED, narrow=True)),
    (1, True, True, Statistic("all-bf16-odd", (6, 35), BF16, narrow=True)),
    (1, True, False, Statistic("all-bf16-images-no-bias", (3, 4, 3, 5), BF16, "gaps", narrow=True)),
    (1, True, True, Statistic("no-rows", (0, 7))),
    (1, True, True, Statistic("single-element", (1, 1))),
    (1, True, True, Statistic("long-rows", (3, 1500))),
    (1, True, True, Statistic("kept-by-a-warp-fp16", (5, 768), F16)),
    (1, True, True, Statistic("kept-by-a-warp-and-some-lanes", (3, 268), alpha=0.5, beta=2.0)),
    (2, True, True, Statistic("kept-by-two-warps-bf16", (2, 2, 1600), BF16, parameters=BLENDED)),
    (1, True, False, Statistic("kept-by-a-block", (2, 4096))),
    (1, True, True, Statistic("kept-by-a-block-fp64", (2, 2040), F64)),
    (1, True, True, Statistic("kept-by-a-warp-all-bf16", (5, 768), BF16, narrow=True)),
    (1, True, True, Statistic("longer-than-is-kept-all-fp16", (3, 8200), F16, narrow=True)),
    (1, False, True, Statistic("longer-than-is-kept-fp16", (3, 8200), F16)),
    (1, True, True, Statistic("kept-beside-each-other", (37, 24))),
    (1, True, True, Statistic("parts-of-rows", (2, 17001))),
    (1, True, True, Statistic("parts-of-columns", (530, 60))),
    (1, True, True, Statistic("parts-of-columns-bf16-blend", (530, 60), BF16, parameters=BLENDED)),
    (1, True, True, Statistic("parts-of-columns-all-fp16", (530, 64), F16, parameters=BLENDED, narrow=True)),
)
ROOTS = (
    (1, True, Statistic("tokens", (9, 33))),
    (1, True, Statistic("kept-fp16", (5, 1032), F16)),
    (1, True, Statistic("longer-than-is-kept", (2, 4100))),
    (1, True, Statistic("kept-all-bf16", (5, 1032), BF16, narrow=True)),
    (2, False, Statistic("no-scale-fp64", (2, 3, 10), F64)),
    (1, True, Statistic("bf16-blend", (7, 64), BF16, alpha=-1.0, beta=0.5, parameters=BLENDED)),
    (1, True, Statistic("parts-of-rows", (2, 17001))),
)

# groups, scale and bias
GROUPS = (
    (2, True, Statistic("images", (2, 6, 3, 4))),
    (3, True, Statistic("nhwc", (2, 12, 3, 3), layout="NHWC", parameters=BLENDED)),
    (4, True, Statistic("instances", (2, 4, 5, 5), alpha=2.0, beta=0.5)),
    (1, True, Statistic("one-group", (3, 5, 7))),
    (2, False, Statistic("no-parameters", (3, 4, 6))),
    (2, True, Statistic("matrix", (5, 8))),
    (2, True, Statistic("gaps-fp64", (2, 4, 3, 3), F64, "gaps", parameters=BLENDED)),
    (2, True, Statistic("six-dimensions", (2, 4, 2, 1, 2, 3, 1, 2))),
    (2, True, Statistic("whole-packs-nhwc", (3, 24, 5, 7), layout="NHWC", parameters=BLENDED, beta=0.5)),
    (4, True, Statistic("whole-packs-nhwc-fp16", (2, 64, 6, 7), F16, "NHWC")),
    (2, False, Statistic("whole-packs-nhwc-fp64", (2, 12, 5, 5), F64, "NHWC")),
    (4, True, Statistic("parts-of-images-nhwc-bf16", (1, 16, 47, 43), BF16, "NHWC", parameters=BLENDED)),
    (2, True, Statistic("whole-packs", (2, 6, 4, 8), alpha=2.0, beta=-0.5, parameters=BLENDED)),
    (2, True, Statistic("whole-packs-bf16", (2, 4, 8, 8), BF16)),
    (1, True, Statistic("many-packs", (2, 3, 64, 36))),
    (2, True, Statistic("fp16", (2, 4, 4, 4), F16)),
    (3, True, Statistic("bf16-nhwc", (2, 12, 3, 5), BF16, "NHWC")),
    (2, True, Statistic("all-fp16", (2, 4, 4, 4), F16, narrow=True)),
    (3, True, Statistic("all-bf16-nhwc", (2, 12, 3, 5), BF16, "NHWC", parameters=BLENDED, narrow=True)),
    (4, True, Statistic("whole-packs-nhwc-all-fp16", (2, 64, 6, 7), F16, "NHWC", parameters=BLENDED, narrow=True)),
    (1, True, Statistic("one-wide-group-nhwc", (2, 212, 3, 3), layout="NHWC")),
    (2, True, Statistic("wide-groups-nhwc-all-fp16", (2, 400, 2, 3), F16, "NHWC", parameters=BLENDED, narrow=True)),
    (2, True, Statistic("whole-packs-all-bf16", (2, 4, 8, 8), BF16, narrow=True)),
    (2, True, Statistic("empty", (0, 4, 3))),
    (1, True, Statistic("parts", (1, 2, 97, 89), parameters=BLENDED)),
    (1, True, Statistic("parts-fp16", (1, 4, 88, 96), F16)),
)


def _lrn() -> list[Case]:
    cases = []
    for name, mode, n, alpha, exponent, k, shape, dtype, layout, *blend in WINDOWS:
        lrn, t = LRNDescriptor.make(mode, n, alpha=alpha, beta=exponent, k=k), describe(shape, dtype, layout)
        factor, kept = blend or (1.0, 0.0)
        cases.append(Case(f"lrn-forward-{name}", LRNForwardProblem(t, t, lrn), factor, kept))
        cases.append(Case(f"lrn-backward-{name}", LRNBackwardProblem(t, t, t, t, lrn), factor, kept))
    transposed = LRNForwardProblem(
        describe((2, 9, 3, 4), F32, "NCHW"), describe((2, 9, 3, 4), F32, "NHWC"), LRNDescriptor()
    )
    stretched, packed = TensorDescriptor(F32, (2, 6, 5), (0, 5, 1)), TensorDescriptor.packed((2, 6, 5))
    repeated = LRNForwardProblem(stretched, packed, LRNDescriptor(alpha=1.0))
    vectors, planes = (describe((2, 16, 3, 3), F16, layout) for layout in ("NHWC", "NCHW"))
    return [
        *cases,
        Case("lrn-forward-nchw-to-nhwc", transposed),
        Case("lrn-forward-zero-stride", repeated),
        Case("lrn-forward-slice-of-channels", LRNForwardProblem(slice_of_channels(vectors), vectors, LRNDescriptor())),
        Case("lrn-forward-slice-of-planes", LRNForwardProblem(slice_of_channels(planes), planes, LRNDescriptor())),
    ]


def slice_of_channels(x: TensorDescriptor, others: int = 8) -> TensorDescriptor:
    """As a packed x, but among so many channels more."""
    if x.strides[1] != 1:  # an image further
        others *= x.strides[1]
        return replace(x, strides=(x.strides[0] + others, *x.strides[1:]))
    further = [stride // x.shape[1] * (x.shape[1] + others) for stride in x.strides]
    return replace(x, strides=(further[0], 1, *further[2:]))


def _batch_norm() -> list[Case]:
    cases = []
    for mode, of in BATCHES:
        shape = batch_norm_parameters(of.x, mode)
        x, p, s = of.x, of.parameter(shape), of.saved(shape)
        label = f"{mode.value}-{of.name}"
        old = p if of.parameters[1] else None
        problems: dict[str, Any] = {
            "inference": BatchNormInferenceProblem(x, p, p, p, p, x, mode, of.epsilon),
            "forward": BatchNormForwardProblem(x, p, p, x, s, s, mode, of.epsilon),
            "backward": BatchNormBackwardProblem(x, x, p, s, s, x, p, p, mode, *of.parameters, old, old),
        }
        if not of.name.startswith("parts") or of.dtype is BF16:
            problems["running"] = BatchNormForwardProblem(x, p, p, x, s, s, mode, of.epsilon, 0.3, p, p, p, p)
        if mode is SPATIAL and of.name in ACTIVATED:
            forward, backward = problems["forward"], problems["backward"]
            problems |= {
                "relu-forward": replace(forward, activation=RELU),
                "add-relu-forward": replace(forward, activation=RELU, z=x),
                "relu-backward": replace(backward, activation=RELU, y=x, bias=p),
                "add-relu-backward": replace(backward, activation=RELU, y=x, dz=x),
            }
        if mode is SPATIAL and of.name in SLICED:
            dy = slice_of_channels(x)
            problems |= {
                f"{what}-of-a-slice": replace(problem, dy=dy)
                for what, problem in problems.items()
                if isinstance(problem, BatchNormBackwardProblem)
            }
        cases += [Case(f"batch-norm-{what}-{label}", problem, of.alpha, of.beta) for what, problem in problems.items()]
    alone = Statistic("alone", (1, 5))
    x, p = alone.x, alone.parameter((1, 5))
    forward = BatchNormForwardProblem(x, p, p, x, p, p, SPATIAL, 1e-5)
    backward = BatchNormBackwardProblem(x, x, p, p, p, x, p, p, SPATIAL)
    none = describe((0, 3, 4), F32, "NCHW")
    p3 = describe((1, 3, 1), F32, "NCHW")
    wide = describe((2, 5, 3, 4), F32, "NHWC")
    q = describe((1, 5, 1, 1), F32, "NCHW")
    narrow = describe((2, 5, 3, 4), F32, "NCHW")
    half, h = describe((2, 5, 3, 4), F16, "NHWC"), describe((1, 5, 1, 1), F16, "NCHW")
    stretched, full = TensorDescriptor(F32, (2, 5, 3, 4), (0, 12, 4, 1)), narrow
    level = TensorDescriptor(F32, (1, 5, 1, 1), (0, 0, 0, 0))
    return [
        *cases,
        Case("batch-norm-forward-zero-stride", BatchNormForwardProblem(stretched, level, q, full, q, q, SPATIAL, 1e-5)),
        Case(
            "batch-norm-backward-zero-stride",
            BatchNormBackwardProblem(full, stretched, level, q, q, full, q, q, SPATIAL),
        ),
        Case("batch-norm-inference-two-dtypes", BatchNormInferenceProblem(half, h, q, q, h, half, SPATIAL, 1e-5)),
        Case(
            "batch-norm-running-two-dtypes",
            BatchNormForwardProblem(half, q, h, half, q, q, SPATIAL, 1e-5, 0.3, h, q, q, h),
        ),
        Case(
            "batch-norm-backward-two-dtypes",
            BatchNormBackwardProblem(half, half, q, q, q, half, h, q, SPATIAL, *BLENDED, h, h),
        ),
        Case(
            "batch-norm-add-relu-forward-nhwc-and-nchw",
            BatchNormForwardProblem(wide, q, q, wide, q, q, SPATIAL, 1e-5, z=narrow, activation=RELU),
        ),
        Case(
            "batch-norm-add-relu-backward-nhwc-and-nchw",
            BatchNormBackwardProblem(wide, narrow, q, q, q, wide, q, q, SPATIAL, y=narrow, dz=wide, activation=RELU),
        ),
        Case("batch-norm-forward-one-element-a-channel", forward),
        Case("batch-norm-backward-one-element-a-channel", backward),
        Case("batch-norm-inference-no-images", BatchNormInferenceProblem(none, p3, p3, p3, p3, none, SPATIAL, 1e-5)),
        Case("batch-norm-forward-nchw-to-nhwc", BatchNormForwardProblem(narrow, q, q, wide, q, q, SPATIAL, 1e-5)),
        Case(
            "batch-norm-backward-nchw-from-nhwc", BatchNormBackwardProblem(narrow, wide, q, q, q, wide, q, q, SPATIAL)
        ),
    ]


def _layer(family: str, axis: int, of: Statistic, *, scale: bool, bias: bool, centred: bool) -> tuple[Case, Case]:
    x = of.x
    p = of.parameter((*(1,) * axis, *of.shape[axis:]))
    s = of.saved((*of.shape[:axis], *(1,) * (x.ndim - axis)))
    scales, biases = p if scale else None, p if bias else None
    blends = bool(of.parameters[1])
    mean = s if centred else None
    forward = LayerNormForwardProblem(x, x, s, axis, of.epsilon, mean, scales, biases)
    backward = LayerNormBackwardProblem(
        x,
        x,
        s,
        x,
        axis,
        mean,
        scales,
        scales,
        biases,
        *of.parameters,
        scales if blends else None,
        biases if blends else None,
    )
    return (
        Case(f"{family}-forward-{of.name}", forward, of.alpha, of.beta),
        Case(f"{family}-backward-{of.name}", backward, of.alpha, of.beta),
    )


def _group(groups: int, affine: bool, of: Statistic) -> tuple[Case, Case]:
    x, rest = of.x, (1,) * (len(of.shape) - 2)
    p = of.parameter((1, of.shape[1], *rest)) if affine else None
    s = of.saved((of.shape[0], groups, *rest))
    old = p if of.parameters[1] else None
    forward = GroupNormForwardProblem(x, x, s, s, groups, of.epsilon, p, p)
    backward = GroupNormBackwardProblem(x, x, s, s, x, groups, p, p, p, *of.parameters, old, old)
    return (
        Case(f"group-norm-forward-{of.name}", forward, of.alpha, of.beta),
        Case(f"group-norm-backward-{of.name}", backward, of.alpha, of.beta),
    )


CASES: tuple[Case, ...] = (
    *_lrn(),
    *_batch_norm(),
    *(
        case
        for axis, scale, bias, of in LAYERS
        for case in _layer("layer-norm", axis, of, scale=scale, bias=bias, centred=True)
    ),
    *(
        case
        for axis, scale, of in ROOTS
        for case in _layer("rms-norm", axis, of, scale=scale, bias=False, centred=False)
    ),
    *(case for groups, affine, of in GROUPS for case in _group(groups, affine, of)),
)
