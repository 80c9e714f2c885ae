"""The tiled kernels as algorithms: of any problem that some function can turn into a `Product`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.gemm.index_space import Product
from dnncore.cuda.gemm.kernel import SUM_THREADS, choose_variant, sum_unit, tiles_for, variants
from dnncore.cuda.gemm.params import MAX_PHASES, make_params
from dnncore.cuda.gemm.tiling import LONGEST_SUM, TILES, Schedule, choose_schedule
from dnncore.cuda.launch import Unit, single
from dnncore.cuda.stream import CudaStream

__all__ = ["SplitGemm", "TiledGemm"]

_MAX_LAUNCHES = 8
_MAX_BLOCKS = 2**31 - 1

ProductOf = Callable[[Any], Product | str]
"""Turns a problem into a product, or gives the reason why it is better not."""


def _schedule(product: Product, *, split: bool = False) -> Schedule:
    return choose_schedule(product, tiles_for(product), split=split)


def _product_or_reason(product_of: ProductOf, problem: Any) -> Product | str:
    product = product_of(problem)
    if isinstance(product, str):
        return product
    return product.why_not_tiled() or product


@dataclass(frozen=True)
class TiledGemm:
    """A problem as a product in tiles, without workspace; a phase's sums are added in order. Immutable.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
    """

    name: str
    product_of: ProductOf
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: Any, device: Any) -> str | None:  # noqa: ARG002 (the Protocol's signature)
        """None when the kernels' structs can hold the problem, else the reason why not."""
        product = _product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        if len(product.phases) > _MAX_LAUNCHES * MAX_PHASES:
            return f"its strides make {len(product.phases)} dense products; at most {_MAX_LAUNCHES * MAX_PHASES}"
        blocks = sum(_schedule(product).tile.counts(product))
        return f"{blocks} tiles; at most {_MAX_BLOCKS // MAX_PHASES}" if blocks > _MAX_BLOCKS // MAX_PHASES else None

    def workspace_bytes(self, problem: Any) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """Every unit that `prepare` can ask for."""
        return tuple(variant.unit for variant in variants())

    def prepare(self, problem: Any, device: CudaDevice) -> Launch:
        """Choose tile and variant and fill in the parameters."""
        product = self.product_of(problem)
        assert isinstance(product, Product)
        if product.rows == 0 or product.groups == 0 or product.num_columns == 0:
            return _nothing
        tile = _schedule(product).tile
        kernel = device.kernel(choose_variant(product, tile).unit)
        launches = []
        for start in range(0, len(product.phases), MAX_PHASES):
            phases = product.phases[start : start + MAX_PHASES]
            params = make_params(product, phases, tile.rows, tile.columns)
            blocks = int(params["row_tiles"]) * int(params["column_tiles"]) * product.groups * len(phases)
            launches.append(single(kernel, (blocks, 1, 1), (tile.threads, 1, 1), params, product.inputs, ("c",)))
        return launches[0] if len(launches) == 1 else _sequence(launches)


def _nothing(
    stream: Stream,
    alpha: float,
    inputs: Sequence[Address],
    beta: float,
    outputs: Sequence[Address],
    workspace: Address | None,
) -> None:
    """Launch of a problem whose output is empty."""


def _sequence(launches: Sequence[Launch]) -> Launch:
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


@dataclass(frozen=True)
class SplitGemm:
    """A product with few tiles and a long reduction, which is cut into parts that are added in a fixed order. Immutable.

    The workspace holds the sums of every part. How many parts there are depends on the problem alone.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
    """

    name: str
    product_of: ProductOf
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: Any, device: Any) -> str | None:  # noqa: ARG002 (the Protocol's signature)
        """None when cutting the reduction is faster by estimate, or needed for accuracy, else the reason why not."""
        product = _product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        if product.rows == 0 or product.num_columns == 0 or len(product.phases) != 1:
            return (
                f"{len(product.phases)} dense products of {product.rows} x {product.num_columns}; needs one, not empty"
            )
        whole, split = _schedule(product), _schedule(product, split=True)
        (tiles,), summands = whole.tile.counts(product), product.phases[0].reduction_length
        if split.splits < 2 or (split.seconds >= whole.seconds and summands <= LONGEST_SUM):
            return f"{tiles} tiles of {summands} summands each are not worth splitting"
        return None

    def workspace_bytes(self, problem: Any) -> int:
        """Bytes of the parts' sums; 0 where nothing is split."""
        product = _product_or_reason(self.product_of, problem)
        if isinstance(product, str) or len(product.phases) != 1:
            return 0
        elements = product.groups * product.rows * product.num_columns
        return _schedule(product, split=True).splits * elements * product.dtype.itemsize

    def units(self) -> tuple[Unit, ...]:
        """Every unit that `prepare` can ask for."""
        return (*(variant.unit for variant in variants()), *(sum_unit(dtype) for dtype in TILES))

    def prepare(self, problem: Any, device: CudaDevice) -> Launch:
        """Choose tile, variant and parts and fill in the parameters of both kernels."""
        product = self.product_of(problem)
        assert isinstance(product, Product)
        schedule, partial = _schedule(product, split=True), product.partial_sums()
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

        parts_kernel = device.kernel(choose_variant(product, tile).unit)
        total_kernel = device.kernel(sum_unit(product.dtype))
        tiles = int(parts["row_tiles"]) * int(parts["column_tiles"]) * product.groups
        parts_grid = (tiles * schedule.splits, 1, 1)
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
            for name, address in zip(product.inputs, inputs, strict=True):
                parts[name] = address
            parts["c"] = total["a"] = workspace
            total["alpha"], total["beta"] = alpha, beta
            (total["c"],) = outputs
            parts_kernel.launch(stream, parts_grid, (tile.threads, 1, 1), parts)
            total_kernel.launch(stream, total_grid, (SUM_THREADS, 1, 1), total)

        return launch
