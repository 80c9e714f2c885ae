"""The transforms of a convolution by Fourier transforms: parameters, units, and the spectra that they leave in the workspace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dnncore.cuda.calls import aligned
from dnncore.cuda.convolution.fft_tiles import SIZES, Operand, frequencies
from dnncore.cuda.gemm import BLEND_AND_EPILOGUE
from dnncore.cuda.params import (
    ADDRESS,
    SMALL_DIVISOR,
    c_type,
    record,
    small_divisor,
    struct,
)
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType

__all__ = [
    "Spectra",
    "shared_bytes",
    "tile_threads",
    "tile_unit",
    "tile_units",
    "tiles_a_block",
]

_TILE_PARAMS = struct(
    *BLEND_AND_EPILOGUE,
    ("tensor", ADDRESS),
    ("spectra", ADDRESS),
    ("group_stride", "<i8"),
    ("image_stride", "<i8"),
    ("channel_stride", "<i8"),
    ("stride", "<i8", 2),
    ("plane", "<i8"),
    ("items", "<i4"),
    ("fast", "<i4"),
    ("channel_is_fast", "<i4"),
    ("items_first", "<i4"),
    ("pitch", SMALL_DIVISOR),
    ("slow", SMALL_DIVISOR),
    ("tiles", SMALL_DIVISOR),
    ("tile_columns", SMALL_DIVISOR),
    ("first", "<i4", 2),
    ("step", "<i4", 2),
    ("used", "<i4", 2),
    ("extent", "<i4", 2),
    ("spacing", SMALL_DIVISOR, 2),
    ("group_channels", "<i4"),
)

_MIN_TILE_BLOCKS = {16: 8, 32: 3}
"""Blocks per multiprocessor that there are registers for, by the tile's extent; of the large tiles shared memory holds no more."""


def tiles_a_block(dtype: DType) -> int:
    """Tiles per block: neighbouring complex numbers in 128 bytes."""
    return 128 // (2 * dtype.compute.itemsize)


def tile_threads(dtype: DType, size: int) -> int:
    """Threads of a block that transforms tiles: one for every two rows."""
    return tiles_a_block(dtype) * size // 2


def shared_bytes(dtype: DType, size: int) -> int:
    """sizeof(Tiles::Shared) of fft_tiles.cuh."""
    real = size * (size + 1) + (2 if size % 32 == 0 else 18)
    half = size * size // 2 + 1
    return tiles_a_block(dtype) * (32 + max(real, 2 * half) * dtype.compute.itemsize)


def tile_unit(way: str, dtype: DType, size: int) -> Unit:
    """Tiles of one extent to spectra ("forward") and back ("inverse"); the two are compiled together."""

    def entry(way: str) -> str:
        return f"fft_{way}_{c_type(dtype)}_{size}"

    threads = tile_threads(dtype, size)
    return Unit(
        source=(
            '#include "dnncore/convolution/fft_tiles.cuh"\n'
            "using namespace dnncore;\n"
            f"static_assert(sizeof(fft::TileParams) == {_TILE_PARAMS.itemsize});\n"
            f"using Tiles = fft::Tiles<{c_type(dtype)}, {size}>;\n"
            f"static_assert(Tiles::kThreads == {threads} && sizeof(Tiles::Shared) == {shared_bytes(dtype, size)});\n"
            f"static_assert(Tiles::kFrequencies == {frequencies(size)});\n"
        )
        + "".join(
            f'extern "C" __global__ void __launch_bounds__({threads}, {_MIN_TILE_BLOCKS[size]}) {entry(each)}'
            "(const __grid_constant__ fft::TileParams params) {\n"
            "  extern __shared__ __align__(16) unsigned char shared[];\n"
            f"  Tiles::{each}(params, *reinterpret_cast<Tiles::Shared*>(shared));\n}}\n"
            for each in ("forward", "inverse")
        ),
        entry=entry(way),
    )


@dataclass(frozen=True, slots=True)
class Spectra:
    """An operand's spectra in the workspace: [frequency][group][slow][pitch] complex numbers. Immutable.

    Args:
        operand: Whose they are.
        pitch: A multiple of 16 bytes, and of 128 where that is little more.
        items: Complex numbers per frequency.
        nbytes: A multiple of the alignment, so that what comes behind is aligned.
    """

    operand: Operand
    pitch: int
    items: int
    nbytes: int

    @classmethod
    def of(cls, operand: Operand, size: int, groups: int, dtype: DType) -> Spectra:
        """Those of tiles of an extent, in each of so many groups."""
        fast, many = operand.fast, tiles_a_block(dtype)
        unit = many if fast >= 4 * many else many // 8
        pitch = -(-fast // unit) * unit
        items = groups * operand.slow * pitch
        return cls(operand, pitch, items, aligned(frequencies(size) * items * 2 * dtype.compute.itemsize))

    def params(self) -> np.ndarray:
        """For the kernels that write or read them; all but addresses, alpha and beta."""
        operand = self.operand
        return record(
            _TILE_PARAMS,
            group_stride=operand.strides[0],
            image_stride=operand.strides[1],
            channel_stride=operand.strides[2],
            stride=operand.place_strides,
            plane=self.items,
            items=self.items,
            fast=operand.fast,
            channel_is_fast=operand.channel_is_fast,
            items_first=operand.items_are_nearer,
            pitch=small_divisor(self.pitch),
            slow=small_divisor(operand.slow),
            tiles=small_divisor(math.prod(operand.tiles)),
            tile_columns=small_divisor(operand.tiles[1]),
            first=operand.first,
            step=operand.step,
            used=operand.used,
            extent=operand.extent,
            spacing=[small_divisor(spacing) for spacing in operand.spacing],
            group_channels=operand.channels,
        )


def tile_units(dtypes: tuple[DType, ...]) -> tuple[Unit, ...]:
    """Of these dtypes, and of every tile and way."""
    return tuple(tile_unit(way, dtype, size) for dtype in dtypes for size in SIZES for way in ("forward", "inverse"))
