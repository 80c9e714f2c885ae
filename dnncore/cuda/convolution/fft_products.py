"""Products of spectra in a convolution by Fourier transforms: their kernels, and what multiplies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dnncore.cuda.params import ADDRESS, FLOATING, c_type, struct
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths

__all__ = ["BY_TENSOR_CORES", "IN_FULL_PRECISION", "PRODUCT_PARAMS", "ProductShape", "Products"]

PRODUCT_PARAMS = struct(
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
    def threads(self) -> int:
        """Of a block."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""

    @property
    def unit(self) -> Unit:
        """What it is compiled from."""


def _unit(entry: str, header: str, bounds: tuple[int, int], body: str) -> Unit:
    return Unit(
        source=(
            f'#include "dnncore/convolution/{header}.cuh"\n'
            "using namespace dnncore;\n"
            f"static_assert(sizeof(fft::ProductParams) == {PRODUCT_PARAMS.itemsize});\n"
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
            "  Product::run(params, *reinterpret_cast<Product::Shared*>(shared));\n",
        )


@dataclass(frozen=True, slots=True)
class Products:
    """How products of spectra are computed. Immutable.

    Args:
        dtypes: Of the tensors.
        shapes: Kernels; of those of a dtype the ones with few rows first: they are for the few channels of a net's first layer.
        maths: The units that multiply; None: those of the dtype that is computed in.
        of_rate: What is reached of their rate.
    """

    dtypes: tuple[DType, ...]
    shapes: tuple[ProductShape, ...]
    maths: Maths | None
    of_rate: float

    def shape(self, dtype: DType, rows: int) -> ProductShape:
        """The lowest tile that holds all rows, or else the highest; not of the batch, which the columns may be."""
        shapes = [shape for shape in self.shapes if shape.dtype is dtype.compute]
        return next((shape for shape in shapes if rows <= shape.rows), shapes[-1])

    def rate(self, dtype: DType, figures: DeviceFigures) -> float:
        """Multiplications of real numbers in a second; 0 where a device has no such units."""
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

BY_TENSOR_CORES = Products(
    dtypes=(DType.FLOAT32,),
    shapes=(_Tf32((1, 4), 2, 1, 3, True, 4), _Tf32((2, 2), 2, 4, 4, False, 2)),
    maths=Maths.TF32,
    of_rate=_OF_TF32_RATE,
)
"""By tensor cores in 3xTF32: a product of float32 is made of three of tf32 (`convolution/fft_product_tf32.cuh`)."""
