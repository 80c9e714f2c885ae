"""Nets of the zoo learn as torchvision's do. `python -m benchmarks.training` shows more nets, steps and pixels, on a GPU too."""

from __future__ import annotations

import math

import pytest

from benchmarks.training import Settings, largest_difference, our_losses, torch_losses
from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.testing import tolerance


@pytest.mark.parametrize("net", ["googlenet", "mobilenet_v2"])
def test_losses_are_those_of_torchvisions_nets(net: str) -> None:
    """GoogLeNet with both auxiliary heads; dropout, and statistics of the batch, in both."""
    settings = Settings(net, batch=4, size=48, steps=3, classes=5)
    with Handle("cpu") as handle:
        ours, theirs = our_losses(settings, handle), torch_losses(settings, handle)
    # The longest sums are those of the first layer's filter gradient; an error comes with each layer, forward and backward.
    allowed = tolerance(DType.FLOAT32, 4 * 24 * 24) * math.sqrt(
        2 * len(settings.trainable.graph.nodes) * settings.steps
    )
    assert largest_difference(ours, theirs) <= allowed
    assert len(set(ours)) == settings.steps
