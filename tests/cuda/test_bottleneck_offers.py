"""How bottlenecks are ranked: by what they took on an H200; and what scratch memory they ask for."""

from __future__ import annotations

import pytest

from dnncore import TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.bottleneck import ALGORITHMS
from dnncore.cuda.convolution.batch_parts import LITTLE_OF_L2
from dnncore.descriptors import ActivationDescriptor, Layout
from dnncore.figures import H200
from dnncore.problems import BottleneckProblem


def block(batch: int, channels: int, added: str) -> BottleneckProblem:
    """Of ResNet-50's first stage, in fp16; `added` is "x", "shortcut" or "z"."""

    def lying(*shape: int) -> TensorDescriptor:
        return TensorDescriptor.packed(shape, "float16", Layout.NHWC)

    def bias(count: int) -> TensorDescriptor:
        return TensorDescriptor.packed((1, count, 1, 1))

    return BottleneckProblem(
        *(lying(batch, channels, 56, 56), lying(64, channels, 1, 1), lying(64, 64, 3, 3), lying(256, 64, 1, 1)),
        lying(batch, 256, 56, 56),
        *(bias(64), bias(64), bias(256)),
        shortcut=lying(256, channels, 1, 1) if added == "shortcut" else None,
        shortcut_bias=bias(256) if added == "shortcut" else None,
        z=lying(batch, 256, 56, 56) if added == "z" else None,
        activation=ActivationDescriptor.make("relu"),
        residual=added == "x",
    )


def offers(problem: BottleneckProblem) -> dict[str, Offer]:
    found = {algorithm.name: algorithm.offer(problem, H200) for algorithm in ALGORITHMS}
    return {name: offer for name, offer in found.items() if isinstance(offer, Offer)}


# Microseconds in benchmarks/results, and of the layers.
MEASURED = (
    (1, 256, "x", 6.41, 9.69),
    (32, 256, "x", 37.8, 68.9),
    (256, 256, "x", 277.1, 451.9),
    (1, 64, "shortcut", 5.58, 10.92),
    (32, 64, "shortcut", 30.5, 79.4),
    (256, 64, "shortcut", 213.5, 530.8),
)


@pytest.mark.parametrize(("batch", "channels", "added", "on_chip", "layers"), MEASURED)
def test_blocks_are_estimated_as_they_were_measured(
    batch: int, channels: int, added: str, on_chip: float, layers: float
) -> None:
    found = offers(block(batch, channels, added))
    assert found["bottleneck_wgmma"].seconds < found["composed"].seconds
    assert found["bottleneck_wgmma"].seconds * 1e6 == pytest.approx(on_chip, rel=0.08)
    assert found["composed"].seconds * 1e6 == pytest.approx(layers, rel=0.1)


@pytest.mark.parametrize(("channels", "added"), [(256, "x"), (64, "shortcut"), (128, "z")])
def test_what_is_computed_elsewhere_takes_the_workspace_of_few_images(channels: int, added: str) -> None:
    """Operands are aligned in every net: what others would take must not be missed there."""
    one, many = (offers(block(batch, channels, added)) for batch in (1, 256))
    most = max(H200.l2_bytes * LITTLE_OF_L2, one["composed"].workspace_bytes)
    assert many["bottleneck_wgmma"].workspace_bytes <= 1.2 * most < many["composed"].workspace_bytes / 50
