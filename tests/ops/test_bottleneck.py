"""The kernel that keeps what lies within a bottleneck on the chip, where operands suit it, and where they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dnncore import Handle
from dnncore.backend import Offer
from dnncore.cuda.bottleneck import ALGORITHMS
from dnncore.cuda.convolution.batch_parts import images
from dnncore.figures import H200
from dnncore.problems import BottleneckProblem
from tests.cases.bottleneck import CASES
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

SMALL = {case.name.removeprefix("bottleneck-"): case for case in CASES}

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not CUDA_DEVICES, reason="no CUDA device, emulated or not")]


@pytest.mark.parametrize("name", ["x-added", "z-added-bf16", "shortcut"])
def test_operands_that_start_at_an_odd_element_are_as_good(name: str) -> None:
    with Handle(CUDA_DEVICES[0]) as handle:
        assert "bottleneck_wgmma_" in handle.plan(SMALL[name].problem, algorithm="bottleneck_wgmma").describe()
        check(handle, SMALL[name], "bottleneck_wgmma", guard=GUARD + 1)


@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize("name", ["x-added", "z-added-bf16", "blended-bf16", "shortcut", "shortcut-bf16"])
def test_blocks_go_from_tile_to_tile(name: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both consumers have several, in turn, and the ring goes round."""
    monkeypatch.setattr("dnncore.cuda.figures.of_device", lambda *_: replace(H200, multiprocessors=blocks))
    case = SMALL[name]
    problem = case.problem
    assert isinstance(problem, BottleneckProblem)
    z = None if problem.z is None else images(problem.z, 4)
    more = replace(problem, x=images(problem.x, 4), y=images(problem.y, 4), z=z)
    with Handle(CUDA_DEVICES[0]) as few:
        launch = next(
            line
            for line in few.plan(more, algorithm="bottleneck_wgmma").describe().splitlines()
            if " blocks of " in line
        )
        assert f"_wgmma_{problem.x.dtype.value}" in launch
        assert f": {blocks} blocks of 384 threads" in launch
        check(few, replace(case, problem=more), "bottleneck_wgmma")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wide-shortcut", "128 channels and a shortcut"),
        ("halved", "stride 2"),
        ("few-channels-bf16", "24 channels to 8 to 24"),
        ("planar", "16 channels to 8 to 16"),
    ],
)
def test_what_the_kernel_does_not_take_is_left_to_the_layers(name: str, reason: str) -> None:
    on_chip, layers = ALGORITHMS
    assert reason in str(on_chip.offer(SMALL[name].problem, H200))
    assert isinstance(layers.offer(SMALL[name].problem, H200), Offer)


def test_what_is_computed_elsewhere_takes_the_workspace_of_few_images() -> None:
    problem = SMALL["shortcut"].problem
    assert isinstance(problem, BottleneckProblem)
    many = replace(problem, x=images(problem.x, 4096), y=images(problem.y, 4096))
    found, layers = (algorithm.offer(many, H200) for algorithm in ALGORITHMS)
    assert isinstance(found, Offer)
    assert isinstance(layers, Offer)
    assert found.workspace_bytes <= H200.l2_bytes < layers.workspace_bytes
