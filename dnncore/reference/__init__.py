"""The NumPy backend: the place to read what an operation means, and what runs where there is no GPU.

Every operation has an algorithm that accumulates in float64 whatever the tensors hold. Those that nets spend their time in have one
in float32 before it, most often the same function on narrower arrays, a few images or channels at a time. All follow any strides.
"""

from dnncore.reference.device import ReferenceDevice

__all__ = ["ReferenceDevice"]
