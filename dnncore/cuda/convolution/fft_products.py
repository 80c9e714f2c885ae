"""Products of spectra in a convolution by Fourier transforms: their kernels, and what multiplies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dnncore.cuda.calls import Calls, FieldPath, Place, kernel_call
from dnncore.cuda.params import ADDRESS, FLOATING, c_type, record, struct
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths

__all__ = ["BY_TENSOR_CORES", "FEW_ROWS", "IN_FULL_PRECISION", "ProductShape", "ProductWork", "Products"]

_PRODUCT_PARAMS = struct(
    ("a", ADDRESS),
    ("b", ADDRESS),
    ("c", ADDRESS),
    ("rows", "<i4"),
    ("row_pitch", "<i4"),
    ("column_pitch", "<i4"),
    ("depth", "<i4"),
    ("row_tiles", "<i4"),
    ("column_tiles", "<i4"),
    ("conjugate", "<i4"),
    ("accumulate", "<i4"),
)


@dataclass(frozen=True, slots=True)
class ProductWork:
    """Complex matrices of one plane after the other: C[row][column] = sum over k of A[k][column] * conj(B[k][row]). Immutable.

    Args:
        planes: Frequencies, of each group.
        rows: Of C.
        row_pitch: Numbers from one k of B to the next; a multiple of 16 bytes, as is the next.
        column_pitch: Of A, and of C from row to row.
        depth: Products per sum.
        conjugate: Whether conj(A) * B is wanted instead.
        accumulate: Whether sums are added to what C holds.
    """

    planes: int
    rows: int
    row_pitch: int
    column_pitch: int
    depth: int
    conjugate: bool
    accumulate: bool

    def tiles(self, shape: ProductShape) -> tuple[int, int]:
        """Along the rows and along the columns of a plane."""
        return -(-self.rows // shape.rows), -(-self.column_pitch // shape.columns)


class ProductShape(Protocol):
    """A kernel, which computes the products of one frequency and group after the other."""

    @property
    def dtype(self) -> DType:
        """Of the real and the imaginary parts."""

    @property
    def rows(self) -> int:
        """Of a block's tile."""

    @property
    def columns(self) -> int:
        """Of a block's tile."""

    @property
    def slab(self) -> int:
        """Summands that are multiplied at a time, of which the last ones may be zeros."""

    @property
    def unit(self) -> Unit:
        """What it is compiled from."""

    def calls(self, work: ProductWork, places: Mapping[FieldPath, Place], figures: DeviceFigures, /) -> Calls:
        """Of the kernel.

        Args:
            work: What is multiplied.
            places: Where "a", "b" and "c" begin.
            figures: The device's.
        """


class _TileOfABlock(ProductShape, Protocol):
    """A kernel of which each block computes one tile."""

    @property
    def threads(self) -> int:
        """Of a block."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""


def _calls(shape: _TileOfABlock, work: ProductWork, places: Mapping[FieldPath, Place]) -> Calls:
    row_tiles, column_tiles = work.tiles(shape)
    params = record(
        _PRODUCT_PARAMS,
        rows=work.rows,
        row_pitch=work.row_pitch,
        column_pitch=work.column_pitch,
        depth=work.depth,
        row_tiles=row_tiles,
        column_tiles=column_tiles,
        conjugate=work.conjugate,
        accumulate=work.accumulate,
    )
    blocks = work.planes * row_tiles * column_tiles
    return kernel_call(shape.unit, blocks, shape.threads, params, places, blends=False, shared_bytes=shape.shared_bytes)


def _unit(entry: str, header: str, bounds: tuple[int, int], body: str) -> Unit:
    return Unit(
        source=(
            f'#include "dnncore/convolution/{header}.cuh"\n'
            "using namespace dnncore;\n"
            f"static_assert(sizeof(fft::ProductParams) == {_PRODUCT_PARAMS.itemsize});\n"
            f'extern "C" __global__ void __launch_bounds__({bounds[0]}, {bounds[1]}) {entry}'
            f"(const __grid_constant__ fft::ProductParams params) {{\n{body}}}\n"
        ),
        entry=entry,
    )


_SLAB, _TF32_SLAB = 8, 16
"""`Product::kSlab`, `Tf32Product::kSlab`."""
_PAIR_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Plain:
    """A variant of `dnncore::fft::Product`. Immutable.

    Args:
        dtype: See `ProductShape`.
        warps: Rows and columns of warps per block.
        sums: Rows and columns of sums per thread.
        min_blocks: Blocks per multiprocessor that there are registers for.
    """

    dtype: DType
    warps: tuple[int, int]
    sums: tuple[int, int]
    min_blocks: int

    @property
    def rows(self) -> int:
        """See `ProductShape`; a warp has 4 x 8 threads."""
        return 4 * self.warps[0] * self.sums[0]

    @property
    def columns(self) -> int:
        """See `ProductShape`."""
        return 8 * self.warps[1] * self.sums[1]

    @property
    def slab(self) -> int:
        """See `ProductShape`."""
        return _SLAB

    @property
    def threads(self) -> int:
        """See `ProductShape`."""
        return 32 * math.prod(self.warps)

    @property
    def shared_bytes(self) -> int:
        """None: all of it is static."""
        return 0

    @property
    def unit(self) -> Unit:
        """See `ProductShape`."""
        kernel = f"product<{', '.join([c_type(self.dtype), *map(str, (*self.warps, *self.sums))])}>"
        entry = f"fft_product_{c_type(self.dtype)}_{self.rows}x{self.columns}"
        return _unit(entry, "fft_product", (self.threads, self.min_blocks), f"  fft::{kernel}(params);\n")

    def calls(self, work: ProductWork, places: Mapping[FieldPath, Place], _figures: DeviceFigures) -> Calls:
        """See `ProductShape`; a block for every tile."""
        return _calls(self, work, places)


@dataclass(frozen=True, slots=True)
class _Tf32:
    """A variant of `dnncore::fft::Tf32Product`. Immutable.

    Args:
        warps: Rows and columns of warps per block.
        sixteens: Times the 16 rows of an instruction that a warp has of rows; of columns, if there are few rows.
        eights: Times its eight columns that a warp has of columns; of rows, if there are few.
        stages: Slabs in shared memory.
        few_rows: Whether the rows are the columns of an instruction.
        min_blocks: Blocks per multiprocessor that there are registers for.
    """

    warps: tuple[int, int]
    sixteens: int
    eights: int
    stages: int
    few_rows: bool
    min_blocks: int

    @property
    def dtype(self) -> DType:
        """See `ProductShape`."""
        return DType.FLOAT32

    @property
    def rows(self) -> int:
        """See `ProductShape`."""
        return self.warps[0] * (8 * self.eights if self.few_rows else 16 * self.sixteens)

    @property
    def columns(self) -> int:
        """See `ProductShape`."""
        return self.warps[1] * (16 * self.sixteens if self.few_rows else 8 * self.eights)

    @property
    def slab(self) -> int:
        """See `ProductShape`."""
        return _TF32_SLAB

    @property
    def threads(self) -> int:
        """See `ProductShape`."""
        return 32 * math.prod(self.warps)

    @property
    def shared_bytes(self) -> int:
        """sizeof(Tf32Product::Shared): rows of numbers, which lie further apart by one pair, or two."""
        numbers, apart = self.rows + self.columns, 3 if self.few_rows else 2
        return self.stages * _TF32_SLAB * (numbers * 8 + apart * _PAIR_BYTES)

    @property
    def unit(self) -> Unit:
        """See `ProductShape`."""
        few_rows = "true" if self.few_rows else "false"
        arguments = ", ".join([*map(str, (*self.warps, self.sixteens, self.eights, self.stages)), few_rows])
        return _unit(
            f"fft_product_3xtf32_{self.rows}x{self.columns}",
            "fft_product_tf32",
            (self.threads, self.min_blocks),
            f"  using Product = fft::Tf32Product<{arguments}>;\n"
            f"  static_assert(sizeof(Product::Shared) == {self.shared_bytes});\n"
            "  extern __shared__ __align__(16) unsigned char shared[];\n"
            "  fft::multiply_slabs<Product>(params, *reinterpret_cast<Product::Shared*>(shared));\n",
        )

    def calls(self, work: ProductWork, places: Mapping[FieldPath, Place], _figures: DeviceFigures) -> Calls:
        """See `ProductShape`; a block for every tile."""
        return _calls(self, work, places)


@dataclass(frozen=True, slots=True)
class Products:
    """How products of spectra are computed. Immutable.

    Args:
        dtypes: Of the tensors.
        shapes: Kernels; of those of a dtype the ones with few rows first: they are for the few channels of a net's first layer.
        maths: The units that multiply; None: those of the dtype that is computed in.
        of_rate: What is reached of their rate.
        small: A kernel for matrices no larger than its tile.
        architectures: Of the devices that have them; empty for all.
        fewest_rows: With fewer they are not taken.
    """

    dtypes: tuple[DType, ...]
    shapes: tuple[ProductShape, ...]
    maths: Maths | None
    of_rate: float
    small: ProductShape | None = None
    architectures: tuple[str, ...] = ()
    fewest_rows: int = 0

    @property
    def every_shape(self) -> tuple[ProductShape, ...]:
        """All kernels."""
        return self.shapes if self.small is None else (*self.shapes, self.small)

    def shape(self, dtype: DType, rows: int, columns: int | None = None) -> ProductShape:
        """The lowest tile that holds all rows, or else the highest.

        Args:
            dtype: Of the tensors.
            rows: Of the matrices.
            columns: Of the matrices; None where they are of the batch: an image gets the same bits in every one.
        """
        small = self.small
        if small is not None and columns is not None and rows <= small.rows and columns <= small.columns:
            return small
        shapes = [shape for shape in self.shapes if shape.dtype is dtype.compute]
        return next((shape for shape in shapes if rows <= shape.rows), shapes[-1])

    def rate(self, dtype: DType, figures: DeviceFigures) -> float:
        """Multiplications of real numbers in a second; 0 where a device has no such units."""
        if self.architectures and figures.architecture not in self.architectures:
            return 0.0
        return figures.products_per_second(self.maths or Maths.of(dtype.compute)) * self.of_rate


# Fitted with the rest of the estimate, see `fft.py`.
_OF_RATE = 0.84

IN_FULL_PRECISION = Products(
    dtypes=FLOATING,
    shapes=(
        _Plain(DType.FLOAT32, (1, 4), (4, 4), 5),
        _Plain(DType.FLOAT32, (2, 2), (8, 4), 3),
        _Plain(DType.FLOAT64, (2, 2), (4, 4), 3),
    ),
    maths=None,
    of_rate=_OF_RATE,
)
"""By the units of fp32 and fp64."""

# Three instructions of `mma.sync` make a product: 48 T of products in a second, where the kernels by themselves reached 29 to 35
# with reading and writing spectra [measured on an H200].
_OF_TF32_RATE = 0.18

FEW_ROWS = 8
"""Have a tile of their own."""

BY_TENSOR_CORES = Products(
    dtypes=(DType.FLOAT32,),
    shapes=(_Tf32((1, 4), 2, 1, 3, True, 4), _Tf32((2, 2), 2, 4, 4, False, 2)),
    maths=Maths.TF32,
    of_rate=_OF_TF32_RATE,
)
"""By tensor cores in 3xTF32: a product of float32 is made of three of tf32 (`convolution/fft_product_tf32.cuh`)."""
