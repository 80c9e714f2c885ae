"""Deep-learning primitives: the job cuDNN does for C, in Python, on CUDA C++ kernels or NumPy.

>>> import numpy as np, dnncore
>>> with dnncore.Handle("cpu") as handle:
...     x = handle.upload(np.array([[1.0, -2.0]], np.float32))
...     y = handle.tensor(x.shape)
...     dnncore.ops.activation_forward(handle, dnncore.RELU, 1.0, x, 0.0, y)
...     y.numpy()
array([[1., 0.]], dtype=float32)

Importing this package needs NumPy alone: no driver, no compiler, no PyCUDA. A name brings in what it needs when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dnncore.version import __version__

if TYPE_CHECKING:
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
        MathType,
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
    "MathType",
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

_HOMES = {
    "dnncore.backend": ("Event",),
    "dnncore.descriptors": (
        "ActivationDescriptor",
        "ActivationMode",
        "BatchNormMode",
        "ConvolutionDescriptor",
        "ConvolutionMode",
        "CrossEntropyDescriptor",
        "LRNDescriptor",
        "LRNMode",
        "Layout",
        "MathType",
        "PoolingDescriptor",
        "PoolingMode",
        "SoftmaxAlgorithm",
        "SoftmaxMode",
        "TensorDescriptor",
    ),
    "dnncore.dtypes": ("DType",),
    "dnncore.handle": ("Handle",),
    "dnncore.ops": ("RELU", "SIGMOID", "TANH"),
    "dnncore.plan": ("AlgorithmPerformance", "Plan", "Preference"),
    "dnncore.tensor": ("Tensor",),
}
"""Where each public name is defined. Its module is imported when the name is first asked for: NumPy alone takes longer to
import than a command line that prints its help should take."""

_MODULES = ("descriptors", "devices", "errors", "functional", "nn", "ops", "problems", "testing")
"""Those that are found without an import of their own."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dnncore.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
