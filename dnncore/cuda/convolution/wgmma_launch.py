"""Launches of the kernels of `convolution/wgmma.cuh` and `wgmma_patches.cuh`: parameters, how long they take, calls. Pure.

A launch computes phases: dense convolutions that read the same images and filters. A forward convolution is one. Patches are for
one phase by filters of 3 x 3 without strides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from dnncore.cuda.calls import Calls, FieldPath, Place, kernel_call
from dnncore.cuda.convolution.copy_engine import (
    Window,
    filters_map,
    groups_map,
    images_map,
    is_matrix,
    output_map,
    patches_map,
    reads_matrix,
)
from dnncore.cuda.convolution.wgmma_tile import (
    BOX_FILTERS,
    PATCH_TAPS,
    PRODUCT_BYTES,
    RECTANGLE,
    ROW_BYTES,
    SLAB,
    TILES,
    TILES_OF_CLUSTERS,
    TILES_OF_INT8,
    TILES_OF_TF32,
    Patch,
    Tile,
    params_dtype,
    unit,
)
from dnncore.cuda.params import record
from dnncore.cuda.tensor_map import TENSOR_MAP_BYTES, TensorMap
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths

__all__ = ["LEAST_ROW_BYTES", "OF_MEMORY_RATE", "Launch", "Pace", "Phase", "fastest", "launches", "tiles"]

_NO_PHASE, _NO_MAP = 2**31 - 1, bytes(TENSOR_MAP_BYTES)

# Of the estimate, fitted to layers of ResNet-50, VGG and GoogLeNet on an H200 (docs/worklog-convolution.md): the share of the
# products per second that the units reach at the clock that power leaves; clocks of a tile beside its products, and of each of its
# outputs; bytes of x that a multiprocessor gathers in a clock, more of them where rows are short of channels; bytes of x and w
# that arrive there, half as many more of a short slab that is filled up; the share of the memory's rate; and what it takes, in
# launches, until all multiprocessors have something to multiply, or to store: less where few of them have a tile, but something
# always. Phases of strides write every second pixel: the clocks and the share of those. All are of fp16, and assumed of tf32.
_OF_PRODUCTS, _OF_PRODUCTS_IN_PATCHES = 0.8, 0.87
_TILE_CLOCKS, _SCATTERED_TILE_CLOCKS, _PATCH_CLOCKS = 500, 2500, 650
_OUTPUT_CLOCKS = 0.12
_INT8_OUTPUT_CLOCKS = 0.33
"""Of one consumer of patches, which finishes outputs alone: a tile of 128 x 192 took two of them 4100."""
_GATHERED_BYTES, _ARRIVING_BYTES = 24.5, 42
_SHORT_OF_CHANNELS = 1.3
_FILLED_UP = 0.5
OF_MEMORY_RATE, _OF_SCATTERED_MEMORY_RATE = 0.88, 0.72
_LAUNCHES, _MEMORY_LAUNCHES = 0.9, 0.5
_LEAST_TURN = 0.2
LEAST_ROW_BYTES = 104
"""A shorter row of a stage, or of a pixel that is read or stored, takes as long as one of so many bytes."""

# Of clusters, fitted to the layers of ResNet-50, GoogLeNet and MobileNetV2 at batch 1 on an H200: clocks of a launch, of a step,
# of one block on every multiprocessor, and of exchanging sums with so many blocks. And how many blocks per multiprocessor there
# are at most: with more of clusters than these, no room is left for the next kernel's. All are of 16 bits: a step of other dtypes
# has as many bytes, and by the units' rates takes as long.
_CLUSTER_CLOCKS, _CLUSTER_STEP_CLOCKS, _CLUSTER_WAVE_CLOCKS = 2470, 380, 2200
_EXCHANGE_CLOCKS = {1: 0, 2: 1070, 4: 1410, 8: 1750}
_MOST_BLOCKS_ALONE, _MOST_BLOCKS = 2.0, 1.6


class ShortSlab(NamedTuple):
    """Fewer channels than a slab, loaded with some before them that fill it up, where there are any. Immutable.

    Args:
        channel: The first that is loaded.
        first: The first product of what is loaded that is multiplied.
        products: How many are.
    """

    channel: int
    first: int
    products: int


class Work(NamedTuple):
    """What a phase has to do, in whatever tiles. Immutable.

    Args:
        pixels: That are written.
        taps: How many there are.
        slabs: Of channels, that are added up.
        summands: Of each output, those of incomplete products included; where no channels are left, those of a slab of zeros.
        fills_up: Whether the last slab is short and loaded with channels before it.
        scatters: Whether pixels that are written are not evenly spaced.
    """

    pixels: int
    taps: int
    slabs: int
    summands: int
    fills_up: bool
    scatters: bool

    def gathered_bytes(self, tile: Tile) -> int:
        """What is loaded for a tile of the images that are read."""
        pixels = tile.columns * self.taps if tile.patch is None else math.prod(tile.patch.read)
        return pixels * self.slabs * max(tile.row_bytes, LEAST_ROW_BYTES)

    def arriving_bytes(self, tile: Tile, rows: float) -> float:
        """What a multiprocessor loads for a tile: x and so many rows of filters, each step, or of patches once for all taps.

        Rows of a short slab that is filled up begin anywhere in lines of the cache.
        """
        if tile.patch is not None:
            loaded = 0 if self.slabs == 1 else self.taps * tile.rows
            return self.slabs * (math.prod(tile.patch.read) + loaded) * tile.row_bytes
        filled_up = self.taps * _FILLED_UP if self.fills_up else 0
        return (self.taps * self.slabs + filled_up) * (tile.columns + rows) * tile.row_bytes


class Phase(NamedTuple):
    """A dense convolution. Immutable. Pairs are rows and columns.

    Args:
        window: What its first tap meets of the images that are read.
        y: The images that are written.
        y_offset_bytes: Of their first pixel, from the beginning of the operand.
        taps: How many there are.
        dilation: Pixels from one tap to the next.
        slabs: Slabs of channels that are added up: the first, and the one behind the last.
        first_tap: Of w.
        next_tap: Steps in w from one tap to the next.
        slab: Channels of a slab.
    """

    window: Window
    y: TensorDescriptor
    y_offset_bytes: int
    taps: tuple[int, int]
    dilation: tuple[int, int]
    slabs: tuple[int, int]
    first_tap: tuple[int, int] = (0, 0)
    next_tap: tuple[int, int] = (1, 1)
    slab: int = SLAB

    def work(self, channels: int, product: int) -> Work:
        """What is to be done, in whatever tiles.

        Args:
            channels: Of the images that are read.
            product: Channels of a product.
        """
        (first, behind), (rows, columns), slab = self.slabs, self.taps, self.slab
        n, _, p, q = self.y.shape
        taps, start = rows * columns, first * slab
        summed = min(behind * slab, channels) - start if start < channels else slab
        last = (behind - 1) * slab  # the first channel of the last slab
        return Work(
            pixels=n * p * q,
            taps=taps,
            slabs=behind - first,
            summands=taps * -(-summed // product) * product,
            fills_up=last > 0 and 0 < -(-(channels - last) // product) < slab // product,
            scatters=not is_matrix(self.y),
        )

    @property
    def steps(self) -> int:
        """Slabs of taps that are added up."""
        return math.prod(self.taps) * (self.slabs[1] - self.slabs[0])

    def short_slab(self, channels: int, product: int) -> ShortSlab | None:
        """The last slab, if fewer channels are left for it than for the others.

        Args:
            channels: Of the images that are read.
            product: Channels of a product.
        """
        first, products = (self.slabs[1] - 1) * self.slab, self.slab // product
        left = -(-(channels - first) // product)
        if not 0 < left < products:
            return None
        if first == 0:
            return ShortSlab(0, 0, left)
        return ShortSlab(first - (products - left) * product, products - left, left)

    def patches(self, patch: Patch) -> tuple[int, int]:
        """How many there are, down and across an image."""
        (p, q), (rows, columns) = self.window.outputs, patch.outputs
        return -(-p // rows), -(-q // columns)

    def tiles(self, tile: Tile) -> int:
        """How many there are along the pixels."""
        n, _, *places = self.y.shape
        if tile.patch is not None:
            return -(-n // tile.patch.images) * math.prod(self.patches(tile.patch))
        return -(-n * math.prod(places) // tile.columns)


class Pace(NamedTuple):
    """What a launch takes, whatever its operands' way through memory. Immutable.

    Args:
        busy: Seconds that its multiprocessors are busy.
        least: Seconds that it takes at least, until the last of them has finished.
        loads: Seconds of what arrives at them.
        start: Seconds until it arrives, or memory is busy.
        of_memory_rate: At which operands are read and written.
        gathered_bytes: What is loaded of the images that are read.
    """

    busy: float
    least: float
    loads: float
    start: float
    of_memory_rate: float
    gathered_bytes: int

    def seconds(self, nbytes: int, figures: DeviceFigures) -> float:
        """Of the launch, with so many bytes of operands on their way through memory."""
        memory = nbytes / (figures.bytes_per_second * self.of_memory_rate)
        return max(self.least, self.loads + self.start, memory + self.start)


class Launch(NamedTuple):
    """Phases in tiles, as `of` makes them. Immutable.

    Args:
        images: That are read.
        w: The filters; backward-data of float32: with filters and channels exchanged, which the matrix units do for 16 bits alone.
        phases: In the order in which blocks take their tiles.
        tile: Of a block.
        backward: Whether it is backward-data: the rows of the product are channels.
        pools: Whether the largest of each two by two outputs is stored, which are what the phase writes.
        rows: Of the product.
        filter_tiles: How many there are along the rows of the product.
        counts: How many there are along the pixels of each phase.
        works: What each phase has to do.
    """

    images: TensorDescriptor
    w: TensorDescriptor
    phases: tuple[Phase, ...]
    tile: Tile
    backward: bool
    pools: bool
    rows: int
    filter_tiles: int
    counts: tuple[int, ...]
    works: tuple[Work, ...]

    @classmethod
    def of(
        cls,
        images: TensorDescriptor,
        w: TensorDescriptor,
        phases: tuple[Phase, ...],
        tile: Tile,
        *,
        backward: bool,
        pools: bool = False,
        works: tuple[Work, ...] = (),
    ) -> Launch:
        """Phases in tiles of one kind; what each of them has to do may be known already."""
        rows = w.shape[1 if backward and w.dtype is not DType.FLOAT32 else 0]
        works = works or _works(images, w, phases)
        if tile.patch is None:
            counts = tuple([-(-work.pixels // tile.columns) for work in works])
        else:
            counts = tuple([phase.tiles(tile) for phase in phases])
        return cls(images, w, phases, tile, backward, pools, rows, -(-rows // tile.rows), counts, works)

    @property
    def is_transposed(self) -> bool:
        """Whether the matrix units transpose the filters."""
        return self.backward and self.w.dtype is not DType.FLOAT32

    @property
    def pixel_tiles(self) -> int:
        """How many there are along the pixels of all phases."""
        return sum(self.counts)

    @property
    def keeps_filters(self) -> bool:
        """Whether a block has the same filters in all of its patches: if these have a single slab."""
        return self.tile.patch is not None and self.phases[0].slabs == (0, 1)

    @property
    def product(self) -> int:
        """Channels of a product."""
        return PRODUCT_BYTES // self.w.dtype.itemsize

    @property
    def box_rows(self) -> int:
        """Rows of filters that are copied at a time: of a tile, or of a consumer where the last tile has none for one of them."""
        return BOX_FILTERS if self.is_transposed or self.rows % self.tile.rows else self.tile.rows

    def suits(self, multiprocessors: int) -> bool:
        """Whether the tile is for such phases: patches are for one by dense filters, clusters for few outputs.

        And whether both consumers have filters.
        """
        if self.tile.cluster:
            most = _MOST_BLOCKS_ALONE if self.tile.cluster == 1 else _MOST_BLOCKS
            return self.tile.cluster <= self.phases[0].steps and self.blocks(multiprocessors) <= most * multiprocessors
        if self.tile.patch is None:
            return self.rows > BOX_FILTERS or self.tile.rows == BOX_FILTERS
        first = self.phases[0]
        is_dense = first.taps == PATCH_TAPS and first.dilation == first.window.steps == (1, 1)
        return len(self.phases) == 1 and is_dense and not (self.keeps_filters and self.filter_tiles > multiprocessors)

    def blocks(self, multiprocessors: int) -> int:
        """How many are launched: a cluster for each tile, or as many blocks as stay for the whole launch."""
        tiles = self.pixel_tiles * self.filter_tiles
        if self.tile.cluster:
            return tiles * self.tile.cluster
        blocks = min(tiles, multiprocessors)
        if self.keeps_filters:
            return blocks - blocks % self.filter_tiles
        if tiles > multiprocessors and 0 < self.rows % self.tile.rows <= BOX_FILTERS < self.tile.rows:
            # The last tile of filters has half of the products: all blocks are to meet it.
            return next(count for count in range(blocks, 0, -1) if math.gcd(count, self.filter_tiles) == 1)
        return blocks

    def pace(self, figures: DeviceFigures) -> Pace:
        """Time of the turns that the blocks take, and of loads.

        Tiles of other filters of the same pixels read x at the same time, and the second-level cache reads it once for all of
        them; but it arrives at each multiprocessor.
        """
        tile = self.tile
        if tile.cluster:
            return self._pace_of_clusters(figures)
        maths = Maths.TF32 if self.w.dtype is DType.FLOAT32 else Maths.of(self.w.dtype)
        of_products = _OF_PRODUCTS if tile.patch is None else _OF_PRODUCTS_IN_PATCHES
        rate = figures.products_per_second(maths) / figures.multiprocessors * of_products
        filter_tiles = self.filter_tiles
        # Of a tile, but those that no consumer multiplies.
        rows = -(-self.rows // BOX_FILTERS) * BOX_FILTERS / filter_tiles
        scatters = True in [work.scatters for work in self.works]
        if scatters:
            tile_clocks: float = _SCATTERED_TILE_CLOCKS
        elif tile.patch is None:
            tile_clocks = _TILE_CLOCKS + min(tile.columns, self.works[0].pixels) * rows * _OUTPUT_CLOCKS
        else:
            tile_clocks = _PATCH_CLOCKS
        busy = turns = turn = arriving = 0.0
        gathered_bytes = 0
        for work, count in zip(self.works, self.counts, strict=True):
            products = tile.columns * rows * work.summands / rate
            turn = products + tile_clocks / figures.clock_hz
            if tile.patch is not None and maths is Maths.INT8:
                # Of two patches each consumer multiplies one and finishes it, while the other multiplies at most.
                finishing = tile.columns * rows * _INT8_OUTPUT_CLOCKS / figures.clock_hz
                turn = max(turn, (products + finishing) / 2)
            shares = count * filter_tiles / figures.multiprocessors
            turns += shares
            busy += shares * turn
            gathered_bytes += count * work.gathered_bytes(tile)
            arriving += shares * work.arriving_bytes(tile, rows)
        busy += (math.ceil(turns) - turns) * turn
        gathered = float(gathered_bytes)
        if tile.patch is None and self.images.shape[1] < self.phases[0].slab:
            gathered *= _SHORT_OF_CHANNELS
        loads = (
            max(gathered / (_GATHERED_BYTES * figures.multiprocessors), arriving / _ARRIVING_BYTES) / figures.clock_hz
        )
        start = figures.launch_seconds * min(turns + _LEAST_TURN, 1.0)
        of_memory_rate = _OF_SCATTERED_MEMORY_RATE if scatters else OF_MEMORY_RATE
        return Pace(busy, busy + _LAUNCHES * start, loads, _MEMORY_LAUNCHES * start, of_memory_rate, gathered_bytes)

    def _pace_of_clusters(self, figures: DeviceFigures) -> Pace:
        """Time of what follows one another in a block, and of what blocks take from each other."""
        steps = -(-self.phases[0].steps // self.tile.cluster)
        waves = self.blocks(figures.multiprocessors) / figures.multiprocessors
        clocks = _CLUSTER_CLOCKS + steps * _CLUSTER_STEP_CLOCKS + waves * _CLUSTER_WAVE_CLOCKS
        seconds = (clocks + _EXCHANGE_CLOCKS[self.tile.cluster]) / figures.clock_hz
        gathered_bytes = self.pixel_tiles * self.works[0].gathered_bytes(self.tile)
        return Pace(seconds * waves, seconds, 0.0, 0.0, OF_MEMORY_RATE, gathered_bytes)

    def params(self) -> np.ndarray:
        """The parameter struct, all but addresses and what follows a convolution."""
        tile = self.tile
        params = record(
            params_dtype(backward=self.backward),
            filters=self.rows,
            pixel_tiles=self.pixel_tiles,
            filter_tiles=self.filter_tiles,
            filter_box=self.box_rows,
        )
        phases, channels, tiles = params["phases"], self.images.shape[1], 0
        phases["pixel_tiles"] = _NO_PHASE
        for i, (phase, count, work) in enumerate(zip(self.phases, self.counts, self.works, strict=True)):
            window, (first, behind) = phase.window, phase.slabs
            short = None if tile.cluster else phase.short_slab(channels, self.product)
            phases[i] = (
                *(_NO_MAP, _NO_MAP),
                (first, behind if short is None else behind - 1),
                phase.taps,
                phase.first_tap,
                phase.next_tap,
                window.outputs if tile.patch is None else phase.patches(tile.patch),
                window.steps,
                (-window.first[0], -window.first[1]),
                phase.dilation,
                *((0, 0, 0) if short is None else (short.products, short.first, short.channel)),
                tiles,
                not reads_matrix(self.images, window),
                tile.patch is None and work.scatters,
            )
            tiles += count
        return params

    def output_map(self, images: TensorDescriptor) -> TensorMap:
        """Images that are written, or added before, as the tile's consumers do."""
        if self.tile.patch is not None:
            rows, columns = RECTANGLE
            return patches_map(images, BOX_FILTERS, rows // (1 + self.pools), columns // (1 + self.pools))
        filters = min(BOX_FILTERS, ROW_BYTES // images.dtype.itemsize)
        return output_map(images, filters, self.tile.box_pixels(images.dtype))

    def calls(
        self,
        params: np.ndarray,
        operands: tuple[Place, Place, Place],
        others: Mapping[FieldPath, Place],
        other_maps: Mapping[FieldPath, tuple[Place, TensorMap]],
        figures: DeviceFigures,
    ) -> Calls:
        """The kernel's call.

        Args:
            params: As `params` gives them, with what follows the convolution.
            operands: Where images that are read, w, and images that are written begin.
            others: Fields that take other addresses.
            other_maps: And other maps.
            figures: Of the device.
        """
        tile, (of_x, of_w, of_y) = self.tile, operands
        maps: dict[FieldPath, tuple[Place, TensorMap]] = {"w": (of_w, self._filters_map()), **other_maps}
        for i, phase in enumerate(self.phases):
            maps["phases", i, "x"] = of_x, self._input_map(phase)
            maps["phases", i, "y"] = of_y.plus(phase.y_offset_bytes), self.output_map(phase.y)
        return kernel_call(
            unit(self.w.dtype, tile, backward=self.backward, pools=self.pools),
            self.blocks(figures.multiprocessors),
            tile.threads,
            params,
            others,
            shared_bytes=tile.shared_bytes(self.w.dtype),
            maps=maps,
            starts_early=True,
            constants={"reads_filters_early": of_w} if tile.cluster else {},
        )

    def _input_map(self, phase: Phase) -> TensorMap:
        if self.tile.patch is not None:
            count, rows, columns = self.tile.patch.read
            return patches_map(self.images, self.phases[0].slab, rows, columns, count)
        return _rounded(images_map(self.images, phase.window, phase.slab, self.tile.columns))

    def _filters_map(self) -> TensorMap:
        w, tile = self.w, self.tile
        if w.dtype is DType.INT8:
            return groups_map(w, tile.slab(w.dtype), self.box_rows)
        return _rounded(filters_map(w, tile.slab(w.dtype), self.box_rows))


def fastest(options: Sequence[tuple[float, float, Launch]]) -> tuple[float, Launch]:
    """Seconds of the fastest launch, of equal ones the one with least to do, and that launch.

    Args:
        options: Of each its seconds, those that its multiprocessors are busy, and the launch.
    """
    seconds, _, launch = min(options, key=_SECONDS_AND_BUSY)
    return seconds, launch


_SECONDS_AND_BUSY = itemgetter(0, 1)


def _rounded(operand: TensorMap) -> TensorMap:
    """As copies into stages see an operand: what is float32 becomes tf32."""
    return operand if operand.dtype is not DType.FLOAT32 else operand._replace(rounds=True)


def tiles(dtype: DType, *, backward: bool) -> tuple[Tile, ...]:
    """Those that there are kernels for."""
    found = {DType.INT8: TILES_OF_INT8, DType.FLOAT32: TILES_OF_TF32}.get(dtype, TILES)
    return found if backward else (*found, *TILES_OF_CLUSTERS)


def launches(
    images: TensorDescriptor, w: TensorDescriptor, phases: Sequence[Phase], multiprocessors: int, *, backward: bool
) -> list[Launch]:
    """One for each tile that suits the phases."""
    every = tuple(phases)
    works = _works(images, w, every)
    made = [
        Launch.of(images, w, every, tile, backward=backward, works=works)
        for tile in tiles(w.dtype, backward=backward)
        if tile.patch is None or len(every) == 1
    ]
    return [launch for launch in made if launch.suits(multiprocessors)]


def _works(images: TensorDescriptor, w: TensorDescriptor, phases: Sequence[Phase]) -> tuple[Work, ...]:
    channels, product = images.shape[1], PRODUCT_BYTES // w.dtype.itemsize
    return tuple([phase.work(channels, product) for phase in phases])
