"""Element-wise algorithms over the functions of `elementwise_functions.cuh`: without gaps, broadcast, in rows, of any strides."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FLOATING,
    SMALL_DIVISOR,
    TENSOR_VIEW,
    c_type,
    collapsed,
    divisor,
    generate_together,
    record,
    small_divisor,
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

_MOST_NUMBERED = 2**31 - 1
"""Elements of tensors whose elements are counted in 32 bits."""

_SHORT = 16
"""Rows of fewer elements leave much of their last pack empty."""

_DIMENSIONS = 3
"""Of inputs of which something is broadcast: an outer one, rows and a row's elements."""

_MAX_INPUTS = 3
_INPUTS = tuple(f"input_{i}" for i in range(_MAX_INPUTS))
_SETTINGS = struct(("first", "<f8"), ("second", "<f8"), ("kind", "<i4"))
_STEPS = struct(("outer", "<i4"), ("row", "<i4"), ("element", "<i4"), ("is_whole", "<i4"))
_ROWS = struct(("length", SMALL_DIVISOR), ("inner", SMALL_DIVISOR), ("inputs", _STEPS, (_MAX_INPUTS,)))
_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in _INPUTS),
    ("output", ADDRESS),
    ("size", "<i8"),
    ("row_packs", DIVISOR),
    ("settings", _SETTINGS),
    ("rows", _ROWS),
    ("views", TENSOR_VIEW, (_MAX_INPUTS,)),
    ("output_view", TENSOR_VIEW),
)
BINARY_OPERATORS = (
    *(BinaryOperator.ADD, BinaryOperator.SUB, BinaryOperator.MUL, BinaryOperator.DIV),
    *(BinaryOperator.MIN, BinaryOperator.MAX),
)
"""What there is a kernel for in every floating-point type."""

_FOR_EACH_KIND = ("contiguous", "broadcast")
_FOR_ANY_KIND = ("rows", "strided")
"""Kernels: each kind has its own of those that reach memory's rate; the others know it when they are launched."""

_OF_MEMORY_RATE = {"contiguous": 0.97, "broadcast": 0.97, "rows": 0.65, "strided": 0.54}
"""Of the memory rate [measured on an H200: functions, products by channels, layouts of 51 million elements]."""

_PRODUCTS = {"contiguous": 0, "broadcast": 0, "rows": 55, "strided": 0}
_PRODUCTS_PER_DIMENSION = {"contiguous": 0, "broadcast": 0, "rows": 0, "strided": 85}
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
        tensor.strides
        if tensor.shape == output.shape
        else tuple([stride if extent != 1 else 0 for extent, stride in zip(tensor.shape, tensor.strides, strict=True)])
        for tensor in problem.inputs
    ]
    extents, *strides = collapsed(output.shape, *given, output.strides)
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
        broadcasts: Whether inputs may be smaller than the output.
        refuses: The reason why it does not solve a problem; None where it does.
        is_conditional: Whether its first input is BOOL, whatever the others are.
    """

    name: str
    dtypes: tuple[DType, ...] = FLOATING
    kinds: tuple[Enum | None, ...] = (None,)
    kind: Callable[[Any], Enum | None] = lambda _: None
    settings: Callable[[Any], tuple[float, float]] = lambda _: (0.0, 0.0)
    refuses: Callable[[Any], str | None] = lambda _: None
    broadcasts: bool = False
    is_conditional: bool = False

    @property
    def kernels(self) -> tuple[str, ...]:
        """Those that there are, most specialised first."""
        return tuple(name for name in (*_FOR_EACH_KIND, *_FOR_ANY_KIND) if self.broadcasts or name != "broadcast")

    def kinds_of(self, kernel: str) -> tuple[Enum | None, ...]:
        """What there is a unit of a kernel for; None for all at once."""
        return self.kinds if kernel in _FOR_EACH_KIND else (None,)

    def unit(self, kernel: str, kind: Enum | None, dtype: DType) -> Unit:
        """The unit of one of its kernels, which is compiled with others of the dtype; it takes the kind."""
        return _units(self, kernel in _FOR_EACH_KIND, dtype)[kernel, kind if kernel in _FOR_EACH_KIND else None]


@cache
def _units(function: Function, for_each_kind: bool, dtype: DType) -> dict[tuple[str, Enum | None], Unit]:
    """Those of a function and a dtype, by the kernel and the kind: all that are for each kind, or the others."""
    entries, templates = {}, {}
    for name in function.kernels:
        if (name in _FOR_EACH_KIND) is not for_each_kind:
            continue
        for kind in function.kinds_of(name):
            words = [name, _snake(function.name), *([] if kind is None else [kind.value]), c_type(dtype)]
            entries[name, kind] = entry = "_".join(["elementwise", *words])
            templates[entry] = f"elementwise_{name}<{_template(function, kind, dtype)}>"
    units = generate_together("dnncore/elementwise.cuh", templates, "ElementwiseParams", _PARAMS, _THREADS)
    return {key: units[entry] for key, entry in entries.items()}


def _template(function: Function, kind: Enum | None, dtype: DType) -> str:
    """The C++ type of a function, for one kind; for None of any, if it has several."""
    if kind is not None:
        return f"{function.name}<{c_type(dtype)}, {type(kind).__name__}::{_constant(kind.value)}>"
    if function.kinds == (None,):
        return f"{function.name}<{c_type(dtype)}>"
    return f"AnyOf<{', '.join(_template(function, each, dtype) for each in function.kinds)}>"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _constant(value: str) -> str:
    """What a member of an enumeration is called in C++: kClippedRelu."""
    return "k" + value.title().replace("_", "")


@dataclass(frozen=True, slots=True)
class Elementwise:
    """out = function(inputs), element by element, for one kind of problem. Immutable.

    Args:
        name: "contiguous", 16 bytes at a time; "broadcast", the same of an output in one piece and smaller inputs; "rows", 16 bytes
            of a row; or "strided", which takes anything.
        function: What is computed.
    """

    name: str
    function: Function

    @property
    def of_memory_rate(self) -> float:
        """Share of the memory's rate that no estimate of it exceeds."""
        return _OF_MEMORY_RATE[self.name]

    @property
    def wants_one_order(self) -> bool:
        """Whether what lies side by side in the output must do so in the inputs, or be one element."""
        return self.name in _FOR_EACH_KIND

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
        return self.offer_of(layout_of(problem), problem, figures)

    def offer_of(self, layout: Layout, problem: Problem, figures: DeviceFigures) -> Offer | str:
        """The same for a problem that the function computes, of such a layout."""
        if self.name in ("broadcast", "rows") and layout.extents[-1] < _SHORT:
            return f"rows of {layout.extents[-1]} elements are shorter than {_SHORT}"
        if self.name == "broadcast":
            reason = _why_not_broadcast(layout)
            if reason is not None:
                return reason
        if self.name == "contiguous" and not all(step == (1,) for step in layout.strides):
            return "the tensors have gaps, or their elements are not in the same order"
        products = _PRODUCTS[self.name] + _PRODUCTS_PER_DIMENSION[self.name] * len(layout.extents)
        seconds = max(
            layout.nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE[self.name]),
            math.prod(layout.extents) * products / figures.products_per_second(Maths.FP32),
        )
        return Offer(figures.launch_seconds + seconds, partial(self._prepare, problem, figures, layout))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype, and for each kind where the kernel is fast."""
        function = self.function
        return tuple(
            function.unit(self.name, kind, dtype) for dtype in function.dtypes for kind in function.kinds_of(self.name)
        )

    def _prepare(self, problem: Problem, figures: DeviceFigures, layout: Layout) -> Calls:
        (output,) = problem.outputs
        function = self.function
        width = _PACK_BYTES // output.dtype.itemsize
        row_packs = -(-layout.extents[-1] // width)
        kind = function.kind(problem)
        params = record(
            _PARAMS,
            size=output.size,
            row_packs=divisor(row_packs),
            settings=(*function.settings(problem), function.kinds.index(kind)),
            output_view=view(layout.extents, layout.strides[-1]),
        )
        for i, step in enumerate(layout.strides[:-1]):
            params["views"][i] = view(layout.extents, step)
        if self.name == "broadcast":
            params["rows"] = _rows(layout)
        if self.name == "rows":
            blocks = blocks_for(figures, math.prod(layout.extents[:-1]) * row_packs, _THREADS)
        elif self.name == "strided":
            blocks = blocks_for(figures, output.size, _THREADS)
        else:
            blocks = -(-output.size // (_THREADS * width * _packs_at_once(output.dtype)))
        places = in_order(*_INPUTS[: len(problem.inputs)], "output")
        return kernel_call(function.unit(self.name, kind, output.dtype), blocks, _THREADS, params, places)


def _packs_at_once(dtype: DType) -> int:
    """Of a thread whose output is in one piece; kPacksAtOnce in elementwise.cuh."""
    return 1 if dtype.itemsize == 1 else 2


def _why_not_broadcast(layout: Layout) -> str | None:
    """Why "broadcast" cannot take a layout; None if it can."""
    if len(layout.extents) > _DIMENSIONS:
        return f"there are more than {_DIMENSIONS} dimensions that do not lie together"
    *inputs, output = layout.strides
    if not _is_whole(layout, output):
        return "the output has gaps"
    if any(steps[-1] not in (0, 1) for steps in inputs):
        return "an input's elements do not lie side by side"
    spans = (sum((n - 1) * step for n, step in zip(layout.extents, steps, strict=True)) for steps in layout.strides)
    if max(spans) >= _MOST_NUMBERED:
        return f"it counts {_MOST_NUMBERED} elements at most"
    return None


def _is_whole(layout: Layout, steps: tuple[int, ...]) -> bool:
    """Whether a tensor lies in one piece, in the order of the dimensions."""
    return all(step == math.prod(layout.extents[axis + 1 :]) for axis, step in enumerate(steps))


def _rows(layout: Layout) -> np.ndarray:
    """Fill in a _ROWS for a layout of up to three dimensions."""
    missing = _DIMENSIONS - len(layout.extents)
    *_, inner, length = (1,) * missing + layout.extents
    rows = record(_ROWS, length=small_divisor(length), inner=small_divisor(inner))
    for i, steps in enumerate(layout.strides[:-1]):
        rows["inputs"][i] = (*(0,) * missing, *steps, _is_whole(layout, steps))
    return rows


def elementwise(function: Function) -> tuple[Elementwise, ...]:
    """The algorithms for the kind of problem that a function solves, most specialised first."""
    return tuple(Elementwise(name, function) for name in function.kernels)
