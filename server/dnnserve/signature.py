"""What a model reads and gives, and where that lies in a request's block. Plain data, which every process of the server has.

block     input 0   input 1   output 0   output 1           all rows of a tensor, from a multiple of 64 bytes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dnncore.dtypes import DType

__all__ = ["Layout", "Place", "Signature", "TensorSpec"]

_ALIGNMENT = 64
_KEPT_LAYOUTS = 4096


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or an output. Immutable.

    Args:
        name: Unique among the inputs, or among the outputs.
        dtype: Of its elements.
        shape: Of one row: without the batch dimension, which comes first.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def nbytes(self, rows: int) -> int:
        """Of so many rows, rounded up to a multiple of 64."""
        nbytes = rows * math.prod(self.shape) * self.dtype.itemsize
        return nbytes + -nbytes % _ALIGNMENT


class Place(NamedTuple):
    """Where a tensor lies. Immutable.

    Args:
        shape: Of all rows.
        dtype: Of its elements.
        offset: In bytes from the beginning.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int

    def view(self, memory: np.ndarray, offset: int) -> np.ndarray:
        """The tensor in uint8 memory, which it keeps alive; a block begins at this offset."""
        return np.ndarray(self.shape, self.dtype, memory, offset + self.offset)


class Layout(NamedTuple):
    """Where the tensors of a request lie. Immutable.

    Args:
        rows: Of each.
        inputs: In the order of the signature.
        outputs: Behind them, those that are wanted, by their numbers in the signature.
        nbytes: Of all.
        largest_input_bytes: Of the input that has the most.
    """

    rows: int
    inputs: Sequence[Place]
    outputs: Mapping[int, Place]
    nbytes: int
    largest_input_bytes: int


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model, in its order. Immutable.

    What is found out of them stays in this process: one thread may send a signature while others ask for layouts.

    Args:
        inputs: At least one.
        outputs: Likewise.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    _layouts: dict[tuple[int, bool, tuple[int, ...]], Layout] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __reduce__(self) -> tuple[type[Signature], tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]]:
        return Signature, (self.inputs, self.outputs)

    @cached_property
    def pixels(self) -> tuple[TensorSpec, ...]:
        """What stands for the only input where a request brings pixels: uint8 (H, W, C) for float32 (C, H, W)."""
        (image,) = self.inputs
        return (TensorSpec(image.name, DType.UINT8, (*image.shape[1:], image.shape[0])),)

    def read(self, *, pixels: bool) -> tuple[TensorSpec, ...]:
        """What a request brings."""
        return self.pixels if pixels else self.inputs

    @property
    def all_outputs(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(range(len(self.outputs)))

    def layout(self, rows: int, *, pixels: bool, wanted: tuple[int, ...]) -> Layout:
        """Of a request of so many rows, which wants outputs of these numbers; each is found out once."""
        layout = self._layouts.get((rows, pixels, wanted))
        if layout is None:
            read = self.read(pixels=pixels)
            inputs, end = _places(read, rows, 0)
            outputs, end = _places([self.outputs[number] for number in wanted], rows, end)
            largest = max(rows * math.prod(each.shape) * each.dtype.itemsize for each in read)
            layout = Layout(rows, inputs, dict(zip(wanted, outputs, strict=True)), end, largest)
            if len(self._layouts) >= _KEPT_LAYOUTS:
                self._layouts.clear()
            self._layouts[rows, pixels, wanted] = layout
        return layout


def _places(tensors: Sequence[TensorSpec], rows: int, offset: int) -> tuple[Sequence[Place], int]:
    """Places one behind the other, and where they end."""
    places = []
    for tensor in tensors:
        places.append(Place((rows, *tensor.shape), tensor.dtype.numpy, offset))
        offset += tensor.nbytes(rows)
    return places, offset
