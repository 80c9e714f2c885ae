"""Pooling, whose extents Caffe rounds up."""

from __future__ import annotations

from collections.abc import Callable

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import PoolingParameter
from dnncore.importers.caffe.net import Site
from dnncore.nn.operators import GlobalPooling, Pooling

__all__ = ["LAYERS"]

_MODES = {PoolingParameter.MAX: "max", PoolingParameter.AVE: "average_include_padding"}
"""The divisor of an average counts the padding, but not what a window overhangs it, as ours does."""


def _pooling(site: Site) -> None:
    param = site.layer.pooling_param
    if len(site.layer.top) == 2:
        raise NotSupportedError("a second top, the places of the maxima")
    site.takes(1)
    if param.pool not in _MODES:
        raise NotSupportedError(f"pool: {PoolingParameter.PoolMethod.Name(param.pool)}")
    pad, stride = _pair(param, "pad", "pad"), _pair(param, "stride", "stride")
    if min(stride) < 1:
        raise BadParamError(f"stride {list(stride)} must be 1 or more")
    if param.global_pooling:
        if any(pad) or stride != (1, 1) or param.HasField("kernel_size"):
            raise BadParamError("global_pooling takes no kernel_size, no pad and no stride")
        _check_planes(site.shape(site.x))
        site.top(GlobalPooling("max" if param.pool == PoolingParameter.MAX else "average"), site.x)
        return
    kernel = _pair(param, "kernel_size", "kernel")
    if min(kernel) < 1 or any(before >= extent for before, extent in zip(pad, kernel, strict=True)):
        raise BadParamError(f"pad {list(pad)} must be less than the kernel {list(kernel)}, which must be 1 or more")
    shape = site.shape(site.x)
    _check_planes(shape)
    rounds_up = param.round_mode == PoolingParameter.CEIL
    operator = Pooling(_MODES[param.pool], kernel, stride, pad, rounds_up)
    wanted = _output(shape[2:], kernel, stride, pad) if rounds_up else operator.descriptor.output_shape(shape)[2:]
    if operator.descriptor.output_shape(shape)[2:] != wanted:
        raise NotSupportedError(
            f"stride {list(stride)} over a kernel {list(kernel)} without pad: of {list(shape[2:])} Caffe makes "
            f"{list(wanted)}, of which the last windows lie outside and hold -FLT_MAX or NaN"
        )
    site.top(operator, site.x)


def _check_planes(shape: tuple[int, ...]) -> None:
    if len(shape) != 4:
        raise BadParamError(f"reads {list(shape)}; it takes four dimensions")


def _pair(param: PoolingParameter, name: str, pair: str) -> tuple[int, int]:
    """A setting for both dimensions, or for each."""
    height, width = f"{pair}_h", f"{pair}_w"
    if not (param.HasField(height) or param.HasField(width)):
        return (getattr(param, name),) * 2
    if param.HasField(name):
        raise BadParamError(f"{name} is given beside {height} and {width}")
    return getattr(param, height), getattr(param, width)


def _output(
    spatial: tuple[int, ...], kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int]
) -> tuple[int, ...]:
    """Extents as Caffe has them: the last window may start behind the input only where nothing is padded at all."""
    found = []
    for extent, window, step, before in zip(spatial, kernel, stride, pad, strict=True):
        count = -(-(extent + 2 * before - window) // step) + 1
        if any(pad) and (count - 1) * step >= extent + before:
            count -= 1
        found.append(count)
    return tuple(found)


LAYERS: dict[str, Callable[[Site], None]] = {"Pooling": _pooling}
