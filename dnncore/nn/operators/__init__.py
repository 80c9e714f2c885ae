"""The operators there are, by the name that files give them."""

from __future__ import annotations

from typing import Any

from dnncore.errors import BadParamError, UnknownLayerError
from dnncore.nn.operator import Operator
from dnncore.nn.operators.activation import Activation, ActivationBackward
from dnncore.nn.operators.arg_max import ArgMax
from dnncore.nn.operators.batch_norm import BatchNorm, BatchNormBackward, BatchNormTraining
from dnncore.nn.operators.bottleneck import Bottleneck
from dnncore.nn.operators.broadcast import Expand
from dnncore.nn.operators.convolution import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    FusedConvolution,
    ImageConvolution,
)
from dnncore.nn.operators.cross_entropy import (
    CrossEntropy,
    CrossEntropyBackward,
    MeanBackward,
    MeanCrossEntropyBackward,
)
from dnncore.nn.operators.dropout import Dropout, DropoutTraining
from dnncore.nn.operators.fused_inner_product import FusedInnerProduct
from dnncore.nn.operators.gradients import ChannelSum, SumTo
from dnncore.nn.operators.image_normalization import ImageNormalization
from dnncore.nn.operators.inner_product import InnerProduct, InnerProductBackwardData, InnerProductBackwardWeight
from dnncore.nn.operators.inverted_residual import InvertedResidual
from dnncore.nn.operators.local_response_norm import LocalResponseNorm, LocalResponseNormBackward
from dnncore.nn.operators.matrix_product import MatrixProduct, MatrixProductBackwardA, MatrixProductBackwardB
from dnncore.nn.operators.moments import (
    GroupNorm,
    GroupNormBackward,
    LayerNorm,
    LayerNormBackward,
    RMSNorm,
    RMSNormBackward,
)
from dnncore.nn.operators.padding import Pad
from dnncore.nn.operators.pointwise import Binary, Scale, Unary, Where
from dnncore.nn.operators.pooled_convolution import PooledConvolution
from dnncore.nn.operators.pooling import GlobalPooling, PlaneOffsets, Pooling, PoolingBackward, PoolingWithIndices
from dnncore.nn.operators.quantization import (
    Dequantize,
    Quantize,
    QuantizedConvolution,
    QuantizedInnerProduct,
)
from dnncore.nn.operators.reduction import Reduce
from dnncore.nn.operators.softmax import Softmax, SoftmaxBackward
from dnncore.nn.operators.structure import (
    Cast,
    Concat,
    Flatten,
    Identity,
    Ones,
    Reshape,
    Slice,
    SliceBackward,
    Split,
    Transpose,
    Zeros,
)
from dnncore.nn.operators.top_k import TopK
from dnncore.nn.operators.transposed_convolution import TransposedConvolution

__all__ = [
    "OPERATORS",
    "Activation",
    "ArgMax",
    "BatchNorm",
    "BatchNormTraining",
    "Binary",
    "Bottleneck",
    "Cast",
    "Concat",
    "Convolution",
    "ConvolutionBackwardData",
    "CrossEntropy",
    "CrossEntropyBackward",
    "Dequantize",
    "Dropout",
    "DropoutTraining",
    "Expand",
    "Flatten",
    "FusedConvolution",
    "FusedInnerProduct",
    "GlobalPooling",
    "GroupNorm",
    "Identity",
    "ImageConvolution",
    "ImageNormalization",
    "InnerProduct",
    "InvertedResidual",
    "LayerNorm",
    "LocalResponseNorm",
    "MatrixProduct",
    "MeanBackward",
    "MeanCrossEntropyBackward",
    "Ones",
    "Pad",
    "PlaneOffsets",
    "PooledConvolution",
    "Pooling",
    "PoolingWithIndices",
    "Quantize",
    "QuantizedConvolution",
    "QuantizedInnerProduct",
    "RMSNorm",
    "Reduce",
    "Reshape",
    "Scale",
    "Slice",
    "Softmax",
    "Split",
    "TopK",
    "Transpose",
    "TransposedConvolution",
    "Unary",
    "Where",
    "Zeros",
    "operator_of",
    "registered_name",
]

_CLASSES: tuple[type[Operator], ...] = (
    Activation,
    ActivationBackward,
    ArgMax,
    BatchNorm,
    BatchNormBackward,
    BatchNormTraining,
    Binary,
    Bottleneck,
    Cast,
    ChannelSum,
    Concat,
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    CrossEntropy,
    CrossEntropyBackward,
    Dequantize,
    Dropout,
    DropoutTraining,
    Expand,
    Flatten,
    FusedConvolution,
    FusedInnerProduct,
    GlobalPooling,
    GroupNorm,
    GroupNormBackward,
    Identity,
    ImageConvolution,
    ImageNormalization,
    InnerProduct,
    InnerProductBackwardData,
    InnerProductBackwardWeight,
    InvertedResidual,
    LayerNorm,
    LayerNormBackward,
    LocalResponseNorm,
    LocalResponseNormBackward,
    MatrixProduct,
    MatrixProductBackwardA,
    MatrixProductBackwardB,
    MeanBackward,
    MeanCrossEntropyBackward,
    Ones,
    Pad,
    PlaneOffsets,
    PooledConvolution,
    Pooling,
    PoolingBackward,
    PoolingWithIndices,
    Quantize,
    QuantizedConvolution,
    QuantizedInnerProduct,
    RMSNorm,
    RMSNormBackward,
    Reduce,
    Reshape,
    Scale,
    Slice,
    SliceBackward,
    Softmax,
    SoftmaxBackward,
    Split,
    SumTo,
    TopK,
    Transpose,
    TransposedConvolution,
    Unary,
    Where,
    Zeros,
)


def registered_name(operator: type[Operator] | Operator) -> str:
    """What files call it: "convolution.1"."""
    return f"{operator.kind}.{operator.version}"


OPERATORS: dict[str, type[Operator]] = {registered_name(cls): cls for cls in _CLASSES}
"""Every class by the name, version included, that files give it. A new operator is one module and one line above."""


def operator_of(name: str, attributes: dict[str, Any]) -> Operator:
    """The operator that a file names, with attributes as JSON has them.

    Raises:
        UnknownLayerError: this version has none of that name.
        BadParamError: an attribute is unknown.
    """
    if name not in OPERATORS:
        raise UnknownLayerError(
            f"operator {name!r} is unknown; this version of dnncore has {', '.join(sorted(OPERATORS))}"
        )
    try:
        return OPERATORS[name](**{key: _hashable(value) for key, value in attributes.items()})
    except TypeError as error:
        raise BadParamError(f"operator {name!r}: {error}") from error


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
