"""Strided convolutions as convolutions of stride 1 over phases: space_to_depth.

With a stride of s, an output p meets the input at s * p + r; with r = s * j + a that is place p + j of phase a. So the phases of x
as channels of their own, and those of the filter, make it a convolution of stride 1 with s * s times the channels and a filter
of ceil(R / s) x ceil(S / s), which is open to FFT tiles, Winograd's tiles and matrix units where strides and few channels are not:

    x  [N, C, H, W] --- split ---> [N, C s s, P + J - 1, Q + J - 1] --+
                                                                      +--> any algorithm, stride 1 --> y
    w  [K, C, R, S] --- split ---> [K, C s s, J, J] ------------------+

Backward, dy is taken as it is and the gradient is joined from its phases. Where a phase has no tap there are zeros, so that a
value that is not finite shows as far as the phases' filter reaches; that is why there always is an `error_factor`. In 16 bits
channels are filled up with zeros to what matrix units want, which may pay for images of three channels without a stride too, unless
the copy engine reads zeros where nothing was filled (`relaid`). The result of backward directions is rounded once, and once more
where a launch blends it with what the gradient held.

Blocks may be larger than the stride. With m x m outputs to a block of (m s) x (m s) pixels both have phases, and output q of a
block meets the input at m s * P + (s * q + r), so that for it the filter is moved by s * q: there is a copy of w for each. The
gradient of an image with 3 channels then has 48, in 16 bits, to fill a tile with:

    dy [N, K, P, Q] --- split ---> [N, K m m, P / m, Q / m] -----------------------------+
                                                                                        +--> [N, C (m s)^2, ...] --- join ---> dx
    w  [K, C, R, S] --- split, m m times ---> [K m m, C (m s)^2, ceil((s (m - 1) + R) / (m s)), ...] --+

Source: arXiv 1609.05158 (sub-pixel convolution) for the arrangement of phases as channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from dnncore.backend import Offer
from dnncore.bounds import Searched, Selective
from dnncore.choice import composed, searching
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Memset, Place, aligned, rewired
from dnncore.cuda.convolution.operands import operands_of
from dnncore.cuda.convolution.phase_layout import MOST, MOST_SPATIAL, Phases, least_moving_seconds, units
from dnncore.cuda.convolution.wgmma_tile import ARCHITECTURE
from dnncore.cuda.params import FLOATING
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ConvolutionDescriptor, ConvolutionMode, MathType
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["SpaceToDepth"]

_16_BITS = (DType.FLOAT16, DType.BFLOAT16)
_CHANNELS_OF_16_BITS = 8
"""What the copy engine wants channels to be a multiple of: 16 bytes."""

_MOST_CHANNELS = 256
"""Of x, in 16 bits with a stride: more fill matrix units without phases."""

_LEAST_OF_TAPS = 0.5
"""Taps that the filter has, of those that its phases have together: with fewer most products are with zeros."""

_OUTPUTS_OF_BLOCKS = (1, 2, 4)
"""Along each dimension, of backward-data in 16 bits."""

_CHANNELS_OF_TILES = 64
"""Phases of the stride that are as many fill a tile without blocks."""

_Problem = ConvolutionProblem | FusedConvolutionProblem


@dataclass(frozen=True)
class SpaceToDepth(Searched, Selective):
    """A convolution of stride 1 over the phases of a strided one. Immutable.

    Args:
        algorithms: What computes it, the fastest by estimate.
    """

    algorithms: tuple[CudaAlgorithm, ...]
    name: str = "space_to_depth"

    def units(self) -> tuple[Unit, ...]:
        """Those that split and join; the others are the algorithms' own."""
        return units()

    def suits(self, kind: ConvolutionKind) -> bool:
        """Those with strides; and some of 16 bits."""
        return max(kind.stride) > 1 or kind.dtypes[0] in _16_BITS

    def least_seconds(self, problem: _Problem, figures: DeviceFigures) -> float:
        """What splitting and joining take, whatever the phases are."""
        if problem.x.dtype in _16_BITS and problem.x.shape[1] >= _CHANNELS_OF_TILES and _has_gaps(problem, figures):
            return math.inf
        if _why_not(problem, figures) is not None and all(
            _why_no_blocks(problem, outputs) for outputs in _OUTPUTS_OF_BLOCKS[1:]
        ):
            return math.inf
        return least_moving_seconds((problem.x, problem.w), figures)

    def search(self, problem: _Problem, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """What splitting, the fastest of the algorithms and joining take together."""
        arrangements = _arrangements(problem, figures)
        if not arrangements:
            return _why_not(problem, figures) or "blocks of several outputs exceed what can be counted"
        ways = [_OverPhases(self.algorithms, each, each.moving_seconds(figures)) for each in arrangements]
        ways.sort(key=lambda way: way.moving_seconds)
        found = yield from searching(ways, problem, figures)
        return found[1] if found else f"over phases: {self.algorithms[0].offer(arrangements[0].inner, figures)}"


@dataclass(frozen=True)
class _OverPhases(Searched):
    """The convolution over phases of one arrangement. Immutable.

    Args:
        algorithms: As of `SpaceToDepth`.
        arrangement: Of the problem that is asked about.
        moving_seconds: What splitting and joining take.
    """

    algorithms: tuple[CudaAlgorithm, ...]
    arrangement: _Arrangement
    moving_seconds: float
    name: str = "over_phases"

    def least_seconds(self, _problem: _Problem, _figures: DeviceFigures) -> float:
        """What splitting and joining take."""
        return self.moving_seconds

    def search(self, problem: _Problem, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """What they and the fastest of the algorithms take together."""
        arrangement = self.arrangement
        found = yield from composed(self.moving_seconds.__add__, searching(self.algorithms, arrangement.inner, figures))
        if found is None:
            return "none of the algorithms takes the phases"
        convolution = found[1]
        return replace(
            convolution,
            seconds=convolution.seconds + self.moving_seconds,
            prepare=partial(_calls, problem, arrangement, convolution.prepare, figures),
            workspace_bytes=arrangement.nbytes + convolution.workspace_bytes,
            error_factor=max(convolution.error_factor or 1.0, 1.0),
        )


def _names(problem: _Problem) -> tuple[str, ...]:
    """All operands by the names of the problem's fields, in the order of their places."""
    return tuple(operands_of(problem))


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """A convolution over phases in place of another. Immutable.

    Args:
        inner: That convolution.
        moved: What is split or joined, by the problem's names; of the filter, for the first output of a block.
        outputs: Of a block, along each dimension; for each of them the filter is split.
        of_output: Rows of the filter's phases from those of one output of a block to those of the next.
        has_gaps: Which of them have channels or filters that nothing is split into.
    """

    inner: _Problem
    moved: Mapping[str, Phases]
    outputs: int
    of_output: int
    has_gaps: Collection[str]

    @property
    def nbytes(self) -> int:
        """Workspace for all phases."""
        return sum([aligned(each.phases.nbytes) for each in self.moved.values()])

    def moving_seconds(self, figures: DeviceFigures) -> float:
        """Estimated time of splitting inputs and joining the output, without the convolution."""
        each: list[float] = []
        for name, phases in self.moved.items():
            times = self.outputs**self.inner.convolution.spatial_ndim if name == "w" else 1
            each += [phases.seconds(figures)] * times
        return sum(each) + len(self.has_gaps) * figures.launch_seconds

    def places(self) -> dict[str, Place]:
        """Where phases are in the workspace, one after the other."""
        places, offset = {}, 0
        for name, phases in self.moved.items():
            places[name] = Place(WORKSPACE, offset)
            offset += aligned(phases.phases.nbytes)
        return places


def _why_not(problem: _Problem, figures: DeviceFigures) -> str | None:
    """None where phases are possible and of use, else the reason."""
    x, w, conv = problem.x, problem.w, problem.convolution
    fills = _fills(problem, figures)
    if max(conv.stride) == 1 and not fills:
        return "its stride is 1 everywhere"
    reason = _why_none(problem)
    if reason is not None:
        return reason
    if max(map(min, conv.stride, conv.dilation)) > 1:
        return f"dilation {conv.dilation} with stride {conv.stride} along one dimension"
    most = _CHANNELS_OF_TILES if _has_gaps(problem, figures) else _MOST_CHANNELS
    if x.dtype in _16_BITS and not fills and x.shape[1] >= most:
        return f"{x.shape[1]} channels fill matrix units without phases"
    taps, counted = math.prod(w.shape[2:]), math.prod(_taps(problem, 1)) * math.prod(conv.stride)
    if taps < _LEAST_OF_TAPS * counted:
        return f"{counted} taps of phases for the filter's {taps}"
    return None


def _fills(problem: _Problem, figures: DeviceFigures) -> bool:
    """Whether phases are of use because channels are filled up: in 16 bits, where copies with gaps do not serve as well."""
    conv, channels = problem.convolution, problem.x.shape[1]
    if problem.x.dtype not in _16_BITS or conv.groups > 1 or channels % _CHANNELS_OF_16_BITS == 0:
        return False
    # Gradients of so few channels that blocks of several outputs are asked for are asked for with one, too.
    in_blocks = any(_why_no_blocks(problem, outputs) is None for outputs in _OUTPUTS_OF_BLOCKS[1:])
    return in_blocks or not _has_gaps(problem, figures)


def _has_gaps(problem: _Problem, figures: DeviceFigures) -> bool:
    """Whether the copy engine takes channels, in copies if need be, from pixels with strides and gaps between them."""
    conv = problem.convolution
    takes = conv.groups == 1 and conv.spatial_ndim == 2 and conv.mode is ConvolutionMode.CROSS_CORRELATION
    return takes and figures.architecture == ARCHITECTURE


def _why_none(problem: _Problem) -> str | None:
    """None where phases are possible, of whatever block; else the reason."""
    x, w, conv = problem.x, problem.w, problem.convolution
    if x.dtype not in FLOATING:
        return f"x is {x.dtype.value}; phases are split of floating-point dtypes"
    if conv.spatial_ndim > MOST_SPATIAL:
        return f"{conv.spatial_ndim} spatial dimensions; at most {MOST_SPATIAL}"
    if (elements := max(math.prod(x.shape), math.prod(w.shape))) > MOST:
        return f"{elements} elements of x or w; at most {MOST}"
    return "a tensor is empty" if not (x.size and w.size and problem.y.size) else None


def _arrangements(problem: _Problem, figures: DeviceFigures) -> tuple[_Arrangement, ...]:
    """Those that are possible and may be of use, with one output to a block or with several."""
    found = [
        _arrangement(problem, outputs)
        for outputs in _OUTPUTS_OF_BLOCKS
        if (_why_not(problem, figures) if outputs == 1 else _why_no_blocks(problem, outputs)) is None
    ]
    return tuple([each for each in found if max([phases.padded_size for phases in each.moved.values()]) <= MOST])


def _why_no_blocks(problem: _Problem, outputs: int) -> str | None:
    """None where a gradient of x in 16 bits has so few channels that a tile wants phases of several outputs, else the reason."""
    conv = problem.convolution
    if isinstance(problem, FusedConvolutionProblem) or problem.direction is not Direction.BACKWARD_DATA:
        return "it is no backward-data"
    if problem.x.dtype not in _16_BITS:
        return f"x is {problem.x.dtype.value}; it takes 16 bits"
    reason = _why_none(problem)
    if reason is not None:
        return reason
    if conv.groups > 1 or max(conv.dilation) > 1:
        return f"{conv.groups} groups, dilation {conv.dilation}; it takes one, and none"
    of_stride = problem.x.shape[1] * math.prod(conv.stride)
    channels = of_stride * outputs**conv.spatial_ndim
    if of_stride >= _CHANNELS_OF_TILES or channels > _MOST_CHANNELS or min(problem.y.shape[2:]) < outputs:
        return f"{of_stride} channels of phases, or {channels}, and {problem.y.shape[2:]} outputs"
    return None


def _taps(problem: _Problem, outputs: int) -> tuple[int, ...]:
    """Extents of the phases' filter."""
    stride = problem.convolution.stride
    return tuple(
        [
            -(-(step * (outputs - 1) + extent) // (step * outputs))
            for extent, step in zip(problem.w.shape[2:], stride, strict=True)
        ]
    )


def _arrangement(problem: _Problem, outputs: int) -> _Arrangement:
    """With so many outputs to a block, along each dimension."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    block, of_block = tuple([step * outputs for step in conv.stride]), outputs**conv.spatial_ndim
    taps, across = _taps(problem, outputs), tuple([-(-extent // outputs) for extent in y.shape[2:]])
    # What has no stride may be dilated.
    dilation = tuple([step if size == 1 else 1 for step, size in zip(conv.dilation, block, strict=True)])
    places = tuple(
        [size + (count - 1) * step for size, count, step in zip(across, taps, dilation, strict=True)]
    )  # as far as the taps reach
    innermost = conv.groups == 1 and y.shape[1] > 1 and y.strides[1] == 1
    widen = partial(_filled, problem)
    channels, filters = widen(w.shape[1] * math.prod(block)), w.shape[0]
    before = tuple([padding for padding, _ in conv.padding])
    images = Phases.of(x, places, block, channels * conv.groups, innermost=innermost, before=before)
    moved = {"x": images, "w": Phases.of(w, taps, block, channels, innermost=innermost, taps_of=conv)}
    phases_of_y = y
    of_filter, of_output = (1, w.shape[0]) if innermost else (of_block, 1)
    if outputs > 1:
        filters = widen(filters * of_block)
        moved["w"] = moved["w"].in_rows(filters, of_filter)
        moved["y"] = Phases.of(y, across, (outputs,) * conv.spatial_ndim, filters, innermost=innermost)
        phases_of_y = moved["y"].phases
    has_gaps = {name for name, phases in moved.items() if phases.has_more_channels}
    if filters > w.shape[0] * of_block:
        has_gaps.add("w")
    # A rotated filter's phases are split from its last tap on, so that they are not rotated any more.
    dense = _dense(dilation, conv.groups, conv.math)
    of_x, of_w = images.phases, moved["w"].phases
    if isinstance(problem, ConvolutionProblem):  # `replace` takes twice as long
        inner: _Problem = ConvolutionProblem(problem.direction, of_x, of_w, phases_of_y, dense)
    else:
        inner = replace(problem, x=of_x, w=of_w, y=phases_of_y, convolution=dense)
    return _Arrangement(inner, moved, outputs, of_output, has_gaps - {_names(problem)[-1]})


def _filters(problem: _Problem, arrangement: _Arrangement) -> Iterator[Phases]:
    """Of the filter for each output of a block; they share their phases."""
    stride = problem.convolution.stride
    for number, place in enumerate(itertools.product(range(arrangement.outputs), repeat=len(stride))):
        before = [step * q for step, q in zip(stride, place, strict=True)]
        yield arrangement.moved["w"].beside(number * arrangement.of_output, before)


@lru_cache(maxsize=16)
def _dense(dilation: tuple[int, ...], groups: int, math_type: MathType) -> ConvolutionDescriptor:
    """Without padding and strides; nearly always the same one."""
    ndim = len(dilation)
    return ConvolutionDescriptor(((0, 0),) * ndim, (1,) * ndim, dilation, groups, math=math_type)


def _filled(problem: _Problem, count: int) -> int:
    """So many channels or filters, or as many more as matrix units want."""
    fills = problem.convolution.groups == 1 and problem.x.dtype in _16_BITS
    return -(-count // _CHANNELS_OF_16_BITS) * _CHANNELS_OF_16_BITS if fills else count


def _calls(problem: _Problem, arrangement: _Arrangement, prepare: Callable[[], Calls], figures: DeviceFigures) -> Calls:
    names = _names(problem)
    given, own = {name: Place(i) for i, name in enumerate(names)}, arrangement.places()
    output = names[-1]
    calls: list[Calls] = []
    for name, phases in arrangement.moved.items():
        if name in arrangement.has_gaps:
            calls.append((Memset(own[name], 0, phases.phases.nbytes),))
        if name != output:
            every = _filters(problem, arrangement) if name == "w" else (phases,)
            calls += [each.split(given[name], own[name], figures) for each in every]
    places = tuple((given | own)[name] for name in names)
    rest = Place(WORKSPACE, arrangement.nbytes)
    # The operation's alpha is the convolution's: sums beyond the range of 16 bits may be within it when they are scaled.
    calls.append(rewired(prepare(), places, rest, beta=0.0) if output in own else rewired(prepare(), places, rest))
    if output in own:
        joined = arrangement.moved[output].join(own[output], given[output], figures)
        calls.append(rewired(joined, tuple(map(Place, range(len(names)))), alpha=1.0))
    return tuple(call for some in calls for call in some)
