"""Every variant of the tiled GEMM computes every product that it can be given, also where the heuristics would take another.

The cases of `tests/ops` run every algorithm, but their problems are small, and for small problems few tiles are ever chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dnncore import Handle
from dnncore.cuda.algorithms import all_units
from dnncore.cuda.gemm import algorithm, kernel
from dnncore.cuda.gemm.index_space import Product
from dnncore.cuda.gemm.kernel import Variant, choose_variant, variants
from dnncore.cuda.gemm.tiling import Tile
from dnncore.cuda.launch import Unit
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction, MatmulProblem
from tests.cases import CASES, Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import check

pytestmark = pytest.mark.cuda

CHOSEN = [variant for variant in variants() if not variant.wide]  # the wide ones have cases of their own


@pytest.fixture(scope="module")
def device() -> str:
    return CUDA_DEVICES[0]


@pytest.fixture
def fresh_handle(device: str) -> Iterator[Handle]:
    """One that remembers no plan."""
    with Handle(device) as handle:
        yield handle


def _padded(dtype: DType, rows: int) -> ConvolutionProblem:
    """`rows` filters over 2 images: 140 columns, sums of 27."""
    conv = ConvolutionDescriptor.make(padding=1)
    x, w = TensorDescriptor.packed((2, 3, 7, 10), dtype), TensorDescriptor.packed((rows, 3, 3, 3), dtype)
    y = TensorDescriptor.packed(conv.output_shape(x.shape, w.shape), dtype)
    return ConvolutionProblem(Direction.FORWARD, x, w, y, conv)


def _dense(dtype: DType, rows: int) -> MatmulProblem:
    a, b, c = ((rows, 27), (27, 140), (rows, 140))
    return MatmulProblem(*(TensorDescriptor.packed(shape, dtype) for shape in (a, b, c)))


@pytest.mark.parametrize("variant", CHOSEN, ids=lambda variant: variant.unit.entry)
def test_a_product_that_fills_one_tile_and_begins_another(
    variant: Variant, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithm, "tiles_for", lambda _product: (variant.tile,))
    monkeypatch.setattr(kernel, "choose_walks", lambda _product: variant.walks)
    chosen: set[Variant] = set()

    def remember(product: Product, tile: Tile) -> Variant:
        chosen.add(found := choose_variant(product, tile))
        return found

    monkeypatch.setattr(algorithm, "choose_variant", remember)
    rows = variant.tile.rows + 3
    problem = (_padded if variant.padded else _dense)(variant.tile.dtype, rows)
    name = "implicit_gemm" if variant.padded else "gemm"
    check(fresh_handle, Case(variant.unit.entry, problem), name)
    assert chosen == {variant}


class _Asked:
    """A device that notes which units algorithms ask for."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.units: set[Unit] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def kernel(self, unit: Unit) -> object:
        self.units.add(unit)
        return object()  # nothing is launched


def test_the_cases_of_all_tests_together_run_every_kernel(handles: dict[str, Handle], device: str) -> None:
    asked = _Asked(handles[device].device)
    for case in CASES:
        for candidate in handles[device].device.algorithms(case.problem):
            if candidate.supports(case.problem, asked) is None:
                candidate.prepare(case.problem, asked)
    covered = asked.units | {variant.unit for variant in CHOSEN}
    assert sorted(unit.entry for unit in set(all_units()) - covered) == []
