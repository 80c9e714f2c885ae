"""Frozen values that say what a tensor or an operation looks like; validated when made, hashable, and free of memory.

Strides count elements. A filter is a tensor [K, C/G, *filter]: it may have any strides too, so it needs no class of its own.
"""

from dnncore.descriptors.activation import ActivationDescriptor, ActivationMode
from dnncore.descriptors.convolution import ConvolutionDescriptor, ConvolutionMode, MathType
from dnncore.descriptors.cross_entropy import CrossEntropyDescriptor
from dnncore.descriptors.normalization import BatchNormMode, LRNDescriptor, LRNMode
from dnncore.descriptors.operators import BinaryOperator, ReduceOperator, UnaryOperator
from dnncore.descriptors.pooling import PoolingDescriptor, PoolingMode
from dnncore.descriptors.softmax import SoftmaxAlgorithm, SoftmaxMode
from dnncore.descriptors.tensor import MAX_NDIM, Layout, TensorDescriptor

__all__ = [
    "MAX_NDIM",
    "ActivationDescriptor",
    "ActivationMode",
    "BatchNormMode",
    "BinaryOperator",
    "ConvolutionDescriptor",
    "ConvolutionMode",
    "CrossEntropyDescriptor",
    "LRNDescriptor",
    "LRNMode",
    "Layout",
    "MathType",
    "PoolingDescriptor",
    "PoolingMode",
    "ReduceOperator",
    "SoftmaxAlgorithm",
    "SoftmaxMode",
    "TensorDescriptor",
    "UnaryOperator",
]
