"""Element-wise algorithms over the functions of `elementwise.cuh`: tensors without gaps, long rows, any strides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FULL_PRECISION,
    TENSOR_VIEW,
    c_type,
    collapse,
    divisor,
    generate,
    record,
    struct,
    view,
)
from dnncore.dtypes import DType
from dnncore.problems import Problem

__all__ = ["Elementwise", "elementwise"]

_THREADS = 128
_PACK_BYTES = 16
"""Most that a thread reads or writes at once; sizeof(Pack<T>) in elementwise.cuh."""

_SHORT = 16
"""Rows of fewer elements leave much of their last pack empty."""

_MAX_INPUTS = 3
_INPUTS = tuple(f"input_{i}" for i in range(_MAX_INPUTS))
_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in _INPUTS),
    ("output", ADDRESS),
    ("size", "<i8"),
    ("row_packs", DIVISOR),
    ("views", TENSOR_VIEW, (_MAX_INPUTS,)),
    ("output_view", TENSOR_VIEW),
)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """out = function(inputs), element by element, for one kind of problem. Immutable.

    Args:
        name: "contiguous", 16 bytes at a time; "rows", 16 bytes of a row; or "strided", which takes anything.
        functions: Every function that a problem of this kind may ask for, as `elementwise.cuh` calls it.
        function: Which of them a problem asks for.
    """

    name: str
    functions: tuple[str, ...]
    function: Callable[[Problem], str]
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: Problem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
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
        """One for each function and dtype."""
        return tuple(self._unit(function, dtype) for function in self.functions for dtype in FULL_PRECISION)

    def prepare(self, problem: Problem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        (output,) = problem.outputs
        extents, *strides = _collapsed(problem)
        kernel = device.kernel(self._unit(self.function(problem), output.dtype))
        width = _PACK_BYTES // output.dtype.itemsize
        row_packs = -(-extents[-1] // width)
        params = record(_PARAMS, size=output.size, row_packs=divisor(row_packs), output_view=view(extents, strides[-1]))
        for i, step in enumerate(strides[:-1]):
            params["views"][i] = view(extents, step)
        blocks = {
            "contiguous": blocks_for(output.size, _THREADS * width),
            "rows": blocks_for(math.prod(extents[:-1]) * row_packs, _THREADS),
            "strided": blocks_for(output.size, _THREADS),
        }
        grid = (blocks[self.name], 1, 1)
        return single(kernel, grid, (_THREADS, 1, 1), params, _INPUTS[: len(problem.inputs)], ("output",))

    def _unit(self, function: str, dtype: DType) -> Unit:
        return generate(
            header="dnncore/elementwise.cuh",
            entry=f"elementwise_{self.name}_{function.lower()}_{c_type(dtype)}",
            function=f"elementwise_{self.name}<{c_type(dtype)}, dnncore::{function}>",
            struct_name="ElementwiseParams",
            dtype=_PARAMS,
            threads=_THREADS,
        )


def elementwise(functions: tuple[str, ...], function: Callable[[Problem], str]) -> tuple[Elementwise, ...]:
    """The tuple of algorithms for one kind of problem."""
    return tuple(Elementwise(name, functions, function) for name in ("contiguous", "rows", "strided"))


def _collapsed(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Extents and the strides of each input and of the output, which comes last; an input of extent 1 is broadcast."""
    (output,) = problem.outputs
    strides = (
        tuple(stride if extent != 1 else 0 for extent, stride in zip(tensor.shape, tensor.strides, strict=True))
        for tensor in problem.inputs
    )
    return collapse(output.shape, *strides, output.strides)
