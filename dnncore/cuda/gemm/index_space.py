"""A convolution or a matrix product as C[row, column] = sum of A[row, k] * B[column, k]: which dimensions make up column and k.

`column` and `k` are mixed-radix numbers whose digits are dimensions of the tensors, and every address is a sum of digit * stride.
The structs of include/dnncore/gemm/params.cuh hold what is decided here. Pure: nothing knows of a device.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from dnncore.descriptors import ActivationDescriptor
from dnncore.descriptors.settings import settle
from dnncore.dtypes import DType

__all__ = [
    "MAX_COORDINATES",
    "MAX_DIGITS",
    "Digit",
    "Epilogue",
    "Extents",
    "Outline",
    "Phase",
    "Product",
    "length",
    "simplified",
]

MAX_DIGITS = 4
MAX_COORDINATES = 3
_INDEX_LIMIT = 2**31 - 2**12
"""Rows, columns and reduction count in 32 bits; the kernel looks a few slabs and up to 512 entries past the end."""

_COORDINATE_LIMIT = 2**31 - 2**20
"""Spatial coordinates are added up in 32 bits, those of a column to those of a reduction index."""

_OFFSET_LIMIT = 2**62


class Digit(NamedTuple):
    """One dimension of the column or of the reduction. Immutable.

    Args:
        extent: Its size.
        b_stride: Elements of B per step.
        other_stride: Elements per step of C, for a digit of the column, or of A, for one of the reduction.
        steps: By how much a step moves each spatial coordinate of B; empty where nothing can be out of bounds.
    """

    extent: int
    b_stride: int
    other_stride: int
    steps: tuple[int, ...] = ()


def simplified(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """Order the digits, fastest first, so that neighbours are dense in B; drop those of extent 1 and join what can be joined.

    Digits of which one has extent 0 become none: nothing is there to count.
    """
    # By how far neighbours are apart, first of all in B; of equal ones the first given first.
    counted = []
    for place, digit in enumerate(digits):
        extent, b_stride, other_stride, _ = digit
        if extent != 1:
            b_distance = b_stride if b_stride >= 0 else -b_stride
            counted.append((b_distance, other_stride if other_stride >= 0 else -other_stride, place, digit))
    counted.sort()
    result: list[Digit] = []
    for _, _, _, digit in counted:
        if digit.extent == 0:
            return ()
        if result:
            extent, b_stride, other_stride, steps = result[-1]
            goes_on = digit.b_stride == extent * b_stride and digit.other_stride == extent * other_stride
            if goes_on and digit.steps == tuple([extent * step for step in steps]):  # the two count like one
                result[-1] = Digit(extent * digit.extent, b_stride, other_stride, steps)
                continue
        result.append(digit)
    return tuple(result)


def length(digits: Iterable[Digit]) -> int:
    """How many numbers the digits count."""
    return math.prod([digit.extent for digit in digits])


class Phase(NamedTuple):
    """One dense product. Immutable.

    Args:
        column: Digits of the column, fastest first.
        reduction: Digits of the reduction, fastest first.
        num_columns: How many columns there are.
        reduction_length: How many products are added; 0 leaves beta * C.
        a_offset: Elements from the address of A to its first one.
        b_offset: The same for B; negative where the first one lies in the padding.
        c_offset: The same for C.
        first: B's spatial coordinates where every digit is 0.
    """

    column: tuple[Digit, ...]
    reduction: tuple[Digit, ...]
    num_columns: int
    reduction_length: int
    a_offset: int = 0
    b_offset: int = 0
    c_offset: int = 0
    first: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        column: Sequence[Digit],
        reduction: Sequence[Digit],
        *,
        a_offset: int = 0,
        b_offset: int = 0,
        c_offset: int = 0,
        first: tuple[int, ...] = (),
    ) -> Phase:
        """Build one from digits as the operation has them."""
        columns, summands = length(column), length(reduction)
        return cls(simplified(column), simplified(reduction), columns, summands, a_offset, b_offset, c_offset, first)


class Extents(NamedTuple):
    """How large a product is, wherever its operands lie. Immutable.

    Args:
        dtype: Element type of A and B.
        rows: Rows of A and C, in a group.
        groups: Independent products.
        phases: Of each dense product its columns and its summands.
    """

    dtype: DType
    rows: int
    groups: int
    phases: tuple[tuple[int, int], ...]

    @property
    def longest_sum(self) -> int:
        """Products in the longest sum."""
        longest = 0
        for _, summands in self.phases:
            if summands > longest:
                longest = summands
        return longest

    @property
    def sum_dtype(self) -> DType:
        """What products are added up in: the compute type; int32 where they are of int8."""
        return DType.INT32 if self.dtype is DType.INT8 else self.dtype.compute

    @property
    def elements(self) -> int:
        """Of C."""
        return self.groups * self.rows * sum([columns for columns, _ in self.phases])


class Outline(NamedTuple):
    """What is known of a product before it is made, which takes longer than all else that a bound is made of. Immutable.

    Args:
        extents: How large it is.
        may_read_vectors: Whether A and B can be read 16 bytes at a time as far as anybody knows (`vectors.vector_walks`).
        column_runs: Where the fastest digit of columns is known to count neighbours of C: what its extent may be.
    """

    extents: Extents
    may_read_vectors: bool
    column_runs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What a row's sum becomes before it is blended: activation(alpha1 * sum * scale[row] + bias[row] + alpha2 * z). Immutable.

    Rows count through the groups; z is laid out as C. Of scale, bias and z those are there that the product's `inputs` name.

    Args:
        alpha1: Factor of the sum.
        alpha2: Factor of z; with 0 z is not read.
        activation: None for the identity.
        scale_stride: Elements of scale per row.
        bias_stride: The same for bias.
        widened: Whether scale and bias are stored in the compute type.
    """

    alpha1: float
    alpha2: float
    activation: ActivationDescriptor | None
    scale_stride: int = 0
    bias_stride: int = 0
    widened: bool = False


@dataclass(frozen=True, slots=True)
class Product:
    """Everything that a tiled kernel computes. Immutable.

    Hashes are made for dictionaries with few products.

    Args:
        dtype: Element type of A and B.
        rows: Rows of A and C, in a group.
        a_row_stride: Elements from one row of A to the next.
        c_row_stride: The same for C.
        groups: Independent products with the same digits.
        a_group_stride: Elements from one group's A to the next one's.
        b_group_stride: The same for B.
        c_group_stride: The same for C.
        bounds: B's spatial extents; outside them B is 0. Empty where nothing is out of bounds.
        phases: The dense products; together they write each element of C once.
        inputs: What the problem's inputs are, in its order: "a", "b"; of an epilogue also "scale", "bias", "z".
        epilogue: What is done before blending, in a product of one phase.
        output: Element type of C; None for that of A and B, which it must be unless they are int8.

    Attributes:
        extents: How large it is.
        num_columns: Columns of the phase that has most; 0 when the output is empty.
        longest_sum: Products in the longest sum.
        num_digits: Most digits of any number in it.
        reach: Elements, more than offsets from a phase's start can have, but for rows of A.
        fits_32_bit_offsets: Whether no offset into A or B, in a group and from its phase's start, can leave 32 bits.
    """

    dtype: DType
    rows: int
    a_row_stride: int
    c_row_stride: int
    groups: int
    a_group_stride: int
    b_group_stride: int
    c_group_stride: int
    bounds: tuple[int, ...]
    phases: tuple[Phase, ...]
    inputs: tuple[str, ...]
    epilogue: Epilogue | None = None
    output: DType | None = None
    extents: Extents = field(init=False, repr=False, compare=False)
    num_columns: int = field(init=False, repr=False, compare=False)
    longest_sum: int = field(init=False, repr=False, compare=False)
    num_digits: int = field(init=False, repr=False, compare=False)
    reach: int = field(init=False, repr=False, compare=False)
    fits_32_bit_offsets: bool = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return self._hash

    def __post_init__(self) -> None:
        # What every choice of a kernel asks for.
        phases = tuple([(phase.num_columns, phase.reduction_length) for phase in self.phases])
        num_columns, longest_sum = map(max, zip((0, 0), *phases, strict=True))
        digits = [phase.column for phase in self.phases] + [phase.reduction for phase in self.phases]
        reach = 0
        for phase in self.phases:
            of_phase = 0
            for extent, stride, other, _ in (*phase.column, *phase.reduction):
                of_phase += extent * max(stride, -stride, other, -other)
            if of_phase > reach:
                reach = of_phase
        rows = (self.rows - 1) * abs(self.a_row_stride)
        settle(
            self,
            extents=Extents(self.dtype, self.rows, self.groups, phases),
            num_columns=num_columns,
            longest_sum=longest_sum,
            num_digits=max(map(len, digits), default=0),
            reach=reach,
            fits_32_bit_offsets=rows + reach < 2**31 or self._fits(rows, 2**31),
            _hash=hash((self.rows, self.a_row_stride, self.c_row_stride, self.groups, num_columns, longest_sum)),
        )

    def _fits(self, rows: int, limit: int) -> bool:
        """Whether no offset into A, beside so many for its rows, or into B is as large as a limit."""
        return all(
            rows + sum((extent - 1) * abs(stride) for extent, _, stride, _ in phase.reduction) < limit
            and sum((extent - 1) * abs(stride) for extent, stride, _, _ in (*phase.column, *phase.reduction)) < limit
            for phase in self.phases
        )

    @property
    def sum_dtype(self) -> DType:
        """What products are added up in: the compute type; int32 where they are of int8."""
        return self.extents.sum_dtype

    @property
    def is_wide(self) -> bool:
        """Whether C is in float32 and the operands in 16 bits: kernels that multiply, and those that add up parts, can store it."""
        return self.output is DType.FLOAT32 and self.dtype in (DType.FLOAT16, DType.BFLOAT16)

    @property
    def is_empty(self) -> bool:
        """Whether C has no elements."""
        return self.rows == 0 or self.groups == 0 or self.num_columns == 0

    def partial_sums(self) -> Product:
        """The same with a C that holds packed [group][row][column], the sums before any epilogue; one phase."""
        (phase,) = self.phases
        strides = accumulate((digit.extent for digit in phase.column), operator.mul, initial=1)
        column = tuple(
            Digit(digit.extent, digit.b_stride, stride, digit.steps)
            for digit, stride in zip(phase.column, strides, strict=False)
        )
        return Product(
            dtype=self.dtype,
            rows=self.rows,
            a_row_stride=self.a_row_stride,
            c_row_stride=self.num_columns,
            groups=self.groups,
            a_group_stride=self.a_group_stride,
            b_group_stride=self.b_group_stride,
            c_group_stride=self.rows * self.num_columns,
            bounds=self.bounds,
            phases=(phase._replace(column=column, c_offset=0),),
            inputs=self.inputs,
            output=self.sum_dtype,
        )

    def why_not_tiled(self) -> str | None:
        """None when the kernels' structs can hold it, else the reason why not."""
        if self.num_digits > MAX_DIGITS or len(self.bounds) > MAX_COORDINATES:
            return (
                f"{self.num_digits} dimensions in one index, {len(self.bounds)} of them padded; "
                f"at most {MAX_DIGITS} and {MAX_COORDINATES}"
            )
        longest = self.longest_sum
        if max(self.rows, self.num_columns, longest) > _INDEX_LIMIT:
            return (
                f"{self.rows} x {self.num_columns} x {longest} multiply-adds; at most {_INDEX_LIMIT} along each index"
            )
        # Where there is padding, coordinates and offsets may be larger than the tensors.
        for phase in self.phases:
            digits = (*phase.column, *phase.reduction)
            for axis, bound in enumerate(self.bounds):
                farthest = abs(phase.first[axis])
                for extent, _, _, steps in digits:
                    step = steps[axis]
                    farthest += extent * (step if step >= 0 else -step)
                if bound > _COORDINATE_LIMIT or farthest > _COORDINATE_LIMIT:
                    return f"coordinates as far as {farthest} in an extent of {bound}; at most {_COORDINATE_LIMIT}"
            offset = self.reach + max(abs(phase.a_offset), abs(phase.b_offset), abs(phase.c_offset))
            if offset > _OFFSET_LIMIT:
                return f"offsets of {offset} elements; at most {_OFFSET_LIMIT}"
        return None
