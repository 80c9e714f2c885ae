"""What every problem offers, and what their validations share."""

from __future__ import annotations

from typing import ClassVar, Protocol

from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError

__all__ = ["Operands", "Problem", "at_least_2d", "broadcasts", "one_dtype", "same_dtype", "same_shape", "writable"]


class Problem(Protocol):
    """What every operation offers. Implementations are frozen dataclasses: hashable and immutable."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, for messages and documentation."""
        ...

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, also of such as are not asked for at the end."""
        ...

    @property
    def in_place(self) -> frozenset[tuple[str, str]]:
        """Pairs (input, output) that may be the same memory, seen through equal descriptors; no others may share any."""
        ...

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read."""
        ...

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is written."""
        ...

    def __hash__(self) -> int:
        """As of every key of a cache."""
        ...

    @property
    def macs(self) -> int:
        """Multiply-adds of the direct method; 0 where moving the operands is all there is to it."""
        ...


class Operands:
    """Operands that are fields of the same names. Immutable."""

    __slots__ = ()
    input_names: ClassVar[tuple[str, ...]]
    output_names: ClassVar[tuple[str, ...]]
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset()

    @property
    def macs(self) -> int:
        """0: moving the operands is all there is to it."""
        return 0

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read, in the order of `input_names`."""
        return tuple(getattr(self, name) for name in self.input_names)

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is written, in the order of `output_names`."""
        return tuple(getattr(self, name) for name in self.output_names)


def one_dtype(**tensors: TensorDescriptor) -> None:
    """Refuse tensors, given by name, of different element types."""
    (first, a), *rest = tensors.items()
    for name, b in rest:
        if a.dtype is not b.dtype:
            raise BadParamError(f"{first} is {a.dtype.value} but {name} is {b.dtype.value}")


def same_dtype(**tensors: TensorDescriptor) -> None:
    """Refuse tensors, given by name, of different element types, and integers."""
    one_dtype(**tensors)
    first, a = next(iter(tensors.items()))
    if not a.dtype.is_floating:
        raise BadParamError(f"{first} is {a.dtype.value}; a floating-point dtype is needed")


def same_shape(**tensors: TensorDescriptor) -> None:
    """Refuse tensors, given by name, of different shapes."""
    (first, a), *rest = tensors.items()
    for name, b in rest:
        if a.shape != b.shape:
            raise BadParamError(f"{first} has shape {a.shape} but {name} has {b.shape}")


def writable(**tensors: TensorDescriptor) -> None:
    """Refuse outputs, given by name, whose elements may share memory."""
    for name, tensor in tensors.items():
        if tensor.overlaps:
            raise BadParamError(f"{name} ({tensor}) is written, but by its strides elements may share memory")


def at_least_2d(**tensors: TensorDescriptor) -> None:
    """Refuse tensors, given by name, without a batch and a channel dimension."""
    for name, tensor in tensors.items():
        if tensor.ndim < 2:
            raise BadParamError(f"{name} has shape {tensor.shape}; [N, C, ...] is needed")


def broadcasts(small_name: str, small: TensorDescriptor, large_name: str, large: TensorDescriptor) -> None:
    """Refuse a small tensor that does not broadcast to the large one."""
    if small.shape == large.shape:
        return
    if small.ndim != large.ndim or any(
        s not in (1, extent) for s, extent in zip(small.shape, large.shape, strict=True)
    ):
        raise BadParamError(
            f"{small_name} has shape {small.shape}; each extent must be 1 or that of {large_name}, {large.shape}"
        )
