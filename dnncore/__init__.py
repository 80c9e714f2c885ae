"""Deep-learning primitives: the job cuDNN does for C, in Python, on CUDA C++ kernels or NumPy.

>>> import numpy as np, dnncore
>>> with dnncore.Handle("cpu") as handle:
...     x = handle.upload(np.array([[1.0, -2.0]], np.float32))
...     y = handle.tensor(x.shape)
...     dnncore.ops.activation_forward(handle, dnncore.RELU, 1.0, x, 0.0, y)
...     y.numpy()
array([[1., 0.]], dtype=float32)

Importing this package needs NumPy alone: no driver, no compiler, no PyCUDA.
"""

from dnncore import devices, ops
from dnncore.backend import Event
from dnncore.descriptors import (
    ActivationDescriptor,
    ActivationMode,
    BatchNormMode,
    ConvolutionDescriptor,
    ConvolutionMode,
    CrossEntropyDescriptor,
    Layout,
    LRNDescriptor,
    LRNMode,
    PoolingDescriptor,
    PoolingMode,
    SoftmaxAlgorithm,
    SoftmaxMode,
    TensorDescriptor,
)
from dnncore.dtypes import DType
from dnncore.handle import Handle
from dnncore.ops import RELU, SIGMOID, TANH
from dnncore.plan import AlgorithmPerformance, Plan, Preference
from dnncore.tensor import Tensor
from dnncore.version import __version__

__all__ = [
    "RELU",
    "SIGMOID",
    "TANH",
    "ActivationDescriptor",
    "ActivationMode",
    "AlgorithmPerformance",
    "BatchNormMode",
    "ConvolutionDescriptor",
    "ConvolutionMode",
    "CrossEntropyDescriptor",
    "DType",
    "Event",
    "Handle",
    "LRNDescriptor",
    "LRNMode",
    "Layout",
    "Plan",
    "PoolingDescriptor",
    "PoolingMode",
    "Preference",
    "SoftmaxAlgorithm",
    "SoftmaxMode",
    "Tensor",
    "TensorDescriptor",
    "__version__",
    "devices",
    "ops",
]
