"""The tiled kernels as algorithms: of any problem that some function can turn into a `Product`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.gemm.index_space import Phase, Product
from dnncore.cuda.gemm.kernel import (
    SUM_THREADS,
    Variant,
    choose_variant,
    general_tile,
    sum_unit,
    tiles_for,
    variants,
    why_no_tile,
)
from dnncore.cuda.gemm.params import MAX_PHASES, make_params, tiles_along
from dnncore.cuda.gemm.tiling import LONGEST_SUM, TILES, AnyTile, Schedule, choose_schedule, tile_counts
from dnncore.cuda.launch import Kernel, Unit
from dnncore.cuda.stream import CudaStream

__all__ = [
    "AlignedKernels",
    "ProductOf",
    "SplitGemm",
    "TiledGemm",
    "batches",
    "fill_inputs",
    "nothing",
    "product_or_reason",
    "sequence",
    "why_not_launched",
]

_MAX_LAUNCHES = 8
_MAX_BLOCKS = 2**31 - 1

ProductOf = Callable[[Any], Product | str]
"""Turns a problem into a product, or gives the reason why it is better not."""


def _schedule(product: Product, *, split: bool = False) -> Schedule | None:
    """None where no kernel can compute a product with its epilogue, or such long sums in one go."""
    tiles = tiles_for(product, extended=product.epilogue is not None, whole=not split)
    return choose_schedule(product, tiles, split=split) if tiles else None


def product_or_reason(product_of: ProductOf, problem: Any) -> Product | str:
    """Turn a problem into a product that the structs can hold, or give the reason why it is not one."""
    product = product_of(problem)
    if isinstance(product, str):
        return product
    if product.dtype not in TILES:
        return f"{product.dtype.value} has no tiled kernels"
    return product.why_not_tiled() or product


def why_not_launched(product: Product, tile: AnyTile) -> str | None:
    """None when a few grids hold all tiles of all phases, else the reason why not."""
    if len(product.phases) > _MAX_LAUNCHES * MAX_PHASES:
        return f"its strides make {len(product.phases)} dense products; at most {_MAX_LAUNCHES * MAX_PHASES}"
    blocks = sum(tile_counts(general_tile(tile), product))
    return f"{blocks} tiles; at most {_MAX_BLOCKS // MAX_PHASES}" if blocks > _MAX_BLOCKS // MAX_PHASES else None


def batches(product: Product) -> list[tuple[Phase, ...]]:
    """Cut the phases into as many as one launch takes."""
    return [product.phases[start : start + MAX_PHASES] for start in range(0, len(product.phases), MAX_PHASES)]


def fill_inputs(params: np.ndarray, names: Sequence[str], inputs: Sequence[Address]) -> None:
    """Fill in the addresses of a product's inputs; those of its epilogue have a struct of their own."""
    for name, address in zip(names, inputs, strict=True):
        (params if name in ("a", "b") else params["epilogue"])[name] = address


@dataclass(frozen=True)
class TiledGemm:
    """A problem as a product in tiles, without workspace; a phase's sums are added in order. Immutable.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
        fused: Whether its products have epilogues.
    """

    name: str
    product_of: ProductOf
    fused: bool = False
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: Any, device: Any) -> str | None:  # noqa: ARG002 (the Protocol's signature)
        """None when the kernels' structs can hold the problem, else the reason why not."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        schedule = _schedule(product)
        if schedule is None:
            return why_no_tile(product, extended=product.epilogue is not None)
        return why_not_launched(product, schedule.tile)

    def seconds(self, problem: Any) -> float:
        """Estimated time on an H200."""
        product = product_or_reason(self.product_of, problem)
        schedule = None if isinstance(product, str) else _schedule(product)
        return math.inf if schedule is None else schedule.seconds

    def workspace_bytes(self, problem: Any) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """Every unit that `prepare` can ask for."""
        return tuple(variant.unit for variant in variants(extended=self.fused))

    def prepare(self, problem: Any, device: CudaDevice) -> Launch:
        """Choose tile and variant and fill in the parameters."""
        product = self.product_of(problem)
        assert isinstance(product, Product)
        if product.rows == 0 or product.groups == 0 or product.num_columns == 0:
            return nothing
        schedule = _schedule(product)
        assert schedule is not None
        tile = schedule.tile
        return sequence([_one(device, product, phases, tile, self.fused) for phases in batches(product)])


@dataclass(frozen=True)
class _TiledKernel:
    """A kernel and how its tiles cover the phases of one launch. Immutable."""

    kernel: Kernel
    threads: int
    row_tiles: int
    column_tiles: int

    @classmethod
    def of(cls, device: CudaDevice, product: Product, phases: Sequence[Phase], variant: Variant) -> _TiledKernel:
        tile = variant.tile
        rows, columns = tiles_along(product.rows, phases, tile.rows, tile.columns)
        return cls(device.kernel(variant.unit), tile.threads, rows, columns)


class AlignedKernels:
    """The kernel of a tile for operands that start at multiples of 16 bytes, and that for any others. Immutable.

    Args:
        device: Where they run.
        product: What is computed.
        phases: Which of its phases.
        tile: A tile that `choose_variant` takes.
        splits: Parts of the reduction.
        extended: Whether it must know epilogues and tables.
    """

    def __init__(
        self,
        device: CudaDevice,
        product: Product,
        phases: Sequence[Phase],
        tile: AnyTile,
        *,
        splits: int = 1,
        extended: bool = False,
    ) -> None:
        self._aligned, self._any = (
            _TiledKernel.of(device, product, phases, choose_variant(product, tile, extended=extended, aligned=aligned))
            for aligned in (True, False)
        )
        self._blocks_a_tile = product.groups * len(phases) * splits

    def launch(self, stream: CudaStream, params: np.ndarray) -> None:
        """Enqueue the one for the addresses in params, and say there how it tiles the product."""
        chosen = self._aligned if (int(params["a"]) | int(params["b"])) % 16 == 0 else self._any
        params["row_tiles"], params["column_tiles"] = chosen.row_tiles, chosen.column_tiles
        blocks = chosen.row_tiles * chosen.column_tiles * self._blocks_a_tile
        chosen.kernel.launch(stream, (blocks, 1, 1), (chosen.threads, 1, 1), params)


def _one(device: CudaDevice, product: Product, phases: Sequence[Phase], tile: AnyTile, extended: bool) -> Launch:
    params = make_params(product, phases, tile.rows, tile.columns)
    kernels = AlignedKernels(device, product, phases, tile, extended=extended)

    def launch(
        stream: Stream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,  # noqa: ARG001 (none was asked for)
    ) -> None:
        assert isinstance(stream, CudaStream)
        params["alpha"], params["beta"] = alpha, beta
        fill_inputs(params, product.inputs, inputs)
        (params["c"],) = outputs
        kernels.launch(stream, params)

    return launch


def nothing(
    stream: Stream,
    alpha: float,
    inputs: Sequence[Address],
    beta: float,
    outputs: Sequence[Address],
    workspace: Address | None,
) -> None:
    """Launch of a problem whose output is empty."""


def sequence(launches: Sequence[Launch]) -> Launch:
    """Make one launch of several, in order."""
    if len(launches) == 1:
        return launches[0]

    def launch(
        stream: Stream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        for each in launches:
            each(stream, alpha, inputs, beta, outputs, workspace)

    return launch


def _split_schedule(product: Product) -> Schedule:
    """The parts are sums without an epilogue, which is the business of the kernel that adds them up."""
    schedule = _schedule(replace(product, epilogue=None), split=True)
    assert schedule is not None
    return schedule


@dataclass(frozen=True)
class SplitGemm:
    """A product with few tiles and a long reduction, which is cut into parts that are added in a fixed order. Immutable.

    The workspace holds the sums of every part; of int8 they and their total are exact, however long it is. How many parts there are
    depends on the problem alone.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
        fused: Whether its products have epilogues.
    """

    name: str
    product_of: ProductOf
    fused: bool = False
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: Any, device: Any) -> str | None:  # noqa: ARG002 (the Protocol's signature)
        """None when cutting the reduction is faster by estimate, or needed for accuracy, else the reason why not."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        if product.rows == 0 or product.num_columns == 0 or len(product.phases) != 1:
            return (
                f"{len(product.phases)} dense products of {product.rows} x {product.num_columns}; needs one, not empty"
            )
        split, summands = _split_schedule(product), product.phases[0].reduction_length
        whole = _schedule(product) or _schedule(replace(product, epilogue=None))
        is_slower = whole is not None and split.seconds >= whole.seconds
        if split.splits < 2 or (is_slower and summands <= LONGEST_SUM):
            (tiles,) = tile_counts((whole or split).tile, product)
            return f"{tiles} tiles of {summands} summands each are not worth splitting"
        return None

    def seconds(self, problem: Any) -> float:
        """Estimated time on an H200."""
        product = product_or_reason(self.product_of, problem)
        return math.inf if isinstance(product, str) or len(product.phases) != 1 else _split_schedule(product).seconds

    def workspace_bytes(self, problem: Any) -> int:
        """Bytes of the parts' sums; 0 where nothing is split."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str) or len(product.phases) != 1:
            return 0
        elements = product.groups * product.rows * product.num_columns
        return _split_schedule(product).splits * elements * product.sum_dtype.itemsize

    def units(self) -> tuple[Unit, ...]:
        """Every unit that `prepare` can ask for."""
        sums = (sum_unit(dtype, extended=self.fused) for dtype in TILES)
        return (*(variant.unit for variant in variants()), *sums)

    def prepare(self, problem: Any, device: CudaDevice) -> Launch:
        """Choose tile, variant and parts and fill in the parameters of both kernels."""
        product = self.product_of(problem)
        assert isinstance(product, Product)
        schedule, partial = _split_schedule(product), product.partial_sums()
        tile, part_size = schedule.tile, product.groups * partial.c_group_stride
        parts = make_params(partial, partial.phases, tile.rows, tile.columns)
        parts["alpha"] = 1.0
        parts["splits"], parts["split_length"], parts["split_stride"] = (
            schedule.splits,
            schedule.split_length,
            part_size,
        )
        total = make_params(product, product.phases, 1, SUM_THREADS)
        total["a_row_stride"], total["a_group_stride"] = partial.c_row_stride, partial.c_group_stride
        total["splits"], total["split_stride"] = schedule.splits, part_size

        parts_kernels = AlignedKernels(device, product, product.phases, tile, splits=schedule.splits)
        total_kernel = device.kernel(sum_unit(product.dtype, extended=self.fused))
        total_grid = (int(total["column_tiles"]) * product.rows * product.groups, 1, 1)

        def launch(
            stream: Stream,
            alpha: float,
            inputs: Sequence[Address],
            beta: float,
            outputs: Sequence[Address],
            workspace: Address | None,
        ) -> None:
            assert isinstance(stream, CudaStream)
            fill_inputs(parts, product.inputs, inputs)
            fill_inputs(total, product.inputs, inputs)
            parts["c"] = total["a"] = workspace
            total["alpha"], total["beta"] = alpha, beta
            (total["c"],) = outputs
            parts_kernels.launch(stream, parts)
            total_kernel.launch(stream, total_grid, (SUM_THREADS, 1, 1), total)

        return launch
