"""The tiled product with a table of the reduction in the workspace, written first by a kernel of its own.

Without it every block divides for each reduction index; with it they read 16 bytes that the L2 cache holds for all of them. What a
column adds to an address is still worked out by the block: that is once a thread, and the table of all columns would be as large as
the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.gemm.algorithm import (
    AlignedKernels,
    ProductOf,
    batches,
    fill_inputs,
    nothing,
    product_or_reason,
    sequence,
    why_not_launched,
)
from dnncore.cuda.gemm.index_space import Phase, Product
from dnncore.cuda.gemm.kernel import (
    TABLE_ENTRY_BYTES,
    TABLE_THREADS,
    table_unit,
    tiles_for,
    variants,
    why_no_tile,
    why_wide,
)
from dnncore.cuda.gemm.params import make_params
from dnncore.cuda.gemm.tiling import AnyTile, choose_schedule
from dnncore.cuda.launch import Kernel, Unit
from dnncore.cuda.stream import CudaStream

__all__ = ["PrecomputedGemm"]

_MAX_ENTRIES = 2**31
"""Entries are counted in 32 bits."""


def _entries(phases: Sequence[Phase]) -> list[int]:
    """Room for each phase's entries; one that adds up nothing has room for one, so that there is a table always."""
    return [max(phase.reduction_length, 1) for phase in phases]


def _tile(product: Product) -> AnyTile:
    return choose_schedule(product, tiles_for(product, extended=True, whole=True)).tile


@dataclass(frozen=True)
class PrecomputedGemm:
    """A problem as a product in tiles whose reduction's offsets and coordinates are precomputed in the workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
    """

    name: str
    product_of: ProductOf
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: Any, device: Any) -> str | None:  # noqa: ARG002 (the Protocol's signature)
        """None when an entry of the table can hold what the problem needs, else the reason why not."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        reason = why_wide(product)
        if reason is not None:
            return f"only narrow kernels read a table: {reason}"
        if self.workspace_bytes(problem) > _MAX_ENTRIES * TABLE_ENTRY_BYTES:
            return f"its table would have more than {_MAX_ENTRIES} entries"
        return why_no_tile(product, extended=True) or why_not_launched(product, _tile(product))

    def workspace_bytes(self, problem: Any) -> int:
        """Bytes of the largest table that a launch needs: 16 a reduction index of each of its phases."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return 0
        return TABLE_ENTRY_BYTES * max((sum(_entries(phases)) for phases in batches(product)), default=0)

    def units(self) -> tuple[Unit, ...]:
        """Every unit that `prepare` can ask for."""
        narrow = (variant.unit for variant in variants(extended=True) if not variant.wide)
        return (*narrow, table_unit())

    def prepare(self, problem: Any, device: CudaDevice) -> Launch:
        """Choose tile and variant and fill in the parameters, which both kernels take."""
        product = self.product_of(problem)
        assert isinstance(product, Product)
        if product.rows == 0 or product.groups == 0 or product.num_columns == 0:
            return nothing
        tile = _tile(product)
        table_kernel = device.kernel(table_unit())
        return sequence([_one(device, table_kernel, product, phases, tile) for phases in batches(product)])


def _one(device: CudaDevice, table_kernel: Kernel, product: Product, phases: Sequence[Phase], tile: AnyTile) -> Launch:
    params = make_params(product, phases, tile.rows, tile.columns)
    kernels = AlignedKernels(device, product, phases, tile, extended=True)
    lengths = _entries(phases)
    for i in range(len(phases)):
        params["phase"][i]["first_entry"] = sum(lengths[:i])
    table_grid = (math.ceil(max(lengths) / TABLE_THREADS), len(phases), 1)

    def launch(
        stream: Stream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        assert isinstance(stream, CudaStream)
        params["alpha"], params["beta"] = alpha, beta
        fill_inputs(params, product.inputs, inputs)
        (params["c"],) = outputs
        params["table"] = workspace
        table_kernel.launch(stream, table_grid, (TABLE_THREADS, 1, 1), params)
        kernels.launch(stream, params)

    return launch
