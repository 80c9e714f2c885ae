"""Convolution by Fourier transforms of tiles: for large filters, whose cost it makes nearly independent of their size.

Tiles of inputs and filters are transformed, for each frequency a product of complex matrices is taken, and the result is
transformed back. A filter of 9 x 9 takes about a fourteenth of the direct method's multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.bounds import BoundedTwice, Selective
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, kernel_call, rewired
from dnncore.cuda.convolution.fft_kernels import (
    Spectra,
    shared_bytes,
    tile_threads,
    tile_unit,
    tile_units,
    tiles_a_block,
)
from dnncore.cuda.convolution.fft_product_wgmma import BY_WGMMA
from dnncore.cuda.convolution.fft_products import (
    BY_TENSOR_CORES,
    IN_FULL_PRECISION,
    Products,
    ProductShape,
    ProductWork,
)
from dnncore.cuda.convolution.fft_tiles import SIZES, Correlation, Cut, correlation, cut_or_reason, frequencies
from dnncore.cuda.convolution.locality import strided_seconds
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["ERROR_FACTOR", "FFT_TILING", "FFT_TILING_3XTF32", "FftTiling"]

ERROR_FACTOR = 1 + 4 * math.sqrt(3 * (math.log2(SIZES[-1] ** 2) + 2)) / 8
"""How much larger an error may be than the direct method's, relative to the largest magnitude of the output's plane.

A transform of N numbers has an error of at most u (1 + 4 sqrt(2)) log2(N), relative to the norm of what it transforms (Higham,
Accuracy and Stability of Numerical Algorithms, theorem 24.2), and in any direction: an output's own magnitude bounds nothing.
Roundings being independent, the error is spread evenly over the tile and grows like the root of their number in a row, which is
log2(N) and two for the split of real sequences, in each of three transforms. `dnncore.testing.tolerance` allows the direct method
8 u and more for the terms; here it is four times that root more.
"""

_MANY_BYTES = 2**30
"""Of workspace: with more, the batch is taken in parts."""

_MOST_BYTES = 2**32
"""Of workspace: with more, the problem is refused."""

# Of the estimate: what the launches take, in times from one kernel to the next, and how much more those of gradients of filters,
# which add up batches; shares of the memory's rate at which transforms read tensors, at which spectra go from or to a transform,
# and at which they go through products; the rate of products is in `fft_products.py`. Fitted to 262 problems of nets and of
# benchmarks/layers.py in fp32, and to 24 of `fft_tiling_3xtf32`; of these all are met within 15 %, of those 86 % [measured on an
# H200; fp64: the same shares]. Launches of each further part of a batch are counted, not fitted.
_LAUNCHES, _LAUNCHES_OF_SUMS = 4.0, 1.5
_LAUNCHES_OF_A_PART = 3
_OF_MEMORY_RATE = 0.28
_OF_MEMORY_RATE_OF_TENSORS = 0.5
_OF_MEMORY_RATE_OF_PRODUCTS = 0.92

# Tiles go channel by channel through all images of a part. Where these lie pixel by pixel, a channel touches a sector of each.
# Unless the second-level cache keeps them until the next channel [assumed: in half of it], each element costs memory so many bytes
# more: cudnn-paper-1 forward in fp32 on an H200 took 10.7 ms in NHWC, and 1.9 in NCHW.
_SECTOR_BYTES = 32
_OF_L2 = 0.5
_FAR_ELEMENT_BYTES = 175


@dataclass(frozen=True, slots=True)
class _Part:
    """Some images of the batch, and the spectra of their tiles, which follow one another in the workspace. Immutable."""

    work: Correlation
    dtype: DType
    by: Products
    a: Spectra
    b: Spectra
    c: Spectra

    @classmethod
    def of(cls, whole: Correlation, dtype: DType, by: Products, images: int) -> _Part:
        """The first ones of the batch."""
        work = whole.part(images)
        a, b, c = (Spectra.of(operand, work.size, work.groups, dtype) for operand in (work.a, work.b, work.c))
        return cls(work, dtype, by, a, b, c)

    @classmethod
    def largest(cls, whole: Correlation, dtype: DType, by: Products, most_bytes: float) -> _Part:
        """Of the batch, halved as often as needed, the images whose spectra are no more bytes; at least one."""
        part = cls.of(whole, dtype, by, whole.batch)
        while part.work.batch > 1 and part.nbytes > most_bytes:
            part = cls.of(whole, dtype, by, -(-part.work.batch // 2))
        return part

    @property
    def nbytes(self) -> int:
        """Of the workspace."""
        return self.a.nbytes + self.b.nbytes + self.c.nbytes

    @property
    def places(self) -> dict[FieldPath, Place]:
        """Where each operand's spectra begin."""
        b_begins = self.a.nbytes
        return {"a": Place(WORKSPACE), "b": Place(WORKSPACE, b_begins), "c": Place(WORKSPACE, b_begins + self.b.nbytes)}

    @property
    def shape(self) -> ProductShape:
        """Of the products' kernels."""
        c, is_of_batch = self.work.c, "c" in self.work.batched
        return self.by.shape(self.dtype, c.slow, None if is_of_batch else c.fast)

    def seconds(self, figures: DeviceFigures) -> float:
        """Estimated time: the spectra through memory, the products in whole tiles and slabs, and elements that are far."""
        work, shape = self.work, self.shape
        extents = (work.c.slow, shape.rows), (work.c.fast, shape.columns), (work.a.slow, shape.slab)
        products = math.prod(-(-extent // unit) * unit for extent, unit in extents)
        multiplications = 4 * frequencies(work.size) * work.groups * products
        far = self.far_elements(figures) * _FAR_ELEMENT_BYTES / figures.bytes_per_second
        return _seconds(self.nbytes, multiplications, self.by.rate(self.dtype, figures), figures) + far

    def far_elements(self, figures: DeviceFigures) -> int:
        """Of images, those whose sectors the second-level cache has lost when the next channel meets them."""
        found = 0
        for spectra in (getattr(self, name) for name in self.work.batched):
            operand = spectra.operand
            if operand.channel_is_fast or abs(operand.place_strides[1]) == 1:
                continue
            pixels = operand.images * math.prod(operand.extent)
            channels = self.work.groups * operand.channels
            if pixels * _SECTOR_BYTES + spectra.nbytes / channels > figures.l2_bytes * _OF_L2:
                found += pixels * channels
        return found

    def transforms(self, way: str, names: Sequence[str], places: Mapping[FieldPath, Place]) -> Calls:
        """Tiles to spectra, "forward", or back, "inverse".

        Args:
            way: One of the two.
            names: Of which operands: "a", "b" or "c".
            places: Where each operand's spectra begin.
        """
        size, dtype = self.work.size, self.dtype
        calls: Calls = ()
        for name in names:
            spectra: Spectra = getattr(self, name)
            tensor = Place(self.work.number(name), spectra.operand.offset * dtype.itemsize)
            calls += kernel_call(
                tile_unit(way, dtype, size),
                -(-spectra.items // tiles_a_block(dtype)),
                tile_threads(dtype, size),
                spectra.params(),
                {"tensor": tensor, "spectra": places[name]},
                shared_bytes=shared_bytes(dtype, size),
            )
        return calls

    def products(self, places: Mapping[FieldPath, Place], figures: DeviceFigures, *, accumulate: bool) -> Calls:
        """Those of all frequencies."""
        work = ProductWork(
            planes=frequencies(self.work.size) * self.work.groups,
            rows=self.work.c.slow,
            row_pitch=self.b.pitch,
            column_pitch=self.a.pitch,
            depth=self.work.a.slow,
            conjugate=self.work.conjugate,
            accumulate=accumulate,
        )
        return self.shape.calls(work, places, figures)


_LEAST_FREQUENCIES = min(frequencies(size) / size**2 for size in SIZES) * (1 - 1e-9)
"""For a place; a little less, for what rounding adds."""
_FEWEST_FREQUENCIES = min(map(frequencies, SIZES)) * (1 - 1e-9)
"""For a filter's channel; likewise."""


def _seconds(nbytes: float, multiplications: float, rate: float, figures: DeviceFigures) -> float:
    """Estimated time of spectra of so many bytes, and of so many multiplications at a rate for their products."""
    transforms = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE)
    memory = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE_OF_PRODUCTS)
    return transforms + max(multiplications / rate, memory)


def _seconds_beside(problem: ConvolutionProblem, figures: DeviceFigures) -> float:
    """Estimated time of everything else: launches, the tensors that are transformed, and images without rows in memory."""
    launches = _LAUNCHES + _LAUNCHES_OF_SUMS * (problem.direction is Direction.BACKWARD_FILTER)
    read = sum(
        tensor.size * tensor.dtype.itemsize for tensor in problem.inputs
    )  # without gaps, as slices of channels have
    strided = strided_seconds(problem.x, figures) + strided_seconds(problem.y, figures)
    reading = read / (figures.bytes_per_second * _OF_MEMORY_RATE_OF_TENSORS)
    return launches * figures.launch_seconds + reading + strided


def _prepare(whole: Correlation, largest: _Part, figures: DeviceFigures) -> Calls:
    """What is not of the batch is transformed once, the parts of the batch follow one another."""
    batch, images, places = whole.batch, largest.work.batch, largest.places
    batched_inputs = [name for name in ("a", "b") if name in whole.batched]
    other_inputs = [name for name in ("a", "b") if name not in whole.batched]
    output, adds_up = ["c"], "c" not in whole.batched

    def of_part(part: _Part, *, accumulate: bool = False) -> Calls:
        calls = part.transforms("forward", batched_inputs, places)
        calls += part.products(places, figures, accumulate=accumulate)
        return calls if adds_up else calls + part.transforms("inverse", output, places)

    def from_image(start: int, calls: Calls) -> Calls:
        elements = {name: start * getattr(whole, name).strides[1] for name in whole.batched}
        shifted = (elements.get(name, 0) * largest.dtype.itemsize for name in (*whole.inputs, "c"))
        return rewired(calls, [Place(operand, nbytes) for operand, nbytes in enumerate(shifted)])

    calls = largest.transforms("forward", other_inputs, places)
    first = of_part(largest)
    calls += first
    if batch > images:
        following = of_part(largest, accumulate=True) if adds_up else first
        end = batch // images * images
        for start in range(images, end, images):
            calls += from_image(start, following)
        if end < batch:
            calls += from_image(
                end, of_part(_Part.of(whole, largest.dtype, largest.by, batch - end), accumulate=adds_up)
            )
    return calls + largest.transforms("inverse", output, places) if adds_up else calls


@dataclass(frozen=True, slots=True)
class FftTiling(BoundedTwice, Selective):
    """Overlap-save with tiles of 16 x 16 or 32 x 32 places, whichever means less work; one or two spatial dimensions. Immutable.

    The workspace holds the spectra of all three tensors; where they are large the batch is taken in parts, one after the other.

    A transform spreads rounding errors over its tile, see `ERROR_FACTOR`, and special values too: a NaN or an infinity makes NaN of
    every output of the tiles that it lies in, and of every tap of dw that its channel has.

    Args:
        name: See `backend.Algorithm`.
        by: How products of spectra are computed: the first of these for which a device has units, and which are for so many rows.
        of_many_bytes: Share of `_MANY_BYTES`, with more than which the batch is taken in parts.
    """

    name: str
    by: tuple[Products, ...]
    of_many_bytes: float = 1.0

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Of the tensors: the same of all products."""
        return self.by[0].dtypes

    def _rate(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """The highest of its products; 0 where there is none."""
        dtype = problem.x.dtype
        return max([each.rate(dtype, figures) for each in self.by]) if dtype in self.dtypes else 0.0

    def suits(self, kind: ConvolutionKind) -> bool:
        """Those without strides."""
        return max(kind.stride) == 1 and kind.dtypes[0] in self.dtypes

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What spectra take: of images in tiles without overlap, of filters in the smaller tiles; their products, and launches."""
        x, w, y = problem.x, problem.w, problem.y
        rate = self._rate(problem, figures) if max(problem.convolution.stride) == 1 < max(w.shape[2:]) else 0.0
        if not rate:
            return math.inf
        output = x if problem.direction is Direction.BACKWARD_DATA else y
        if not (x.size and problem.outputs[0].size):
            return 0.0
        pairs, numbers = w.shape[0] * w.shape[1], _LEAST_FREQUENCIES * (output.size // output.shape[1])
        of_all = numbers * (x.shape[1] + w.shape[0]) + _FEWEST_FREQUENCIES * pairs
        spectra = _seconds(of_all * 2 * x.dtype.compute.itemsize, 4 * numbers * pairs, rate, figures)
        return _LAUNCHES * figures.launch_seconds + spectra

    def closer_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What the spectra of images and filters take without gaps, once, and their products in full tiles, at the highest rate."""
        rate = self._rate(problem, figures)
        cut = cut_or_reason(problem) if rate else None
        if not isinstance(cut, Cut):
            return math.inf
        if problem.x.size == 0 or problem.outputs[0].size == 0:
            return 0.0
        (images, channels), (filters, group_channels) = problem.x.shape[:2], problem.w.shape[:2]
        tiles, pairs = images * math.prod(cut.tiles), filters * group_channels
        numbers = frequencies(cut.size) * (tiles * (channels + filters) + pairs)
        nbytes = numbers * 2 * problem.x.dtype.compute.itemsize
        least = _seconds(nbytes, 4 * frequencies(cut.size) * tiles * pairs, rate, figures)
        return _seconds_beside(problem, figures) + least * (1 - 1e-9)  # for what rounding adds

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """For strides of 1 and filters that fit into a tile, unless a single image takes too much workspace."""
        dtype = problem.x.dtype
        if dtype not in self.dtypes:
            return f"{dtype.value} is not among what it transforms: {', '.join(each.value for each in self.dtypes)}"
        present = [each for each in self.by if each.rate(dtype, figures)]
        if not present:
            return f"a device of {figures.architecture} has no units for its products"
        cut = cut_or_reason(problem)
        if isinstance(cut, str):
            return cut
        if problem.outputs[0].size == 0:
            return Offer(figures.launch_seconds * _LAUNCHES, tuple, error_factor=ERROR_FACTOR)
        work = correlation(problem, cut)
        by = next(each for each in present if work.c.slow >= each.fewest_rows)
        largest = _Part.largest(work, dtype, by, _MANY_BYTES * self.of_many_bytes)
        if largest.nbytes > _MOST_BYTES:
            return f"its spectra take {largest.nbytes} B; at most {_MOST_BYTES} B"
        parts = -(-work.batch // max(largest.work.batch, 1))
        launches = (parts - 1) * _LAUNCHES_OF_A_PART * figures.launch_seconds
        seconds = _seconds_beside(problem, figures) + launches + parts * largest.seconds(figures)
        return Offer(seconds, partial(_prepare, work, largest, figures), largest.nbytes, error_factor=ERROR_FACTOR)

    def units(self) -> tuple[Unit, ...]:
        """Every unit that it can launch."""
        return (*tile_units(self.dtypes), *(shape.unit for each in self.by for shape in each.every_shape))


FFT_TILING = FftTiling("fft_tiling", (IN_FULL_PRECISION,))
FFT_TILING_3XTF32 = FftTiling("fft_tiling_3xtf32", (BY_WGMMA, BY_TENSOR_CORES))
