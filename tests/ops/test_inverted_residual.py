"""The kernel that keeps expanded channels on the chip, in each of its tiles."""

from __future__ import annotations

import pytest

from dnncore import Handle
from dnncore.cuda import inverted_residual
from tests.cases.inverted_residual import CASES
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

SMALL = {case.name.removeprefix("inverted-residual-"): case for case in CASES}

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not CUDA_DEVICES, reason="no CUDA device, emulated or not")]


TILES = (
    ((128, 32), "residual"),
    ((128, 32), "tiles-that-end-within"),
    ((128, 96), "halved-bf16"),
    ((128, 96), "wide"),
    ((64, 160), "not-expanded"),
    ((64, 320), "many-outputs"),
)


def kernel(tile: tuple[int, int], name: str) -> str:
    pixels, outputs = tile
    return f"inverted_residual_{pixels}x{outputs}_{SMALL[name].problem.outputs[0].dtype.value}"


KERNELS = {kernel(tile, name) for tile, name in TILES}
"""What these tests launch; some of it is for large problems otherwise."""


@pytest.mark.parametrize(("tile", "name"), TILES, ids=str)
def test_every_tile_gives_the_layers_result(tile: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inverted_residual, "_SHAPES", (tile,))
    with Handle(CUDA_DEVICES[0]) as handle:
        assert f"{kernel(tile, name)}:" in handle.plan(SMALL[name].problem, algorithm="on_chip").describe()
        check(handle, SMALL[name], "on_chip")


@pytest.mark.parametrize("name", ["residual", "halved-bf16"])
def test_operands_that_start_at_an_odd_element_are_as_good(name: str) -> None:
    with Handle(CUDA_DEVICES[0]) as handle:
        check(handle, SMALL[name], "on_chip", guard=GUARD + 1)
