"""Convolution and transposed convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dnncore.descriptors import ConvolutionDescriptor
from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.rules.window import Window, each, halves, read_window
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.graph import Role
from dnncore.nn.operators import Binary, Convolution, ConvolutionBackwardData

__all__ = ["RULES"]


def _conv(call: Call) -> Sequence[Imported]:
    x, w = call.tensor(0), call.tensor(1, Role.TRAINABLE)
    window = read_window(call, x, w.few.shape[2:])
    groups = call.attributes.integer("group", 1)
    operator = Convolution(window.strides, window.pads, window.dilations, groups)
    bias = (call.tensor(2, Role.TRAINABLE),) if call.has(2) else ()
    return (call.emit(operator, x, w, *bias),)


def _conv_transpose(call: Call) -> Sequence[Imported]:
    """The adjoint of a convolution in its input, which is what a transposed convolution is, and a bias."""
    x, w = call.tensor(0), call.tensor(1, Role.TRAINABLE)
    groups = call.attributes.integer("group", 1)
    automatic = call.attributes.text("auto_pad", "NOTSET")
    # What SAME means here depends on the output, not on the input.
    window = _stated_window(call, x, w)
    ndim = x.ndim - 2
    extra = call.attributes.integers("output_padding") or (0,) * ndim
    if len(extra) != ndim or min(extra) < 0:
        raise BadParamError(f"output_padding {list(extra)} must be {ndim} numbers that are not negative")
    inner = tuple(x.extent(2 + axis) for axis in range(ndim))
    full = tuple(
        stride * (extent - 1) + more + span
        for stride, extent, more, span in zip(window.strides, inner, extra, window.spans, strict=True)
    )
    wanted = call.attributes.integers("output_shape")
    pads = window.pads
    if wanted is None and automatic in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(extent * stride for extent, stride in zip(inner, window.strides, strict=True))
    if wanted is not None:
        wanted = wanted[-ndim:]
        if len(wanted) != ndim:
            raise BadParamError(f"output_shape {list(wanted)} must be {ndim} numbers")
        totals = [max(a - b, 0) for a, b in zip(full, wanted, strict=True)]
        pads = tuple(halves(total, automatic) for total in totals)
    elif automatic == "VALID":
        pads = ((0, 0),) * ndim
    spatial = wanted or tuple(extent - sum(pair) for extent, pair in zip(full, pads, strict=True))
    conv = ConvolutionDescriptor.make(
        ndim, padding=pads, stride=window.strides, dilation=window.dilations, groups=groups
    )
    seen = conv.output_shape((x.few.shape[0], w.few.shape[1] * groups, *spatial), w.few.shape)
    if seen != x.few.shape:
        raise NotSupportedError(
            f"a convolution of {list(spatial)} gives {list(seen[2:])} places, not the {list(inner)} of x {x}"
        )
    operator = ConvolutionBackwardData(window.strides, pads, window.dilations, groups, tuple(spatial))
    y = call.emit(operator, w, x)
    if call.has(2):
        bias = call.tensor(2, Role.TRAINABLE)
        y = call.emit(Binary("add"), y, call.reshape(bias, *[(bias.extent(0), *(1,) * ndim)] * 2))
    return (y,)


def _stated_window(call: Call, x: Computed, w: Computed) -> Window:
    if call.attributes.text("auto_pad", "NOTSET") == "NOTSET":
        return read_window(call, x, w.few.shape[2:])
    ndim = x.ndim - 2
    kernel = w.few.shape[2:]
    if "kernel_shape" in call.attributes and each(call, "kernel_shape", ndim) != kernel:
        raise BadParamError(f"kernel_shape is not that of the filter, {list(kernel)}")
    call.attributes.integers("pads")  # of no meaning beside auto_pad
    return Window(kernel, each(call, "strides", ndim), each(call, "dilations", ndim), ((0, 0),) * ndim)


RULES: Mapping[str, Rule] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
