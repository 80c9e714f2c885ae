"""Element-wise algorithms over the functions of `elementwise.cuh`: tensors without gaps, long rows, any strides."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
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
from dnncore.cuda.traffic import touched_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import BinaryOperator, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import Problem

__all__ = ["BINARY_OPERATORS", "Elementwise", "Function", "Layout", "elementwise", "layout_of"]

_THREADS = 128
_PACK_BYTES = 16
"""Most that a thread reads or writes at once; sizeof(Pack<T>) in elementwise.cuh."""

_MOST_BLOCKS = 2**31 - 1
"""Of a launch."""

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
BINARY_OPERATORS = (
    *(BinaryOperator.ADD, BinaryOperator.SUB, BinaryOperator.MUL, BinaryOperator.DIV),
    *(BinaryOperator.MIN, BinaryOperator.MAX),
)
"""`dnncore::BinaryOperator`: what there is a kernel for in every floating-point type."""

_KERNELS = ("contiguous", "rows", "strided")

_OF_MEMORY_RATE = {"contiguous": 0.88, "rows": 0.65, "strided": 0.54}
"""Of the memory rate [measured on an H200: ReLU, layouts, broadcasts of 51 million elements in fp16, fp32 and fp64]."""

_PRODUCTS = {"contiguous": 0, "rows": 55, "strided": 0}
_PRODUCTS_PER_DIMENSION = {"contiguous": 0, "rows": 0, "strided": 85}
"""Multiply-adds in whose time the device takes an element, at least [measured likewise]."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The operands of an element-wise problem, described with as few dimensions as possible. Immutable.

    Args:
        extents: Of the output, slowest first; at least one.
        strides: Of each input and of the output, in elements; 0 where an input is broadcast.
        nbytes: That are moved when a block takes elements of the output that lie side by side, 16 bytes per thread.
    """

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    nbytes: int


@lru_cache(maxsize=16)
def layout_of(problem: Problem) -> Layout:
    """That of a problem whose inputs broadcast to its one output; once for all algorithms that are asked one after the other."""
    (output,) = problem.outputs
    given = [
        [stride if extent != 1 else 0 for extent, stride in zip(tensor.shape, tensor.strides, strict=True)]
        for tensor in problem.inputs
    ]
    extents, *strides = collapse(output.shape, *given, output.strides)
    nbytes = 0
    for tensor, steps in zip((*problem.inputs, output), strides, strict=True):
        itemsize = tensor.dtype.itemsize
        # Of what lies side by side in the tensor, a block takes as much as lies together in its piece of the output.
        inner = math.prod(extents[steps.index(1) + 1 :]) if 1 in steps else output.size
        sharing = _THREADS * _PACK_BYTES // itemsize // max(inner, 1)
        nbytes += touched_bytes(tensor.size, itemsize, steps[-1], sharing)
    return Layout(extents, tuple(strides), nbytes)


@dataclass(frozen=True, slots=True)
class Function:
    """One of the functions of `elementwise.cuh`. Immutable.

    Args:
        name: As it is called there.
        dtypes: Element types that it is compiled for.
        settings: What a problem sets: two numbers and a mode, whose meaning the function knows.
        refuses: The reason why it does not solve a problem; None where it does.
        is_conditional: Whether its first input is BOOL, whatever the others are.
        computes: Whether there is much to compute; kComputes there.
    """

    name: str
    dtypes: tuple[DType, ...] = FLOATING
    settings: Callable[[Any], tuple[float, float, int]] = lambda _: (0.0, 0.0, 0)
    refuses: Callable[[Any], str | None] = lambda _: None
    is_conditional: bool = False
    computes: bool = False

    def packs_at_once(self, dtype: DType) -> int | None:
        """Of a thread that takes whole tensors, all that it has; None where it has one after the other; kTakesTurns there."""
        if dtype.itemsize < 4:
            return 1
        return None if self.computes else 2

    def unit(self, kernel: str, dtype: DType) -> Unit:
        """The unit of one of its kernels; all of a dtype are compiled together."""
        return _units(self.name, dtype)[kernel]


@cache
def _units(function: str, dtype: DType) -> dict[str, Unit]:
    """Those of a function and a dtype, by the kernels."""
    entries = {name: f"elementwise_{name}_{_snake(function)}_{c_type(dtype)}" for name in _KERNELS}
    units = generate_together(
        "dnncore/elementwise.cuh",
        {entry: f"elementwise_{name}<{c_type(dtype)}, {function}>" for name, entry in entries.items()},
        "ElementwiseParams",
        _PARAMS,
        _THREADS,
    )
    return {name: units[entry] for name, entry in entries.items()}


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

    @property
    def of_memory_rate(self) -> float:
        """Share of the memory's rate that no estimate of it exceeds."""
        return _OF_MEMORY_RATE[self.name]

    def offer(self, problem: Problem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        inputs = problem.inputs[1:] if self.function.is_conditional else problem.inputs
        dtypes = [tensor.dtype for tensor in (*inputs, *problem.outputs)]
        if dtypes[0] not in self.function.dtypes or dtypes.count(dtypes[0]) < len(dtypes):
            return f"{', '.join(sorted({dtype.value for dtype in dtypes}))}: it takes one of " + ", ".join(
                dtype.value for dtype in self.function.dtypes
            )
        reason = self.function.refuses(problem)
        if reason is not None:
            return reason
        layout = layout_of(problem)
        if self.name == "rows" and layout.extents[-1] < _SHORT:
            return f"rows of {layout.extents[-1]} elements are shorter than {_SHORT}"
        if self.name == "contiguous" and not all(step == (1,) for step in layout.strides):
            return "the tensors have gaps, or their elements are not in the same order"
        products = _PRODUCTS[self.name] + _PRODUCTS_PER_DIMENSION[self.name] * len(layout.extents)
        seconds = max(
            layout.nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE[self.name]),
            math.prod(layout.extents) * products / figures.products_per_second(Maths.FP32),
        )
        return Offer(figures.launch_seconds + seconds, partial(self._prepare, problem, figures, layout))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self.function.unit(self.name, dtype) for dtype in self.function.dtypes)

    def _prepare(self, problem: Problem, figures: DeviceFigures, layout: Layout) -> Calls:
        (output,) = problem.outputs
        extents, strides = layout.extents, layout.strides
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
            "contiguous": self._blocks_of_whole(output, figures, _THREADS * width),
            "rows": blocks_for(figures, math.prod(extents[:-1]) * row_packs, _THREADS),
            "strided": blocks_for(figures, output.size, _THREADS),
        }
        places = in_order(*_INPUTS[: len(problem.inputs)], "output")
        return kernel_call(self.function.unit(self.name, output.dtype), blocks[self.name], _THREADS, params, places)

    def _blocks_of_whole(self, output: TensorDescriptor, figures: DeviceFigures, per_turn: int) -> int:
        """Of a launch whose blocks take so many elements of a whole tensor for each pack that a thread has."""
        packs = self.function.packs_at_once(output.dtype)
        if packs is None:
            return blocks_for(figures, output.size, per_turn)
        return min(-(-output.size // (per_turn * packs)), _MOST_BLOCKS)


def elementwise(function: Function) -> tuple[Elementwise, ...]:
    """The algorithms for the kind of problem that a function solves, most specialised first."""
    return tuple(Elementwise(name, function) for name in _KERNELS)
