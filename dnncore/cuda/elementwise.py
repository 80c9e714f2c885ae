"""Element-wise algorithms over the functions of `elementwise.cuh`: tensors without gaps, long rows, any strides."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FLOATING,
    TENSOR_VIEW,
    c_type,
    collapse,
    divisor,
    generate_together,
    record,
    struct,
    view,
)
from dnncore.dtypes import DType
from dnncore.problems import Problem

__all__ = ["Elementwise", "Function", "elementwise"]

_THREADS = 128
_PACK_BYTES = 16
"""Most that a thread reads or writes at once; sizeof(Pack<T>) in elementwise.cuh."""

_SHORT = 16
"""Rows of fewer elements leave much of their last pack empty."""

_MAX_INPUTS = 3
_INPUTS = tuple(f"input_{i}" for i in range(_MAX_INPUTS))
_SETTINGS = struct(("first", "<f8"), ("second", "<f8"), ("mode", "<i4"))
_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in _INPUTS),
    ("output", ADDRESS),
    ("size", "<i8"),
    ("row_packs", DIVISOR),
    ("settings", _SETTINGS),
    ("views", TENSOR_VIEW, (_MAX_INPUTS,)),
    ("output_view", TENSOR_VIEW),
)
_KERNELS = ("contiguous", "rows", "strided")


@dataclass(frozen=True, slots=True)
class Function:
    """One of the functions of `elementwise.cuh`. Immutable.

    Args:
        name: As it is called there.
        dtypes: Element types that it is compiled for.
        settings: What a problem sets: two numbers and a mode, whose meaning the function knows.
    """

    name: str
    dtypes: tuple[DType, ...] = FLOATING
    settings: Callable[[Any], tuple[float, float, int]] = lambda _: (0.0, 0.0, 0)

    def unit(self, kernel: str, dtype: DType) -> Unit:
        """The unit of one of its kernels; all of a dtype are compiled together."""
        entries = {name: f"elementwise_{name}_{_snake(self.name)}_{c_type(dtype)}" for name in _KERNELS}
        units = generate_together(
            "dnncore/elementwise.cuh",
            {entry: f"elementwise_{name}<{c_type(dtype)}, {self.name}>" for name, entry in entries.items()},
            "ElementwiseParams",
            _PARAMS,
            _THREADS,
        )
        return units[entries[kernel]]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


@dataclass(frozen=True, slots=True)
class Elementwise:
    """out = function(inputs), element by element, for one kind of problem. Immutable.

    Args:
        name: "contiguous", 16 bytes at a time; "rows", 16 bytes of a row; or "strided", which takes anything.
        function: What is computed.
    """

    name: str
    function: Function
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: Problem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        dtypes = {tensor.dtype for tensor in (*problem.inputs, *problem.outputs)}
        if len(dtypes) > 1 or not dtypes <= set(self.function.dtypes):
            return f"{', '.join(sorted(dtype.value for dtype in dtypes))}: it takes one of " + ", ".join(
                dtype.value for dtype in self.function.dtypes
            )
        if self.name == "strided":
            return None
        extents, *strides = _collapsed(problem)
        if self.name == "rows":
            return None if extents[-1] >= _SHORT else f"rows of {extents[-1]} elements are shorter than {_SHORT}"
        if len(extents) == 1 and all(step == (1,) for step in strides):
            return None
        return "the tensors have gaps, or their elements are not in the same order"

    def workspace_bytes(self, problem: Problem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self.function.unit(self.name, dtype) for dtype in self.function.dtypes)

    def prepare(self, problem: Problem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        (output,) = problem.outputs
        extents, *strides = _collapsed(problem)
        kernel = device.kernel(self.function.unit(self.name, output.dtype))
        width = _PACK_BYTES // output.dtype.itemsize
        row_packs = -(-extents[-1] // width)
        params = record(
            _PARAMS,
            size=output.size,
            row_packs=divisor(row_packs),
            settings=self.function.settings(problem),
            output_view=view(extents, strides[-1]),
        )
        for i, step in enumerate(strides[:-1]):
            params["views"][i] = view(extents, step)
        blocks = {
            "contiguous": blocks_for(output.size, _THREADS * width),
            "rows": blocks_for(math.prod(extents[:-1]) * row_packs, _THREADS),
            "strided": blocks_for(output.size, _THREADS),
        }
        grid = (blocks[self.name], 1, 1)
        return single(kernel, grid, (_THREADS, 1, 1), params, _INPUTS[: len(problem.inputs)], ("output",))


def elementwise(function: Function) -> tuple[Elementwise, ...]:
    """The algorithms for the kind of problem that a function solves, most specialised first."""
    return tuple(Elementwise(name, function) for name in _KERNELS)


def _collapsed(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Extents and the strides of each input and of the output, which comes last; an input of extent 1 is broadcast."""
    (output,) = problem.outputs
    strides = (
        tuple(stride if extent != 1 else 0 for extent, stride in zip(tensor.shape, tensor.strides, strict=True))
        for tensor in problem.inputs
    )
    return collapse(output.shape, *strides, output.strides)
