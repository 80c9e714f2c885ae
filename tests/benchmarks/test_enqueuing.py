"""What is launched nowhere is bound and counted all the same."""

from __future__ import annotations

import pytest
from torch import nn

import dnncore.torch as dt
from benchmarks.enqueuing import WAYS, cost_of_steps
from benchmarks.launches import tally_step
from dnncore.cuda.runtime import driver
from dnncore.torch import bridge


def _net() -> nn.Module:
    body = nn.Conv2d(3, 64, 8, 8, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(64 * 14 * 14, 10))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_step_is_enqueued_without_a_device(layout: str, way: str) -> None:
    before = driver.bindings
    (cost,) = cost_of_steps([dt.convert(_net(), fuse=WAYS[way]).model], 2, layout, steps=2, warm_up=1)
    tallies = tally_step(dt.convert(_net(), fuse=WAYS[way]).model, 2, layout)
    fused = way == "converted"
    casts = int(fused)  # images that are counted with are float32, and a chain casts them itself
    assert cost.launches == sum(tally.launches for tally in tallies.values()) - casts > 5
    assert ("chain_forward" in tallies) == fused
    assert cost.forward_ms >= 0
    assert cost.backward_ms >= 0
    assert driver.bindings is before
    assert "prepare" not in vars(bridge._thread)


def test_launches_of_a_chain_are_replayed_once_their_addresses_have_come_again() -> None:
    def cost(warm_up: int, one_by_one: bool = False) -> tuple[int, int, int]:
        layers = [layer for _ in range(3) for layer in (nn.Conv2d(3, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU())]
        net = dt.convert(nn.Sequential(*layers)).model
        (found,) = cost_of_steps([net], 2, "NCHW", steps=1, warm_up=warm_up, one_by_one=one_by_one)
        return found.launches, found.graphs, found.alone

    launches, graphs, alone = cost(3)
    assert graphs > 0
    assert alone < launches
    assert cost(2) == cost(3, one_by_one=True) == (launches, 0, launches)
