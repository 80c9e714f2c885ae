"""Normalisations: by statistics of the training set, by neighbours, by the image itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import FillerParameter, LRNParameter
from dnncore.importers.caffe.net import Site, decimal
from dnncore.nn.graph import Role
from dnncore.nn.initializers import Filled, Zeros
from dnncore.nn.operators import BatchNorm, Binary, LocalResponseNorm, Reduce, Unary

__all__ = ["LAYERS"]

_LEAST_EPSILON = 1e-5
"""Of NVIDIA's fork, which has cuDNN compute it."""


def _batch_norm(site: Site) -> None:
    """(x - mean) / sqrt(variance + eps); a blob beside the sums says of how many batches they are, older ones counting less.

    NVIDIA's layer with scale and bias has means instead of sums, and 1 in that blob, however long it has been trained.
    """
    param = site.layer.batch_norm_param
    site.takes(1)
    if param.HasField("use_global_stats") and not param.use_global_stats and site.net.phase == "test":
        raise NotSupportedError("use_global_stats: false when nets are run: statistics of the batch")
    shape = site.shape(site.x)
    channels = shape[1:2] or (1,)
    places = [site.blob(blob) for blob in (channels, channels, (1,))]
    role = Role.FIXED if param.use_global_stats else Role.BUFFER
    mean = site.derived("mean", channels, Zeros(), role, lambda blobs: _over(blobs, places[0]))
    variance = site.derived("variance", channels, Filled(1.0), role, lambda blobs: _over(blobs, places[1]))
    counts: tuple[str, ...] = ()
    if param.scale_bias or param.HasField("scale_filler") or param.HasField("bias_filler"):
        filler = param.scale_filler if param.HasField("scale_filler") else FillerParameter(value=1.0)
        scale = site.parameter("scale", channels, filler)
        bias = site.parameter("bias", channels, param.bias_filler)
        epsilon = max(decimal(param.eps), _LEAST_EPSILON)
    else:
        scale = site.net.constant(f"{site.layer.name}.scale", channels, Filled(1.0), Role.FIXED)
        bias = site.net.constant(f"{site.layer.name}.bias", channels, Zeros(), Role.FIXED)
        epsilon = decimal(param.eps)
        if role is Role.BUFFER:
            counts = (site.derived("count", (1,), Zeros(), role, lambda blobs: blobs[places[2]]),)
    momentum = round(1 - decimal(param.moving_average_fraction), 9)
    site.top(BatchNorm(epsilon, momentum), site.x, scale, bias, mean, variance, *counts)


def _over(blobs: Sequence[np.ndarray], place: int) -> np.ndarray:
    """A sum over its weight; no images give 0, also as variance."""
    factor = float(blobs[2].reshape(()))
    return np.zeros_like(blobs[place]) if factor == 0 else blobs[place] / np.float32(factor)


def _lrn(site: Site) -> None:
    param = site.layer.lrn_param
    site.takes(1)
    if param.local_size % 2 == 0:
        raise BadParamError(f"local_size {param.local_size} must be odd")
    within = param.norm_region == LRNParameter.WITHIN_CHANNEL
    k = 1.0 if within else param.k  # which Caffe ignores within a channel
    mode = "within_channel" if within else "across_channels"
    if len(site.shape(site.x)) != 4:
        raise BadParamError(f"reads {list(site.shape(site.x))}; it takes four dimensions")
    site.top(LocalResponseNorm(param.local_size, decimal(param.alpha), decimal(param.beta), decimal(k), mode), site.x)


def _mvn(site: Site) -> None:
    """x minus its mean over a channel, or an image, over its deviation plus eps."""
    param = site.layer.mvn_param
    site.takes(1)
    shape = site.shape(site.x)
    if len(shape) != 4:
        raise BadParamError(f"reads {list(shape)}; it takes four dimensions")
    axes = (1, 2, 3) if param.across_channels else (2, 3)
    mean = site.add("mean", Reduce("avg", axes), site.x)
    if not param.normalize_variance:
        site.top(Binary("sub"), site.x, mean)
        return
    centered = site.add("centered", Binary("sub"), site.x, mean)
    norm = site.add("norm", Reduce("norm2", axes), centered)
    count = math.prod(shape[axis] for axis in axes)
    deviation = site.add("deviation", Binary("add", 1 / math.sqrt(count)), norm, site.number("eps", param.eps))
    site.top(Binary("div"), centered, deviation)


def _normalize(site: Site) -> None:
    """x over sqrt(eps + the sum of squares of an image, or of a place's channels), times what has been learnt."""
    param = site.layer.norm_param
    site.takes(1)
    epsilon = decimal(param.eps)
    if not epsilon >= 0:  # NaN neither
        raise BadParamError(f"eps {epsilon} must be 0 or more")
    shape = site.shape(site.x)
    if len(shape) < 2:
        raise BadParamError(f"reads {list(shape)}; it takes two dimensions or more")
    axes = tuple(range(1, len(shape))) if param.across_spatial else (1,)
    norm = site.add("norm", Reduce("norm2", axes), site.x)
    if epsilon:
        norm = _hypotenuse(site, norm, math.sqrt(epsilon))
    filler = param.scale_filler if param.HasField("scale_filler") else FillerParameter(value=1.0)
    if param.channel_shared:
        scale = site.parameter("scale", (), filler, shape=(1,))
    else:
        scale = site.parameter("scale", shape[1:2], filler, shape=(shape[1], *(1,) * (len(shape) - 2)))
    site.top(Binary("mul"), site.add("normal", Binary("div"), site.x, norm), scale)


def _hypotenuse(site: Site, a: str, b: float) -> str:
    """sqrt(a a + b b) for a of 0 and more, without squares, which 16 bits may not hold."""
    other = site.number("sqrt_eps", b)
    large, small = (site.add(f"norm.{name}", Binary(name), a, other) for name in ("max", "min"))
    square = site.add("norm.square", Unary("square"), site.add("norm.ratio", Binary("div"), small, large))
    factor = site.add("norm.root", Unary("sqrt"), site.add("norm.sum", Binary("add"), square, site.number("one", 1.0)))
    return site.add("norm.eps", Binary("mul"), large, factor)


LAYERS: dict[str, Callable[[Site], None]] = {
    "BatchNorm": _batch_norm,
    "LRN": _lrn,
    "MVN": _mvn,
    "Normalize": _normalize,
}
