"""How a window moves, which convolutions and poolings spell alike: kernel_shape, strides, dilations, pads and auto_pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dnncore.errors import BadParamError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.values import Computed

__all__ = ["Window", "each", "read_window"]

Pads = tuple[tuple[int, int], ...]


class Window(NamedTuple):
    """A window. Immutable.

    Args:
        kernel: Extents.
        strides: Steps.
        dilations: Distances between taps.
        pads: Places before and after, a pair per dimension.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads

    @property
    def spans(self) -> tuple[int, ...]:
        """Extents with the gaps that a dilation makes."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def each(call: Call, name: str, ndim: int) -> tuple[int, ...]:
    """An attribute with a number for each spatial dimension; 1 where it is left out.

    Raises:
        BadParamError: it has another length, or a number that is not positive.
    """
    found = call.attributes.integers(name)
    if found is None:
        return (1,) * ndim
    if len(found) != ndim or min(found) < 1:
        raise BadParamError(f"{name} {list(found)} must be {ndim} positive numbers")
    return found


def read_window(call: Call, x: Computed, kernel: Sequence[int] | None) -> Window:
    """The window of a node.

    Args:
        call: The node.
        x: What it moves over, [N, C, *spatial].
        kernel: Its extents where a filter tells them; else the attribute does.

    Raises:
        BadParamError: attributes do not fit.
    """
    ndim = x.ndim - 2
    if ndim < 1:
        raise BadParamError(f"{x} has no spatial dimensions")
    if "kernel_shape" in call.attributes or kernel is None:
        stated = each(call, "kernel_shape", ndim)
        if kernel is not None and stated != tuple(kernel):
            raise BadParamError(f"kernel_shape {list(stated)} is not that of the filter, {list(kernel)}")
        kernel = stated
    strides, dilations = each(call, "strides", ndim), each(call, "dilations", ndim)
    window = Window(tuple(kernel), strides, dilations, _stated_pads(call, ndim))
    automatic = call.attributes.text("auto_pad", "NOTSET")
    if automatic in ("NOTSET", "VALID"):
        return window if automatic == "NOTSET" else window._replace(pads=((0, 0),) * ndim)
    if automatic not in ("SAME_UPPER", "SAME_LOWER"):
        raise BadParamError(f"auto_pad {automatic!r} is unknown")
    pads = []
    for axis, (stride, span) in enumerate(zip(strides, window.spans, strict=True)):
        extent = x.extent(2 + axis)
        total = max((-(-extent // stride) - 1) * stride + span - extent, 0)
        pads.append(halves(total, automatic))
    return window._replace(pads=tuple(pads))


def halves(total: int, automatic: str) -> tuple[int, int]:
    """Padding before and after; the odd place is behind for SAME_UPPER, else in front."""
    small, large = total // 2, total - total // 2
    return (small, large) if automatic == "SAME_UPPER" else (large, small)


def _stated_pads(call: Call, ndim: int) -> Pads:
    found = call.attributes.integers("pads")
    if found is None:
        return ((0, 0),) * ndim
    if len(found) != 2 * ndim:
        raise BadParamError(f"pads {list(found)} must be {2 * ndim} numbers")
    return tuple(zip(found[:ndim], found[ndim:], strict=True))
