"""The layers that can be imported: a function for each type, which adds what it computes to a `Net`.

Functions check settings before they ask for shapes, so that what is wrong with a layer is found also where the layers before it
could not be translated.
"""

from __future__ import annotations

from collections.abc import Callable

from dnncore.importers.caffe.layers import (
    activation,
    convolution,
    data,
    elementwise,
    inner_product,
    normalization,
    pooling,
    reduction,
    structure,
)
from dnncore.importers.caffe.net import Site

__all__ = ["LAYERS", "SINKS"]

LAYERS: dict[str, Callable[[Site], None]] = {
    **activation.LAYERS,
    **convolution.LAYERS,
    **data.LAYERS,
    **elementwise.LAYERS,
    **inner_product.LAYERS,
    **normalization.LAYERS,
    **pooling.LAYERS,
    **reduction.LAYERS,
    **structure.LAYERS,
}
"""A new layer is a function in one of the modules, and one line in its table."""

SINKS = frozenset(
    {
        "Accuracy",
        "ContrastiveLoss",
        "EuclideanLoss",
        "HDF5Output",
        "HingeLoss",
        "InfogainLoss",
        "MultinomialLogisticLoss",
        "SigmoidCrossEntropyLoss",
        "Silence",
        "SoftmaxWithLoss",
    }
)
"""Types that end a net and are left out: what their first bottom holds is an output, but for what `Silence` swallows."""
