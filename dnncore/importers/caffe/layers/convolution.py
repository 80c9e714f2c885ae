"""Convolution and deconvolution, of any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import ConvolutionParameter
from dnncore.importers.caffe.net import Site, at_least
from dnncore.nn.operators import Convolution, TransposedConvolution

__all__ = ["LAYERS"]

Extents = tuple[int, ...]


def _convolution(site: Site) -> None:
    _convolve(site, transposed=False)


def _deconvolution(site: Site) -> None:
    _convolve(site, transposed=True)


def _convolve(site: Site, *, transposed: bool) -> None:
    param = site.layer.convolution_param
    site.takes(at_least(1), at_least(1))
    if len(site.layer.bottom) != len(site.layer.top):
        raise BadParamError(
            f"has {len(site.layer.bottom)} bottoms and {len(site.layer.top)} tops; it takes as many of both"
        )
    if param.axis not in (1, -3):
        raise NotSupportedError(f"axis {param.axis}: channels must be dimension 1")
    if param.num_output < 1 or param.group < 1:
        raise BadParamError(f"num_output {param.num_output} and group {param.group} must be 1 or more")
    shape = site.shape(site.x)
    if len(shape) < 3 or (param.axis < 0 and len(shape) != 4):
        raise BadParamError(f"reads {list(shape)}, which has no spatial dimensions behind channels")
    kernel, stride, padding, dilation = _geometry(param, len(shape) - 2)
    channels = shape[1]
    if channels % param.group or param.num_output % param.group:
        raise BadParamError(
            f"{channels} channels and num_output {param.num_output} must be multiples of group {param.group}"
        )
    before, after = (channels, param.num_output) if transposed else (param.num_output, channels)
    blob = (before, after // param.group, *kernel)
    parameters = [site.parameter("weight", blob, param.weight_filler)]
    if param.bias_term:
        parameters.append(site.parameter("bias", (param.num_output,), param.bias_filler))
    kind = TransposedConvolution if transposed else Convolution
    for place, bottom in enumerate(site.bottoms):
        site.top(kind(stride, padding, dilation, param.group), bottom, *parameters, place=place)


def _geometry(param: ConvolutionParameter, ndim: int) -> tuple[Extents, Extents, Extents, Extents]:
    """Kernel, stride, padding and dilation, one number for each spatial dimension."""
    kernel = _extents(param, "kernel_size", "kernel", ndim, None)
    stride = _extents(param, "stride", "stride", ndim, 1)
    padding = _extents(param, "pad", "pad", ndim, 0)
    dilation = _spread("dilation", param.dilation, ndim, 1)
    if min(*kernel, *stride, *dilation) < 1:
        raise BadParamError(
            f"kernel {list(kernel)}, stride {list(stride)}, dilation {list(dilation)} must be 1 or more"
        )
    return kernel, stride, padding, dilation


def _extents(param: ConvolutionParameter, name: str, pair: str, ndim: int, usual: int | None) -> Extents:
    """A setting that is repeated, or, in two dimensions, given as height and width."""
    height, width = f"{pair}_h", f"{pair}_w"
    if not (param.HasField(height) or param.HasField(width)):
        return _spread(name, getattr(param, name), ndim, usual)
    if ndim != 2 or getattr(param, name):
        raise BadParamError(f"{height} and {width} are for two spatial dimensions, and not beside {name}")
    return getattr(param, height), getattr(param, width)


def _spread(name: str, given: Sequence[int], ndim: int, usual: int | None) -> Extents:
    if not given and usual is not None:
        return (usual,) * ndim
    if len(given) not in (1, ndim):
        raise BadParamError(
            f"{len(given)} numbers of {name} for {ndim} spatial dimensions; one for all, or one for each"
        )
    return tuple(given) * (ndim if len(given) == 1 else 1)


LAYERS: dict[str, Callable[[Site], None]] = {"Convolution": _convolution, "Deconvolution": _deconvolution}
