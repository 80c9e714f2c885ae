"""The largest tiles with the epilogues that cost next to nothing, straight from the registers: bias, residual, ReLU with or without
a ceiling. What follows most convolutions of a net then takes no pass over the result, and no smaller tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from dnncore.backend import Bounded, Offer
from dnncore.cuda.calls import Call, Calls, in_order, kernel_call
from dnncore.cuda.gemm.algorithm import ProductOf, batches, product_or_reason, why_not_launched
from dnncore.cuda.gemm.index_space import Epilogue, Product
from dnncore.cuda.gemm.kernel import clamped_variant, clamped_variants, why_wide
from dnncore.cuda.gemm.params import fields_of, make_params, tiles_along
from dnncore.cuda.gemm.schedule import choose_schedule, least_seconds
from dnncore.cuda.gemm.tiling import CLAMPED_TILES, AnyTile
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ActivationMode
from dnncore.figures import DeviceFigures

__all__ = ["ClampedGemm"]

_CLAMPS = (ActivationMode.RELU, ActivationMode.CLIPPED_RELU)

_OF_MEMORY_RATE = 0.6573
"""At which residuals are read [assumed: as the epilogue of composed convolutions reads them]."""


@dataclass(frozen=True)
class ClampedGemm(Bounded):
    """A product in the largest tiles with one of the simplest epilogues, without workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
    """

    name: str
    product_of: ProductOf

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        return tuple(variant.unit for variant in clamped_variants())

    def least_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What the product takes on multiprocessors that never wait."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str) or _why_not(product) is not None:
            return math.inf
        return least_seconds(product, CLAMPED_TILES[product.dtype], figures)

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """What the faster tile takes by estimate, and reading a residual."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        reason = _why_not(product)
        if reason is not None:
            return reason
        schedule = choose_schedule(product, CLAMPED_TILES[product.dtype], figures)
        reason = why_not_launched(product, schedule.tile)
        if reason is not None:
            return reason
        residual = product.groups * product.rows * product.num_columns * product.dtype.itemsize
        memory = residual / (figures.bytes_per_second * _OF_MEMORY_RATE) if "z" in product.inputs else 0.0
        return Offer(schedule.seconds + memory, partial(_calls, product, schedule.tile))


def _why_not(product: Product) -> str | None:
    """None where the kernels can compute a product."""
    epilogue = product.epilogue
    assert epilogue is not None, "of a fused problem"
    if product.dtype not in CLAMPED_TILES:
        return f"{product.dtype.value} has no clamped kernels"
    return why_wide(product) or _why_not_clamped(epilogue, product.inputs)


def _why_not_clamped(epilogue: Epilogue, inputs: tuple[str, ...]) -> str | None:
    if epilogue.alpha1 != 1.0 or "scale" in inputs or ("z" in inputs and epilogue.alpha2 not in (0.0, 1.0)):
        return "a factor, or a scale; clamped kernels add a bias and a residual only"
    if epilogue.activation is None or epilogue.activation.mode in _CLAMPS:
        return None
    return f"{epilogue.activation.mode.value}; clamped kernels have ReLU, with or without a ceiling"


def _calls(product: Product, tile: AnyTile) -> Calls:
    if product.is_empty:
        return ()
    variant = clamped_variant(product, tile)
    places = in_order(*fields_of(product.inputs), "c")
    found: list[Call] = []
    for phases in batches(product):
        params = make_params(product, phases, tile.rows, tile.columns)
        rows, columns = tiles_along(product.rows, phases, tile.rows, tile.columns)
        params["row_tiles"], params["column_tiles"] = rows, columns
        blocks = rows * columns * product.groups * len(phases)
        found += kernel_call(variant.unit, blocks, tile.threads, params, places)
    return tuple(found)
