"""Nets of the zoo learn as torchvision's do. `python -m benchmarks.training` shows more nets, steps and pixels, on a GPU too."""

from __future__ import annotations

import math

import pytest

from benchmarks.training import Settings, largest_difference, our_losses, torch_losses
from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.testing import tolerance

_RATES = {DType.FLOAT32: 1e-6, DType.FLOAT64: 1e-4}
"""Of steps after which a rounding of that type still changes little: at 1e-4 MobileNetV2 is 0.006 from itself when PyTorch computes
it in float32, because a value lies on the other side of 0 (see `benchmarks.training`)."""


@pytest.mark.parametrize("dtype", list(_RATES), ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("net", ["googlenet", "mobilenet_v2"])
def test_losses_are_those_of_torchvisions_nets(net: str, dtype: DType) -> None:
    """GoogLeNet with both auxiliary heads; dropout, and statistics of the batch, in both."""
    _compare(Settings(net, batch=4, size=48, steps=3, classes=5, lr=_RATES[dtype], dtype=dtype))


@pytest.mark.parametrize(
    "settings",
    [
        Settings("alexnet", batch=2, size=63, steps=2, classes=5, lr=_RATES[DType.FLOAT32]),
        Settings("resnet50", batch=2, size=48, steps=2, classes=5, lr=_RATES[DType.FLOAT64], dtype=DType.FLOAT64),
    ],
    ids=lambda settings: str(settings.net),
)
def test_losses_of_larger_nets_are_those_of_torchvisions(settings: Settings) -> None:
    """In one type and a step less: AlexNet has 57 million weights, ResNet-50 53 normalisations."""
    _compare(settings)


def _compare(settings: Settings) -> None:
    with Handle("cpu") as handle:
        ours, theirs = our_losses(settings, handle), torch_losses(settings, handle)
    # The longest sums are those of the first layer's filter gradient; an error comes with each layer, forward and backward.
    allowed = tolerance(settings.dtype, 4 * 24 * 24) * math.sqrt(
        2 * len(settings.trainable.graph.nodes) * settings.steps
    )
    assert largest_difference(ours, theirs) <= allowed
    assert len(set(ours)) == settings.steps
