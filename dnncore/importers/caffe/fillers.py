"""Caffe's fillers as initialisers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnncore.errors import NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import FillerParameter
from dnncore.nn.initializers import Bilinear, Filled, Initializer, Normal, SparseNormal, Uniform, UnitBall, Zeros

__all__ = ["initializer"]


def initializer(filler: FillerParameter, blob: Sequence[int]) -> Initializer:
    """What a filler puts in a blob.

    Args:
        filler: Its settings.
        blob: Extents of the blob as Caffe has it: fan-in is the product of all but the first, fan-out of all but the second.

    Raises:
        NotSupportedError: the type is unknown.
    """
    kind = filler.type.lower()
    if kind == "constant":
        return Filled(filler.value) if filler.value else Zeros()
    if kind == "uniform":
        return Uniform((filler.max - filler.min) / 2, (filler.max + filler.min) / 2)
    if kind == "gaussian":
        if filler.sparse >= 0:
            return SparseNormal(filler.mean, filler.std, filler.sparse)
        return Normal(filler.std**2, filler.mean)
    if kind == "positive_unitball":
        return UnitBall()
    if kind == "bilinear":
        return Bilinear()
    if kind in ("xavier", "msra"):
        fan = _fan(filler, blob)
        return Uniform(math.sqrt(3 / fan)) if kind == "xavier" else Normal(2 / fan)
    known = "bilinear, constant, gaussian, msra, positive_unitball, uniform and xavier"
    raise NotSupportedError(f"filler {filler.type!r} is unknown; there are {known}")


def _fan(filler: FillerParameter, blob: Sequence[int]) -> float:
    count = math.prod(blob)
    fan_in = count / (blob[0] if blob else 1)
    fan_out = count / (blob[1] if len(blob) > 1 else 1)
    chosen = {
        FillerParameter.FAN_IN: fan_in,
        FillerParameter.FAN_OUT: fan_out,
        FillerParameter.AVERAGE: (fan_in + fan_out) / 2,
    }[filler.variance_norm]
    return max(chosen, 1.0)
