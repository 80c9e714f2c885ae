"""Element types, and how each maps to NumPy. What a backend can compute with is the backend's to say."""

from __future__ import annotations

from enum import Enum

import ml_dtypes
import numpy as np

from dnncore.errors import BadParamError

__all__ = ["DType"]


class DType(Enum):
    """An element type. Immutable.

    Arithmetic happens in the compute type: float64 for FLOAT64 and INT32, float32 for the others. bfloat16 is ml_dtypes' in NumPy.
    BOOL is a byte, 0 or 1; what is stored in one is whether it is not 0.
    """

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT8 = "int8"
    UINT8 = "uint8"
    INT32 = "int32"
    BOOL = "bool"

    numpy: np.dtype
    """The same type in NumPy, in the machine's byte order."""

    itemsize: int
    """Bytes an element."""

    is_floating: bool
    """Whether arithmetic on it rounds."""

    def __init__(self, name: str) -> None:
        self.numpy = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        self.itemsize = self.numpy.itemsize
        self.is_floating = "float" in name

    __hash__ = object.__hash__  # of one object each; Enum's own is a function of Python's, in every key that there is

    @property
    def compute(self) -> DType:
        """What its arithmetic, alpha and beta included, is done in."""
        return DType.FLOAT64 if self in (DType.FLOAT64, DType.INT32) else DType.FLOAT32

    @classmethod
    def of(cls, value: DType | str | np.dtype | type) -> DType:
        """Return the DType that a name, a NumPy dtype or a NumPy scalar type stands for.

        Raises:
            BadParamError: it stands for none; the message lists those there are.
        """
        if isinstance(value, DType):
            return value
        try:
            return cls(
                value if isinstance(value, str | None) else np.dtype(value).name
            )  # of None NumPy makes a float64
        except (TypeError, ValueError) as error:
            names = ", ".join(member.value for member in cls)
            raise BadParamError(f"dtype {value!r} is not supported; use one of {names}") from error
