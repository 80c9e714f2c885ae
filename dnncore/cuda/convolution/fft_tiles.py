"""A stride-1 convolution as circular correlations of tiles: what is cut where, and which products of spectra are needed.

Overlap-save: a tile of T x T places of the input, correlated circularly with a filter that spans S places, gives T - S + 1 places
of the output, and the others are thrown away. With A and B the spectra of tiles, all three directions are C = A * conj(B):

    forward          y tile   = x tile  correlated with w            summed over the channels c
    backward-data    dx tile  = dy tile correlated with w rotated    summed over the filters k
    backward-filter  dw       = x tile  correlated with dy tile      summed over images and tiles

Source: Oppenheim, Schafer, Discrete-Time Signal Processing, section 8.7 (overlap-save); arXiv 1312.5851 and 1412.7580 for nets.
Pure: nothing knows of a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from dnncore.descriptors import ConvolutionMode, TensorDescriptor
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["SIZES", "Correlation", "Cut", "Operand", "correlation", "cut_or_reason", "frequencies", "span"]

SIZES = (16, 32)
"""Extents of a tile, the same in both dimensions."""

_WORTH_IT = 0.8
"""Of the work with smaller tiles, for which larger ones are taken."""

Pair = tuple[int, int]


def frequencies(size: int) -> int:
    """Complex numbers that determine the spectrum of size x size real numbers; four of them are real."""
    return size * size // 2 + 2


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor cut into tiles; tiles are items [group][slow][fast]. Immutable.

    Args:
        images: What tiles are counted together with: images, or one of the two channel dimensions of a filter.
        channels: The other dimension, in a group.
        offset: Elements from the tensor's address to image 0, channel 0, place 0.
        strides: Elements from group to group, image to image, channel to channel.
        place_strides: Elements from row to row and from column to column.
        extent: Rows and columns of the tensor.
        tiles: How many there are in either dimension.
        step: Places from a tile to the next.
        used: Places of a tile that are the tensor's.
        first: The place of tile 0's corner; negative in the padding.
        spacing: Places of a tile between neighbours of the tensor.
        channel_is_fast: Whether `fast` counts channels, and `slow` images and tiles; else the reverse.
    """

    images: int
    channels: int
    offset: int
    strides: tuple[int, int, int]
    place_strides: Pair
    extent: Pair
    tiles: Pair
    step: Pair
    used: Pair
    first: Pair = (0, 0)
    spacing: Pair = (1, 1)
    channel_is_fast: bool = False

    @property
    def fast(self) -> int:
        """Neighbours in memory."""
        return self.channels if self.channel_is_fast else self.images * math.prod(self.tiles)

    @property
    def slow(self) -> int:
        """The other dimension of the matrices."""
        return self.images * math.prod(self.tiles) if self.channel_is_fast else self.channels

    @property
    def items_are_nearer(self) -> bool:
        """Whether neighbouring items are nearer to each other in the tensor than neighbouring columns are."""
        if not self.channel_is_fast and self.tiles != (1, 1):
            return False
        return abs(self.strides[2 if self.channel_is_fast else 1]) < abs(self.place_strides[1])

    def part(self, images: int) -> Operand:
        """The first ones of the images."""
        return replace(self, images=images)


@dataclass(frozen=True, slots=True)
class Correlation:
    """C[slow][fast] = sum over the slow dimension of A and B, for every frequency and group. Immutable.

    Args:
        size: Extent of a tile.
        groups: Independent products.
        a: Gives the columns.
        b: Gives the rows.
        c: The output.
        conjugate: conj(A) * B instead, A and B having changed places.
        inputs: Which of the problem's inputs, in its order, are A and B: "a", "b".
        batched: The operands of which parts of the batch can be taken, one after the other.
    """

    size: int
    groups: int
    a: Operand
    b: Operand
    c: Operand
    conjugate: bool
    inputs: tuple[str, str]
    batched: tuple[str, ...]

    @property
    def batch(self) -> int:
        """Images."""
        return self.a.images

    def number(self, name: str) -> int:
        """Which of the problem's operands "a", "b" or "c" is, the inputs first."""
        return (*self.inputs, "c").index(name)

    def part(self, images: int) -> Correlation:
        """The same for the first ones of the images."""
        if images == self.batch:
            return self
        parts: dict[str, Operand] = {name: getattr(self, name).part(images) for name in self.batched}
        return replace(self, **parts)  # type: ignore[arg-type]  # of the fields only operands


def span(problem: ConvolutionProblem) -> Pair:
    """Rows and columns from a filter's first tap to its last one, both included."""
    taps, dilation = _planar(problem.w.shape[2:], 1), _planar(problem.convolution.dilation, 1)
    return (taps[0] - 1) * dilation[0] + 1, (taps[1] - 1) * dilation[1] + 1


def _planar(values: tuple[int, ...], missing: int) -> Pair:
    """One dimension is two of which the first has one row."""
    first, second = (missing, *values) if len(values) == 1 else values
    return first, second


def _longest_span(size: int) -> int:
    """A filter that spans more leaves less than half a tile in either dimension."""
    return size // 2 + 1


@dataclass(frozen=True, slots=True)
class Cut:
    """Tiles of a problem. Immutable.

    Args:
        size: Extent of a tile.
        first: The place of the input at which the first output looks with its first tap.
        step: Outputs of a tile, in either dimension.
        tiles: Tiles in either dimension.
    """

    size: int
    first: Pair
    step: Pair
    tiles: Pair

    @property
    def work(self) -> int:
        """Products of spectra, for each image and pair of channels."""
        return frequencies(self.size) * math.prod(self.tiles)


def _cuts(problem: ConvolutionProblem, reach: Pair) -> list[Cut]:
    """Into tiles of every size that the filter fits into."""
    before = _planar(tuple([pair[0] for pair in problem.convolution.padding]), 0)
    first, source, target = (-before[0], -before[1]), problem.x, problem.y
    if problem.direction is Direction.BACKWARD_DATA:
        first, source, target = (before[0] - reach[0] + 1, before[1] - reach[1] + 1), problem.y, problem.x
    inputs, outputs = _planar(source.shape[2:], 1), _planar(target.shape[2:], 1)
    cuts = []
    for size in SIZES:
        if max(reach) <= _longest_span(size):
            rows, columns = (_outputs_of_tile(size, reach[i], first[i], inputs[i], outputs[i]) for i in (0, 1))
            cuts.append(Cut(size, first, (rows, columns), (-(-outputs[0] // rows), -(-outputs[1] // columns))))
    return cuts


def _outputs_of_tile(size: int, reach: int, first: int, inputs: int, outputs: int) -> int:
    """Along one axis: those that look at nothing past the tile's end.

    Or else all, where what lies past the end is zeros and so are the places to which it comes round, at the tile's beginning: where
    the padding is as wide as the filter, which is so in backward-data of a convolution without padding.
    """
    past_the_end = outputs + reach - 1 - size
    if outputs <= size and first + past_the_end <= 0 and inputs - first <= size:
        return size
    return size - reach + 1


@lru_cache(maxsize=8)
def cut_or_reason(problem: ConvolutionProblem) -> Cut | str:
    """Cut a convolution into tiles; a reason instead where that is not possible or pointless."""
    conv = problem.convolution
    if conv.spatial_ndim > 2:
        return f"it has {conv.spatial_ndim} spatial dimensions; at most 2"
    if max(conv.stride) > 1:
        return f"its stride is {conv.stride}; only 1 everywhere"
    reach = span(problem)
    if max(reach) > _longest_span(SIZES[-1]):
        return f"its filter spans {reach} places; at most {_longest_span(SIZES[-1])} fit into a tile"
    if reach == (1, 1):
        return "its filter has one tap, which a transform only makes more expensive"
    # Not of the batch's size, so that an image gets the same bits in every batch. A larger tile has more spectra of filters, and
    # fewer tiles to multiply each with, which must be worth it: 28 x 28 places of 512 channels took 40 times as long with one
    # tile of 32 x 32 per image as by other algorithms on an H200, though its work is less than that of four of 16 x 16.
    smallest, *others = _cuts(problem, reach)
    return next((cut for cut in reversed(others) if cut.work < _WORTH_IT * smallest.work), smallest)


def correlation(problem: ConvolutionProblem, cut: Cut) -> Correlation:
    """Which tiles are multiplied with which."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    channels, filters, size, step = w.shape[1], w.shape[0] // conv.groups, cut.size, cut.step

    def tensor(
        of: TensorDescriptor, in_group: int, used: int | Pair, first: Pair = (0, 0), *, channel_is_fast: bool = False
    ) -> Operand:
        return Operand(
            images=of.shape[0], channels=in_group, offset=0, strides=(in_group * of.strides[1], of.strides[0], of.strides[1]),
            place_strides=_planar(of.strides[2:], 0), extent=_planar(of.shape[2:], 1), tiles=cut.tiles, step=step,
            used=(used, used) if isinstance(used, int) else used, first=first, channel_is_fast=channel_is_fast,
        )  # fmt: skip

    def filters_of(*, by_channel: bool, rotated: bool) -> Operand:
        """w as one tile per item: `images` are the input channels, or else the filters of a group."""
        extent, strides, offset = _planar(w.shape[2:], 1), _planar(w.strides[2:], 0), 0
        if rotated:
            offset = sum((n - 1) * stride for n, stride in zip(extent, strides, strict=True))
            strides = -strides[0], -strides[1]
        counts, steps = (filters, channels), (w.strides[0], w.strides[1])
        if by_channel:
            counts, steps = (channels, filters), (w.strides[1], w.strides[0])
        return Operand(
            images=counts[0], channels=counts[1], offset=offset, strides=(filters * w.strides[0], *steps),
            place_strides=strides, extent=extent, tiles=(1, 1), step=(size, size), used=(size, size),
            spacing=_planar(conv.dilation, 1),
        )  # fmt: skip

    rotated = conv.mode is ConvolutionMode.CONVOLUTION
    match problem.direction:
        case Direction.FORWARD:
            a, b = tensor(x, channels, size, cut.first), filters_of(by_channel=False, rotated=rotated)
            return Correlation(size, conv.groups, a, b, tensor(y, filters, step), False, ("a", "b"), ("a", "c"))
        case Direction.BACKWARD_DATA:
            a, b = tensor(y, filters, size, cut.first), filters_of(by_channel=True, rotated=not rotated)
            return Correlation(size, conv.groups, a, b, tensor(x, channels, step), False, ("b", "a"), ("a", "c"))
        case Direction.BACKWARD_FILTER:
            of_x = tensor(x, channels, size, cut.first, channel_is_fast=True)
            of_dy = tensor(y, filters, step, channel_is_fast=True)
            # The product's tiles may be few rows high, but not few columns wide.
            swapped = channels < filters
            a, b = (of_dy, of_x) if swapped else (of_x, of_dy)
            dw = filters_of(by_channel=not swapped, rotated=rotated)
            return Correlation(size, conv.groups, a, b, dw, swapped, ("b", "a") if swapped else ("a", "b"), ("a", "b"))
