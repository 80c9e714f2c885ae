"""Convolution by Fourier transforms of tiles: for large filters, whose cost it makes nearly independent of their size.

Tiles of inputs and filters are transformed, for each frequency a product of complex matrices is taken, and the result is
transformed back. A filter of 9 x 9 takes about a fourteenth of the direct method's multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.convolution.fft_kernels import (
    PRODUCT_PARAMS,
    ProductShape,
    Spectra,
    product_shape,
    product_unit,
    shared_bytes,
    tile_threads,
    tile_unit,
    tiles_a_block,
    units,
)
from dnncore.cuda.convolution.fft_tiles import SIZES, Correlation, correlation, frequencies
from dnncore.cuda.convolution.locality import strided_seconds
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Kernel, Unit
from dnncore.cuda.params import FLOATING, record
from dnncore.cuda.stream import CudaStream
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem

__all__ = ["FFT_TILING", "FftTiling"]

_MANY_BYTES, _MOST_BYTES = 2**30, 2**32
"""Of workspace: with more than the first the batch is taken in parts; with more than the second the problem is refused."""

_NAMES = ("a", "b", "c")

# Of `seconds`, fitted to 30 layers and directions of benchmarks/layers.py in fp32 on an H200, nearly all of which it meets within
# 15 % [fp64: half the rate].
_LAUNCHES_SECONDS = 24e-6
_BYTES_PER_SECOND = 0.88e12
_RATE = {DType.FLOAT32: 36e12, DType.FLOAT64: 18e12}


def _spectra(work: Correlation, dtype: DType) -> dict[str, Spectra]:
    return {name: Spectra(getattr(work, name), work.size, work.groups, dtype) for name in _NAMES}


def _nbytes(work: Correlation, dtype: DType) -> int:
    return sum(spectra.nbytes for spectra in _spectra(work, dtype).values())


def _images_at_a_time(work: Correlation, dtype: DType) -> int:
    """Largest part of the batch, halved as often as needed, whose workspace is not many bytes; at least one image."""
    images = work.batch
    while images > 1 and _nbytes(work.part(0, images), dtype) > _MANY_BYTES:
        images = -(-images // 2)
    return images


@dataclass(frozen=True, slots=True)
class _Run:
    """What one launch runs with, apart from what was prepared. Immutable."""

    stream: CudaStream
    alpha: float
    beta: float
    tensors: Mapping[str, Address]
    spectra: Mapping[str, Address]


@dataclass(frozen=True, slots=True)
class _TileStep:
    """Tiles of an operand to spectra, or back. Immutable but for the addresses in its parameters."""

    kernel: Kernel
    name: str
    spectra: Spectra
    params: np.ndarray

    def run(self, run: _Run) -> None:
        blocks, dtype = -(-self.spectra.items // tiles_a_block(self.spectra.dtype)), self.spectra.dtype
        if blocks == 0:
            return
        self.params["alpha"], self.params["beta"] = run.alpha, run.beta
        self.params["tensor"] = run.tensors[self.name] + self.spectra.operand.offset * dtype.itemsize
        self.params["spectra"] = run.spectra[self.name]
        size = self.spectra.size
        self.kernel.launch(
            run.stream, (blocks, 1, 1), (tile_threads(dtype, size), 1, 1), self.params, shared_bytes(dtype, size)
        )


@dataclass(frozen=True, slots=True)
class _ProductStep:
    """The products of all frequencies. Immutable but for the addresses in its parameters."""

    kernel: Kernel
    shape: ProductShape
    planes: int
    params: np.ndarray

    def run(self, run: _Run) -> None:
        for name in _NAMES:
            self.params[name] = run.spectra[name]
        blocks = self.planes * int(self.params["row_tiles"]) * int(self.params["column_tiles"])
        self.kernel.launch(run.stream, (blocks, 1, 1), (self.shape.threads, 1, 1), self.params)


def _product_step(work: Correlation, dtype: DType, device: CudaDevice, *, accumulate: bool) -> _ProductStep:
    shape, spectra = product_shape(dtype, work.c.slow), _spectra(work, dtype)
    params = record(
        PRODUCT_PARAMS,
        rows=work.c.slow,
        row_pitch=spectra["b"].pitch,
        column_pitch=spectra["a"].pitch,
        depth=work.a.slow,
        row_tiles=-(-work.c.slow // shape.rows),
        column_tiles=-(-spectra["a"].pitch // shape.columns),
        conjugate=work.conjugate,
        accumulate=accumulate,
    )
    return _ProductStep(device.kernel(product_unit(shape)), shape, frequencies(work.size) * work.groups, params)


@dataclass(frozen=True)
class FftTiling:
    """Overlap-save with tiles of 16 x 16 or 32 x 32 places, whichever means less work; one or two spatial dimensions. Immutable.

    The workspace holds the spectra of all three tensors; where they are large the batch is taken in parts, one after the other.

    A transform spreads rounding errors over its tile, see `error_factor`, and special values too: a NaN or an infinity makes NaN of
    every output of the tiles that it lies in, and of every tap of dw that its channel has.
    """

    name: str = "fft_tiling"
    deterministic: bool = True
    math: str = "dtype"

    @property
    def error_factor(self) -> float:
        """How much larger an error may be than the direct method's, relative to the largest magnitude of the output's plane.

        A transform of N numbers has an error of at most u (1 + 4 sqrt(2)) log2(N), relative to the norm of what it transforms
        (Higham, Accuracy and Stability of Numerical Algorithms, theorem 24.2), and in any direction: an output's own magnitude
        bounds nothing. Roundings being independent, the error is spread evenly over the tile and grows like the root of their
        number in a row, which is log2(N) and two for the split of real sequences, in each of three transforms.
        `dnncore.testing.tolerance` allows the direct method 8 u and more for the terms; here it is four times that root more.
        """
        return 1 + 4 * math.sqrt(3 * (math.log2(SIZES[-1] ** 2) + 2)) / 8

    def supports(self, problem: ConvolutionProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 (the Protocol's)
        """None for strides of 1 and filters that fit into a tile, unless a single image takes too much workspace."""
        if problem.x.dtype not in FLOATING:
            return f"{problem.x.dtype.value} is not transformed"
        work = correlation(problem)
        if isinstance(work, str):
            return work
        nbytes = self.workspace_bytes(problem)
        return f"its spectra take {nbytes} B; at most {_MOST_BYTES} B" if nbytes > _MOST_BYTES else None

    def workspace_bytes(self, problem: ConvolutionProblem) -> int:
        """Bytes of the spectra of as many images as are taken at a time; 0 where it does not apply."""
        work = correlation(problem)
        if isinstance(work, str) or problem.outputs[0].size == 0:
            return 0
        dtype = problem.x.dtype
        return _nbytes(work.part(0, _images_at_a_time(work, dtype)), dtype)

    def seconds(self, problem: ConvolutionProblem) -> float:
        """Estimated time on an H200: the launches, the spectra through memory, and the products in whole tiles."""
        work, dtype = correlation(problem), problem.x.dtype
        if isinstance(work, str) or dtype not in FLOATING or 0 in (work.batch, problem.outputs[0].size):
            return math.inf
        images = _images_at_a_time(work, dtype)
        part = work.part(0, images)
        parts = -(-work.batch // images)
        shape = product_shape(dtype, part.c.slow)
        rows, columns = (
            -(-extent // unit) * unit for extent, unit in ((part.c.slow, shape.rows), (part.c.fast, shape.columns))
        )
        multiplications = 4 * frequencies(work.size) * work.groups * rows * columns * part.a.slow
        rate = _RATE[dtype.compute]
        strided = strided_seconds(problem.x) + strided_seconds(problem.y)
        return _LAUNCHES_SECONDS + strided + parts * (_nbytes(part, dtype) / _BYTES_PER_SECOND + multiplications / rate)

    def units(self) -> tuple[Unit, ...]:
        """Every unit that `prepare` can ask for."""
        return units()

    def prepare(self, problem: ConvolutionProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters of every step."""
        if problem.outputs[0].size == 0:
            return _nothing
        work, dtype = correlation(problem), problem.x.dtype
        assert isinstance(work, Correlation)

        def tiles(way: str, name: str, of: Correlation) -> _TileStep:
            spectra = _spectra(of, dtype)[name]
            return _TileStep(device.kernel(tile_unit(way, dtype, of.size)), name, spectra, spectra.params())

        images = _images_at_a_time(work, dtype)
        starts = range(0, work.batch, images) if work.batch else (0,)
        steps: list[_TileStep | _ProductStep] = [
            tiles("forward", name, work) for name in ("a", "b") if name not in work.batched
        ]
        for start in starts:
            part = work.part(start, min(images, work.batch - start))
            steps += [tiles("forward", name, part) for name in ("a", "b") if name in work.batched]
            steps.append(_product_step(part, dtype, device, accumulate="c" not in work.batched and start > 0))
            if "c" in work.batched:
                steps.append(tiles("inverse", "c", part))
        if "c" not in work.batched:
            steps.append(tiles("inverse", "c", work))
        return _sequence(work, _spectra(work.part(0, images), dtype), steps)


def _sequence(work: Correlation, sizes: Mapping[str, Spectra], steps: Sequence[_TileStep | _ProductStep]) -> Launch:
    def launch(
        stream: Stream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        assert isinstance(stream, CudaStream)
        assert workspace is not None
        tensors = {**dict(zip(work.inputs, inputs, strict=True)), "c": outputs[0]}
        spectra, end = {}, workspace
        for name in _NAMES:
            spectra[name] = end
            end += sizes[name].nbytes
        run = _Run(stream, alpha, beta, tensors, spectra)
        for step in steps:
            step.run(run)

    return launch


def _nothing(
    stream: Stream,
    alpha: float,
    inputs: Sequence[Address],
    beta: float,
    outputs: Sequence[Address],
    workspace: Address | None,
) -> None:
    """Launch of a problem whose output is empty."""


FFT_TILING = FftTiling()
