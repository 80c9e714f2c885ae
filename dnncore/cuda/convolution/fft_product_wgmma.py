"""Products of spectra by the matrix units of sm_90 in 3xTF32: `convolution/fft_product_wgmma.cuh`, where the picture is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dnncore.cuda.calls import Calls, FieldPath, Place, kernel_call
from dnncore.cuda.convolution.fft_products import FEW_ROWS, Products, ProductWork
from dnncore.cuda.convolution.wgmma_tile import ARCHITECTURE, THREADS
from dnncore.cuda.params import ADDRESS, record, struct
from dnncore.cuda.tensor_map import TENSOR_MAP, BoxMap, TensorMap
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths

__all__ = ["BY_WGMMA"]

_PARAMS = struct(
    ("a", TENSOR_MAP),
    ("b", TENSOR_MAP),
    ("c", ADDRESS),
    *((name, "<i4") for name in ("rows", "column_pitch", "steps", "row_tiles", "column_tiles", "tiles")),
    *((name, "<i4") for name in ("conjugate", "accumulate")),
    alignment=64,
)

_NUMBER_BYTES = 8
_SLAB = 16
"""`WgmmaProduct::kSlab`: k of a stage, and complex numbers in a row of what one copy moves."""
_TILE = 64
"""Columns of a consumer; and rows."""
_CONSUMERS = 2


@dataclass(frozen=True, slots=True)
class _Wgmma:
    """A variant of `dnncore::fft::WgmmaProduct`, whose blocks go from tile to tile. Immutable.

    Args:
        take_turns: Whether consumers have the same columns, of every other stage, and add up their sums in the end.
        stages: In shared memory.
        splits: Both parts of rows, in shared memory.
    """

    take_turns: bool
    stages: int
    splits: int

    @property
    def rows(self) -> int:
        """See `ProductShape`."""
        return _TILE

    @property
    def columns(self) -> int:
        """See `ProductShape`."""
        return _TILE if self.take_turns else _CONSUMERS * _TILE

    @property
    def dtype(self) -> DType:
        """See `ProductShape`."""
        return DType.FLOAT32

    @property
    def slab(self) -> int:
        """See `ProductShape`."""
        return _SLAB

    @property
    def shared_bytes(self) -> int:
        """sizeof(WgmmaProduct::Shared): stages, both parts of their rows, sums that consumers exchange, and barriers."""
        raw, parts = (self.rows + self.columns) * _SLAB * _NUMBER_BYTES, 2 * self.rows * _SLAB * _NUMBER_BYTES
        exchanged = self.rows * self.columns * _NUMBER_BYTES if self.take_turns else 0
        return self.stages * raw + self.splits * parts + exchanged + (self.stages + 2 * self.splits) * 8

    @property
    def unit(self) -> Unit:
        """See `ProductShape`."""
        entry = f"fft_product_3xtf32_wgmma_{self.rows}x{self.columns}"
        source = (
            '#include "dnncore/convolution/fft_product_wgmma.cuh"\n'
            "using namespace dnncore;\n"
            f"using Product = fft::WgmmaProduct<{'true' if self.take_turns else 'false'}>;\n"
            f"static_assert(Product::kRows == {self.rows} && Product::kColumns == {self.columns});\n"
            f"static_assert(sizeof(fft::WgmmaProductParams) == {_PARAMS.itemsize});\n"
            f"static_assert(sizeof(Product::Shared) == {self.shared_bytes});\n"
            f'extern "C" __global__ void __launch_bounds__({THREADS}, 1) {entry}'
            "(const __grid_constant__ fft::WgmmaProductParams params) {\n"
            "  extern __shared__ __align__(1024) unsigned char shared[];\n"
            "  Product::run(params, *reinterpret_cast<Product::Shared*>(shared));\n}\n"
        )
        return Unit(source, entry, (ARCHITECTURE,))

    def calls(self, work: ProductWork, places: Mapping[FieldPath, Place], figures: DeviceFigures) -> Calls:
        """See `ProductShape`; no more blocks than there are multiprocessors."""
        row_tiles, column_tiles = work.tiles(self)
        tiles = work.planes * row_tiles * column_tiles
        params = record(
            _PARAMS,
            rows=work.rows,
            column_pitch=work.column_pitch,
            steps=-(-work.depth // _SLAB),
            row_tiles=row_tiles,
            column_tiles=column_tiles,
            tiles=tiles,
            conjugate=work.conjugate,
            accumulate=work.accumulate,
        )
        pitches = {"a": work.column_pitch, "b": work.row_pitch}
        maps: dict[FieldPath, tuple[Place, TensorMap]] = {
            name: (places[name], _map(work, pitch)) for name, pitch in pitches.items()
        }
        return kernel_call(
            self.unit,
            min(tiles, figures.multiprocessors),
            THREADS,
            params,
            {"c": places["c"]},
            blends=False,
            shared_bytes=self.shared_bytes,
            maps=maps,
            starts_early=True,
        )


def _map(work: ProductWork, pitch: int) -> BoxMap:
    """An operand's spectra as floats of a row, k and planes; beyond them there are zeros."""
    row_bytes = pitch * _NUMBER_BYTES
    return BoxMap(
        DType.FLOAT32, (2 * pitch, work.depth, work.planes), (row_bytes, work.depth * row_bytes), (2 * _SLAB, _SLAB, 1)
    )


# Three products of tf32 are a product of fp32: of the units' rate a third can be had, and here nearly all of it. Products of 512
# channels take 274 us where those of mma.sync take 502, of 384 channels 162 and 285 [measured on an H100].
_OF_WGMMA_RATE = 0.32

BY_WGMMA = Products(
    dtypes=(DType.FLOAT32,),
    shapes=(_Wgmma(take_turns=False, stages=6, splits=3),),
    small=_Wgmma(take_turns=True, stages=8, splits=4),
    maths=Maths.TF32,
    of_rate=_OF_WGMMA_RATE,
    architectures=(ARCHITECTURE,),
    fewest_rows=FEW_ROWS + 1,
)
"""Of all rows but few, which `BY_TENSOR_CORES` has a tile for."""
