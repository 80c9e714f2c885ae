"""Strided convolutions as convolutions of stride 1 over phases: space_to_depth.

With a stride of s, an output p meets the input at s * p + r; with r = s * j + a that is place p + j of phase a. So the phases of x
as channels of their own, and those of the filter, make it a convolution of stride 1 with s * s times the channels and a filter
of ceil(R / s) x ceil(S / s), which is open to FFT tiles, Winograd's tiles and matrix units where strides and few channels are not:

    x  [N, C, H, W] --- split ---> [N, C s s, P + J - 1, Q + J - 1] --+
                                                                      +--> any algorithm, stride 1 --> y
    w  [K, C, R, S] --- split ---> [K, C s s, J, J] ------------------+

Backward, dy is taken as it is and the gradient is joined from its phases. Where a phase has no tap there are zeros, so that a
value that is not finite shows as far as the phases' filter reaches; that is why there always is an `error_factor`. In 16 bits
channels are filled up with zeros to what matrix units want, which may pay for images of three channels without a stride too. The
result of backward directions is rounded once, and once more where a launch blends it with what the gradient held.

Source: arXiv 1609.05158 (sub-pixel convolution) for the arrangement of phases as channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from dnncore.backend import Bounded, Offer, Untimed
from dnncore.choice import fastest
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, rewired
from dnncore.cuda.convolution.phase_layout import MOST, MOST_SPATIAL, Phases, units
from dnncore.cuda.params import FLOATING
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ConvolutionMode
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem

__all__ = ["SpaceToDepth"]

_16_BITS = (DType.FLOAT16, DType.BFLOAT16)
_CHANNELS_OF_16_BITS = 8
"""What the copy engine wants channels to be a multiple of: 16 bytes."""

_MOST_CHANNELS = 256
"""Of x, in 16 bits with a stride: more fill matrix units without phases."""

_LEAST_OF_TAPS = 0.5
"""Taps that the filter has, of those that its phases have together: with fewer most products are with zeros."""


@dataclass(frozen=True)
class SpaceToDepth(Bounded, Untimed):
    """A convolution of stride 1 over the phases of a strided one. Immutable.

    Args:
        algorithms: What computes it, the fastest by estimate.
    """

    algorithms: tuple[CudaAlgorithm, ...]
    name: str = "space_to_depth"

    def units(self) -> tuple[Unit, ...]:
        """Those that split and join; the others are the algorithms' own."""
        return units()

    def least_seconds(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> float:
        """What splitting and joining take."""
        return math.inf if _why_not(problem) is not None else _moving_seconds(problem, _phases(problem), figures)

    def offer(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What splitting, the fastest of the algorithms and joining take together."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        images, filters = _phases(problem)
        if max(images.padded_size, filters.padded_size) > MOST:
            return f"{images.padded_size} elements of x and its padding; at most {MOST}"
        conv, ones = problem.convolution, (1,) * problem.convolution.spatial_ndim
        dilation = tuple(step if stride == 1 else 1 for step, stride in zip(conv.dilation, conv.stride, strict=True))
        # A rotated filter's phases are split from its last tap on, so that they are not rotated any more.
        dense = replace(
            conv,
            padding=((0, 0),) * len(ones),
            stride=ones,
            dilation=dilation,
            mode=ConvolutionMode.CROSS_CORRELATION,
        )
        inner = replace(problem, x=images.phases, w=filters.phases, convolution=dense)
        found = fastest(self.algorithms, inner, figures)
        if found is None:
            return f"over phases: {self.algorithms[0].offer(inner, figures)}"
        convolution = found[1]
        own_bytes = aligned(images.phases.nbytes) + aligned(filters.phases.nbytes)
        return replace(
            convolution,
            seconds=convolution.seconds + _moving_seconds(problem, (images, filters), figures),
            prepare=partial(_calls, problem, images, filters, convolution.prepare, figures),
            workspace_bytes=own_bytes + convolution.workspace_bytes,
            error_factor=max(convolution.error_factor or 1.0, 1.0),
        )


def _names(problem: ConvolutionProblem | FusedConvolutionProblem) -> tuple[str, ...]:
    """All operands by the names of the problem's fields, in the order of their places."""
    fields = {"dx": "x", "dw": "w", "dy": "y"}
    return tuple(fields.get(name, name) for name in (*problem.input_names, *problem.output_names))


def _moving_seconds(
    problem: ConvolutionProblem | FusedConvolutionProblem, phases: tuple[Phases, Phases], figures: DeviceFigures
) -> float:
    """Estimated time of splitting inputs and joining the output, without the convolution."""
    moved = [each for name, each in zip(("x", "w"), phases, strict=True) if name in _names(problem)]
    memsets = sum(each.has_more_channels for each in moved)
    return sum(each.seconds(figures) for each in moved) + memsets * figures.launch_seconds


def _why_not(problem: ConvolutionProblem | FusedConvolutionProblem) -> str | None:
    """None where phases are possible and of use, else the reason."""
    x, w, conv = problem.x, problem.w, problem.convolution
    if x.dtype not in FLOATING:
        return f"x is {x.dtype.value}; phases are split of floating-point dtypes"
    if conv.spatial_ndim > MOST_SPATIAL:
        return f"{conv.spatial_ndim} spatial dimensions; at most {MOST_SPATIAL}"
    fills = x.dtype in _16_BITS and conv.groups == 1 and x.shape[1] % _CHANNELS_OF_16_BITS != 0
    if max(conv.stride) == 1 and not fills:
        return "its stride is 1 everywhere"
    if (elements := max(math.prod(x.shape), math.prod(w.shape))) > MOST:
        return f"{elements} elements of x or w; at most {MOST}"
    if any(stride > 1 and dilation > 1 for stride, dilation in zip(conv.stride, conv.dilation, strict=True)):
        return f"dilation {conv.dilation} with stride {conv.stride} along one dimension"
    if x.dtype in _16_BITS and not fills and x.shape[1] >= _MOST_CHANNELS:
        return f"{x.shape[1]} channels fill matrix units without phases"
    taps, counted = math.prod(w.shape[2:]), math.prod(_taps(problem)) * math.prod(conv.stride)
    if taps < _LEAST_OF_TAPS * counted:
        return f"{counted} taps of phases for the filter's {taps}"
    if not (x.size and w.size and problem.y.size):
        return "a tensor is empty"
    return None


def _taps(problem: ConvolutionProblem | FusedConvolutionProblem) -> tuple[int, ...]:
    """Extents of the phases' filter."""
    stride = problem.convolution.stride
    return tuple(-(-extent // step) for extent, step in zip(problem.w.shape[2:], stride, strict=True))


def _phases(problem: ConvolutionProblem | FusedConvolutionProblem) -> tuple[Phases, Phases]:
    """Those of x and of w."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    taps = _taps(problem)
    places = tuple(
        outputs + (count - 1) * (dilation if stride == 1 else 1)
        for outputs, count, dilation, stride in zip(y.shape[2:], taps, conv.dilation, conv.stride, strict=True)
    )
    innermost = conv.groups == 1 and y.shape[1] > 1 and y.strides[1] == 1
    channels = w.shape[1] * math.prod(conv.stride)
    if conv.groups == 1 and x.dtype in _16_BITS:
        channels = -(-channels // _CHANNELS_OF_16_BITS) * _CHANNELS_OF_16_BITS
    return (
        Phases.of(x, places, conv, channels * conv.groups, padded=True, innermost=innermost),
        Phases.of(w, taps, conv, channels, padded=False, innermost=innermost),
    )


def _calls(
    problem: ConvolutionProblem | FusedConvolutionProblem,
    images: Phases,
    filters: Phases,
    prepare: Callable[[], Calls],
    figures: DeviceFigures,
) -> Calls:
    names = _names(problem)
    given = {name: Place(i) for i, name in enumerate(names)}
    behind = aligned(images.phases.nbytes)
    copies = {"x": (images, Place(WORKSPACE)), "w": (filters, Place(WORKSPACE, behind))}
    output = names[-1]
    calls: list[Calls] = [
        phases.split(given[name], place, figures) for name, (phases, place) in copies.items() if name != output
    ]
    places = tuple(copies[name][1] if name in copies else given[name] for name in names)
    rest = Place(WORKSPACE, behind + aligned(filters.phases.nbytes))
    # The operation's alpha is the convolution's: sums beyond the range of 16 bits may be within it when they are scaled.
    calls.append(rewired(prepare(), places, rest, beta=0.0) if output in copies else rewired(prepare(), places, rest))
    if output in copies:
        phases, place = copies[output]
        calls.append(
            rewired(phases.join(place, given[output], figures), tuple(map(Place, range(len(names)))), alpha=1.0)
        )
    return tuple(call for some in calls for call in some)
