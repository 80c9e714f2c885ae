"""Element types, and how each maps to NumPy. What a backend can compute with is the backend's to say."""

from __future__ import annotations

from enum import Enum

import numpy as np

from dnncore.errors import BadParamError

__all__ = ["DType"]


class DType(Enum):
    """An element type. Immutable."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32 = "int32"

    @property
    def numpy(self) -> np.dtype:
        """The same type in NumPy, in the machine's byte order."""
        return np.dtype(self.value)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return self.numpy.itemsize

    @property
    def is_floating(self) -> bool:
        """Whether arithmetic on it rounds."""
        return self is not DType.INT32

    @classmethod
    def of(cls, value: DType | str | np.dtype | type) -> DType:
        """Return the DType that a name, a NumPy dtype or a NumPy scalar type stands for.

        Raises:
            BadParamError: it stands for none; the message lists those there are.
        """
        if isinstance(value, DType):
            return value
        try:
            return cls(np.dtype(value).name)
        except (TypeError, ValueError) as error:
            names = ", ".join(member.value for member in cls)
            raise BadParamError(f"dtype {value!r} is not supported; use one of {names}") from error
