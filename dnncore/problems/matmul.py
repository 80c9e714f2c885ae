"""The matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.problems.problem import Operands, same_dtype, writable

__all__ = ["MatmulProblem"]


@dataclass(frozen=True, slots=True)
class MatmulProblem(Operands):
    """c [M, N] = a [M, K] times b [K, N]; a transposed operand is one whose descriptor is transposed."""

    a: TensorDescriptor
    b: TensorDescriptor
    c: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("a", "b")
    output_names: ClassVar[tuple[str, ...]] = ("c",)

    def __post_init__(self) -> None:
        same_dtype(a=self.a, b=self.b, c=self.c)
        if not self.a.ndim == self.b.ndim == self.c.ndim == 2:
            raise BadParamError(f"a {self.a.shape}, b {self.b.shape} and c {self.c.shape} must have 2 dimensions each")
        if self.a.shape[1] != self.b.shape[0]:
            raise BadParamError(f"a has {self.a.shape[1]} columns but b has {self.b.shape[0]} rows")
        if self.c.shape != (self.a.shape[0], self.b.shape[1]):
            raise BadParamError(
                f"c has shape {self.c.shape} but a {self.a.shape} and b {self.b.shape} disagree with it"
            )
        writable(c=self.c)

    @property
    def macs(self) -> int:
        """M N K."""
        return self.c.size * self.a.shape[1]
