"""Which version of each ONNX operator its rule or its folding was last compared with.

An operator that a newer opset changes is refused until somebody has read what changed and raised the number here.
"""

from __future__ import annotations

__all__ = ["NEWEST_VERSION", "OLDEST_VERSIONS"]

OLDEST_VERSIONS = 6
"""Operators are read as opsets from this on have them. Older ones broadcast and shaped in ways that no exporter in use writes."""

NEWEST_VERSION: dict[str, int] = {
    "Abs": 13, "Add": 14, "And": 7, "ArgMax": 13, "ArgMin": 13, "AveragePool": 22, "BatchNormalization": 15, "Cast": 28,
    "CastLike": 25, "Ceil": 13,
    "Celu": 28, "Clip": 13, "Concat": 13, "Constant": 25, "ConstantOfShape": 25, "Conv": 22, "ConvTranspose": 22, "Cos": 22,
    "CumSum": 14, "DepthToSpace": 28, "Div": 14, "Dropout": 22, "Einsum": 28, "Elu": 22, "Equal": 19, "Erf": 13, "Exp": 13,
    "Expand": 13, "Flatten": 25, "Floor": 13, "Gather": 13, "GatherND": 13, "Gelu": 20, "Gemm": 13, "GlobalAveragePool": 22,
    "GlobalMaxPool": 22, "Greater": 13, "GreaterOrEqual": 16, "GroupNormalization": 21, "HardSigmoid": 22, "HardSwish": 22,
    "Identity": 25, "InstanceNormalization": 22, "LRN": 13, "LayerNormalization": 17, "LeakyRelu": 16, "Less": 13,
    "LessOrEqual": 16, "Log": 13, "LogSoftmax": 13, "MatMul": 13, "Max": 13, "MaxPool": 22, "Mean": 13, "Min": 13, "Mish": 22,
    "Mod": 28, "Mul": 14, "Neg": 13, "Not": 1, "Or": 7, "PRelu": 16, "Pad": 25, "Pow": 15, "RMSNormalization": 23,
    "Range": 27, "Reciprocal": 13, "ReduceL1": 18, "ReduceL2": 18, "ReduceMax": 20, "ReduceMean": 18, "ReduceMin": 20,
    "ReduceProd": 18, "ReduceSum": 13, "ReduceSumSquare": 18, "Relu": 14, "Reshape": 25, "Resize": 19, "Round": 22,
    "ScatterND": 18, "Selu": 22, "Shape": 25, "Sigmoid": 13, "Sign": 13, "Sin": 22, "Size": 25, "Slice": 13, "Softmax": 13,
    "Softplus": 22, "Softsign": 22, "SpaceToDepth": 28, "Split": 18, "Sqrt": 13, "Squeeze": 25, "Sub": 14, "Sum": 13,
    "Swish": 24, "Tanh": 13, "Tile": 13, "TopK": 24, "Transpose": 25, "Unsqueeze": 25, "Upsample": 9, "Where": 16, "Xor": 7,
}  # fmt: skip
"""By operator: the opset of its newest version that is understood."""
