"""The NumPy backend: what every other one is measured against, and the one that runs where there is no GPU.

It accumulates in float64 whatever the tensors hold, follows any strides, and is deterministic. Speed comes second.
"""

from dnncore.reference.device import ReferenceDevice

__all__ = ["ReferenceDevice"]
