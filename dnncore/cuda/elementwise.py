"""Element-wise algorithms over the functions of `elementwise_functions.cuh`: tensors without gaps, long rows, any strides."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache, partial
from itertools import product
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
from dnncore.descriptors import BinaryOperator
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import Problem

__all__ = ["BINARY_OPERATORS", "Elementwise", "Function", "Layout", "elementwise", "layout_of"]

_THREADS = 128
_PACK_BYTES = 16
"""Most that a thread reads or writes at once; sizeof(Pack<T>) in elementwise.cuh."""

_PACKS_AT_ONCE = 2
"""Of a thread that takes whole tensors; kPacksAtOnce there."""

_MOST_NUMBERED = 2**31 - 1
"""Elements in rows, whose numbers have 32 bits."""

_SHORT = 16
"""Rows of fewer elements leave much of their last pack empty."""

_MAX_INPUTS = 3
_INPUTS = tuple(f"input_{i}" for i in range(_MAX_INPUTS))
_SETTINGS = struct(("first", "<f8"), ("second", "<f8"))
_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in _INPUTS),
    ("output", ADDRESS),
    ("size", "<i8"),
    ("packs", "<i4"),
    ("row", DIVISOR),
    ("settings", _SETTINGS),
    ("views", TENSOR_VIEW, (_MAX_INPUTS,)),
    ("output_view", TENSOR_VIEW),
)
BINARY_OPERATORS = (
    *(BinaryOperator.ADD, BinaryOperator.SUB, BinaryOperator.MUL, BinaryOperator.DIV),
    *(BinaryOperator.MIN, BinaryOperator.MAX),
)
"""What there is a kernel for in every floating-point type."""

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
    given = (
        tuple(stride if extent != 1 else 0 for extent, stride in zip(tensor.shape, tensor.strides, strict=True))
        for tensor in problem.inputs
    )
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
    """One of the functions of `elementwise_functions.cuh`, or one for each operator or mode. Immutable.

    Args:
        name: As it is called there.
        dtypes: Element types that it is compiled for.
        kinds: What of it there is a kernel of its own for: an enumeration's members, which have the same names there.
        kind: Which one a problem asks for.
        settings: What a problem sets: two numbers, whose meaning the function knows.
        refuses: The reason why it does not solve a problem; None where it does.
        is_conditional: Whether its first input is BOOL, whatever the others are.
    """

    name: str
    dtypes: tuple[DType, ...] = FLOATING
    kinds: tuple[Enum | None, ...] = (None,)
    kind: Callable[[Any], Enum | None] = lambda _: None
    settings: Callable[[Any], tuple[float, float]] = lambda _: (0.0, 0.0)
    refuses: Callable[[Any], str | None] = lambda _: None
    is_conditional: bool = False

    def unit(self, kernel: str, kind: Enum | None, dtype: DType) -> Unit:
        """The unit of one of its kernels; all of a dtype are compiled together."""
        return _units(self.name, self.kinds, dtype)[kernel, kind]


@cache
def _units(function: str, kinds: tuple[Enum | None, ...], dtype: DType) -> dict[tuple[str, Enum | None], Unit]:
    """Those of a function and a dtype, by the kernel and the kind."""
    entries, templates = {}, {}
    for name, kind in product(_KERNELS, kinds):
        words = [name, _snake(function), *([] if kind is None else [kind.value]), c_type(dtype)]
        arguments = [c_type(dtype), *([] if kind is None else [f"{type(kind).__name__}::{_constant(kind.value)}"])]
        entries[name, kind] = entry = "_".join(["elementwise", *words])
        templates[entry] = f"elementwise_{name}<{function}<{', '.join(arguments)}>>"
    units = generate_together("dnncore/elementwise.cuh", templates, "ElementwiseParams", _PARAMS, _THREADS)
    return {key: units[entry] for key, entry in entries.items()}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _constant(value: str) -> str:
    """What a member of an enumeration is called in C++: kClippedRelu."""
    return "k" + value.title().replace("_", "")


@dataclass(frozen=True, slots=True)
class Elementwise:
    """out = function(inputs), element by element, for one kind of problem. Immutable.

    Args:
        name: "contiguous", 16 bytes at a time; "rows", 16 bytes of a row; or "strided", which takes anything.
        function: What is computed.
    """

    name: str
    function: Function

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
        width = _PACK_BYTES // dtypes[0].itemsize
        if self.name == "rows" and _Rows.of(layout, width).packs * width > _MOST_NUMBERED:
            return f"it counts {_MOST_NUMBERED} elements at most"
        if self.name == "contiguous" and not all(step == (1,) for step in layout.strides):
            return "the tensors have gaps, or their elements are not in the same order"
        products = _PRODUCTS[self.name] + _PRODUCTS_PER_DIMENSION[self.name] * len(layout.extents)
        seconds = max(
            layout.nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE[self.name]),
            math.prod(layout.extents) * products / figures.products_per_second(Maths.FP32),
        )
        return Offer(figures.launch_seconds + seconds, partial(self._prepare, problem, figures, layout))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype and kind."""
        function = self.function
        return tuple(function.unit(self.name, kind, dtype) for dtype in function.dtypes for kind in function.kinds)

    def _prepare(self, problem: Problem, figures: DeviceFigures, layout: Layout) -> Calls:
        (output,) = problem.outputs
        width = _PACK_BYTES // output.dtype.itemsize
        rows = _Rows.of(layout, width)
        params = record(
            _PARAMS,
            size=output.size,
            packs=rows.packs if self.name == "rows" else 0,
            row=divisor(rows.pitch),
            settings=self.function.settings(problem),
            output_view=view(layout.extents, layout.strides[-1]),
        )
        for i, step in enumerate(layout.strides[:-1]):
            params["views"][i] = view(layout.extents, step)
        blocks = {
            "contiguous": -(-output.size // (_THREADS * width * _PACKS_AT_ONCE)),
            "rows": -(-rows.packs // _THREADS),
            "strided": blocks_for(figures, output.size, _THREADS),
        }
        places = in_order(*_INPUTS[: len(problem.inputs)], "output")
        unit = self.function.unit(self.name, self.function.kind(problem), output.dtype)
        return kernel_call(unit, blocks[self.name], _THREADS, params, places)


@dataclass(frozen=True, slots=True)
class _Rows:
    """How the output is cut into packs. Immutable.

    Args:
        pitch: Elements from the first pack of a row to that of the next: the last dimension, up to whole packs unless the output is
            whole; in that packs lie in two rows.
        packs: How many there are.
    """

    pitch: int
    packs: int

    @classmethod
    def of(cls, layout: Layout, width: int) -> _Rows:
        """Those of so many elements."""
        *outer, length = layout.extents
        whole = all(step == math.prod(layout.extents[axis + 1 :]) for axis, step in enumerate(layout.strides[-1]))
        pitch = length if whole else -(-length // width) * width
        return cls(pitch, -(-math.prod(outer) * pitch // width))


def elementwise(function: Function) -> tuple[Elementwise, ...]:
    """The algorithms for the kind of problem that a function solves, most specialised first."""
    return tuple(Elementwise(name, function) for name in _KERNELS)
