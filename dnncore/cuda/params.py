"""Parameter structs of the kernels as NumPy dtypes, and the generated unit that ties each to its C++ twin.

A kernel takes one struct by value. Its dtype is aligned as C++ aligns it (`align=True`); the generated unit asserts that the sizes
agree. Addresses are uint64 fields, pointers on the other side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct

import numpy as np

from dnncore.cuda.unit import Unit
from dnncore.descriptors import MAX_NDIM
from dnncore.dtypes import DType

__all__ = [
    "ADDRESS",
    "BLEND",
    "DIVISOR",
    "ELEMENT_TYPES",
    "FLOATING",
    "FULL_PRECISION",
    "SMALL_DIVISOR",
    "TENSOR_VIEW",
    "Field",
    "c_type",
    "collapse",
    "collapsed",
    "divisor",
    "generate",
    "generate_together",
    "offset_of",
    "packer",
    "record",
    "small_divisor",
    "struct",
    "view",
]

ADDRESS = "<u8"
"""Format of a field that holds a device address; a `T*` in C++."""

DIVISOR = np.dtype([("value", "<i8"), ("magic", "<u8"), ("shift", "<i4")], align=True)
"""`dnncore::Divisor` of common/tensor.cuh; made by `divisor`."""

SMALL_DIVISOR = np.dtype([("value", "<i4"), ("magic", "<u4"), ("shift", "<i4")], align=True)
"""`dnncore::SmallDivisor` of common/tensor.cuh; made by `small_divisor`."""

TENSOR_VIEW = np.dtype([("shape", DIVISOR, MAX_NDIM), ("strides", "<i8", MAX_NDIM), ("ndim", "<i4")], align=True)
"""`dnncore::TensorView` of common/tensor.cuh."""

BLEND = (("alpha", "<f8"), ("beta", "<f8"))
"""The two blending factors, first in every struct: double for every dtype, as `dnncore::blend` takes them."""

FLOATING = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
"""Element types that kernels are compiled for."""

FULL_PRECISION = (DType.FLOAT32, DType.FLOAT64)
"""Those that are computed in as they are stored."""

_C_TYPES = {
    DType.FLOAT16: "float16",
    DType.BFLOAT16: "bfloat16",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.INT8: "int8",
    DType.UINT8: "uint8",
    DType.INT32: "int",
}

_STRUCT_CODES = {"<i4": "i", "<u4": "I", "<i8": "q", "<u8": "Q", "<f8": "d"}
"""Of the module `struct`, by NumPy's names."""

Field = tuple[str, str | np.dtype] | tuple[str, str | np.dtype, int | tuple[int, ...]]


ELEMENT_TYPES = (
    *(DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64),
    *(DType.INT8, DType.UINT8, DType.INT32),
)
"""In the order of `dnncore::ElementType` of common/element.cuh: all but BOOL, which only pointwise.cuh knows."""


def struct(*fields: Field, alignment: int = 0) -> np.dtype:
    """Lay the fields out as C++ does.

    Args:
        fields: Names, formats and lengths.
        alignment: Of the struct, in bytes, where `alignas` says more than its fields do: at its end it is filled up.
    """
    plain = np.dtype(list(fields), align=True)
    if not alignment or plain.fields is None:
        return plain
    formats, offsets = zip(*(plain.fields[name][:2] for name in plain.fields), strict=True)
    nbytes = -(-plain.itemsize // alignment) * alignment
    return np.dtype({"names": list(plain.fields), "formats": formats, "offsets": offsets, "itemsize": nbytes})


def record(dtype: np.dtype, **values: object) -> np.ndarray:
    """Make a zero-dimensional structured array: every field 0 but those given."""
    params: np.ndarray = np.ndarray(
        (), dtype, bytearray(dtype.itemsize)
    )  # `np.zeros` goes through all fields, in four times as long
    for name, value in values.items():
        params[name] = value
    return params


def offset_of(dtype: np.dtype, name: str) -> int:
    """Bytes from a struct's beginning to a field."""
    assert dtype.fields is not None, f"{dtype} is no struct"
    return dtype.fields[name][1]


def packer(dtype: np.dtype) -> Struct:
    """What packs a struct from all its numbers: field by field, arrays and structs in it element by element.

    It takes a tenth of the time that filling in a `record` by names does.
    """
    code, end = "<", 0
    for offset, number in _numbers(dtype, 0):
        code += f"{offset - end}x{_STRUCT_CODES[number.str]}"
        end = offset + number.itemsize
    return Struct(f"{code}{dtype.itemsize - end}x")


def _numbers(dtype: np.dtype, start: int) -> Iterator[tuple[int, np.dtype]]:
    """Where each number of a struct is, in bytes, and its type."""
    if dtype.fields is not None:
        for name in dtype.names or ():
            field, offset = dtype.fields[name][:2]
            yield from _numbers(field, start + offset)
    elif dtype.subdtype is not None:
        element, shape = dtype.subdtype
        for i in range(math.prod(shape)):
            yield from _numbers(element, start + i * element.itemsize)
    else:
        yield start, dtype


@lru_cache(maxsize=1024)  # most are extents, which come again and again
def divisor(value: int) -> tuple[int, int, int]:
    """Fill in a DIVISOR. 0 becomes 1: an empty dimension is never divided by.

    Source: T. Granlund, P. Montgomery, "Division by invariant integers using multiplication", theorem 4.2.
    """
    return _divisor(value, 63)


@lru_cache(maxsize=1024)
def small_divisor(value: int) -> tuple[int, int, int]:
    """Fill in a SMALL_DIVISOR, as `divisor` does."""
    return _divisor(value, 31)


def _divisor(value: int, bits: int) -> tuple[int, int, int]:
    value = max(value, 1)
    shift = (value - 1).bit_length()
    return value, -(-(1 << (bits + shift)) // value), shift


_NO_EXTENTS = (divisor(1),) * MAX_NDIM


_PACKED_VIEW = packer(TENSOR_VIEW)


def view(shape: Sequence[int], strides: Sequence[int]) -> np.void:
    """Fill in a TENSOR_VIEW; the dimensions that are not there have extent 1 and stride 0."""
    missing = MAX_NDIM - len(shape)
    extents = chain.from_iterable([*map(divisor, shape), *_NO_EXTENTS[:missing]])
    packed = _PACKED_VIEW.pack(*extents, *strides, *(0,) * missing, len(shape))
    found: np.void = np.frombuffer(packed, TENSOR_VIEW)[0]
    return found


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Describe the same elements of several tensors with as few dimensions as possible, for element-wise work.

    Dimensions are ordered by the last tensor's strides (the one that is written), slowest first; those of extent 1 go away and
    neighbours that are contiguous in every tensor become one. A tensor without gaps ends as one dimension of stride 1.

    Args:
        shape: Extents, the same for all.
        strides: One sequence per tensor, in elements.

    Returns:
        The new extents, then the new strides of each tensor; at least one dimension.
    """
    axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    axes.sort(key=strides[-1].__getitem__, reverse=True)
    extents: list[int] = []
    steps: list[tuple[int, ...]] = []
    of_axes = list(zip(*strides, strict=True))
    for axis in axes:
        extent, step = shape[axis], of_axes[axis]
        if extents and steps[-1] == tuple([extent * each for each in step]):
            extents[-1] *= extent
            steps[-1] = step
        else:
            extents.append(extent)
            steps.append(step)
    if not extents:
        extents, steps = [1], [(1,) * len(strides)]
    return (tuple(extents), *zip(*steps, strict=True))


collapsed = lru_cache(maxsize=32)(collapse)
"""The same of tuples, for what several algorithms ask of the same tensors, one after the other."""


def c_type(dtype: DType) -> str:
    """The C++ type of an element, in namespace dnncore."""
    return _C_TYPES[dtype]


def generate(
    header: str,
    entry: str,
    function: str,
    struct_name: str,
    dtype: np.dtype,
    threads: int,
    *,
    starts_early: bool = False,
    architectures: tuple[str, ...] = (),
) -> Unit:
    """Generate a unit of one kernel.

    Args:
        header: Where it is: "dnncore/softmax.cuh".
        entry: Name of the `extern "C"` entry, unique among all units of the library.
        function: The `__device__` function template with its arguments, in namespace dnncore: "softmax_forward<float>".
        struct_name: Its parameter struct, in namespace dnncore.
        dtype: That struct's NumPy twin.
        threads: Most threads per block that it is launched with.
        starts_early: Whether its threads wait for the kernel before as the first thing, so that launches of it may start early
            (ptx/early_launch.cuh).
        architectures: See `Unit`.
    """
    units = generate_together(
        header, {entry: function}, struct_name, dtype, threads, starts_early=starts_early, architectures=architectures
    )
    return units[entry]


def generate_together(
    header: str,
    functions: Mapping[str, str],
    struct_name: str,
    dtype: np.dtype,
    threads: int,
    *,
    starts_early: bool = False,
    architectures: tuple[str, ...] = (),
    blocks: int = 1,
) -> dict[str, Unit]:
    """Generate the units of several kernels that are compiled, and loaded, at once; the arguments as of `generate`.

    Args:
        functions: The function behind each entry.
        blocks: That a multiprocessor has registers for, at least.
    """
    include, waiting = "", ""
    if starts_early:
        include, waiting = '#include "dnncore/ptx/early_launch.cuh"\n', "  let_next_start();\n  wait_for_previous();\n"
    # "At least one block per multiprocessor": without it, ptxas spills loop invariants to fit one block more.
    source = (
        f'#include "{header}"\n{include}'
        "using namespace dnncore;\n"
        f'static_assert(sizeof({struct_name}) == {dtype.itemsize}, "dnncore/cuda and {header} disagree");\n'
    ) + "".join(
        f'extern "C" __global__ void __launch_bounds__({threads}, {blocks}) {entry}'
        f"(const __grid_constant__ {struct_name} params) {{\n"
        f"{waiting}  {function}(params);\n}}\n"
        for entry, function in functions.items()
    )
    return {entry: Unit(source, entry, architectures) for entry in functions}
