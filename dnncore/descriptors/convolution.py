"""How a filter moves over an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from dnncore.descriptors.settings import HashedOnce, Pairs, each, member, pairs, settle, whole, whole_pairs, wholes
from dnncore.descriptors.tensor import MAX_NDIM
from dnncore.errors import BadParamError

__all__ = ["ConvolutionDescriptor", "ConvolutionMode", "MathType"]


class ConvolutionMode(Enum):
    """Whether the filter is used as it is stored or rotated by 180 degrees."""

    CROSS_CORRELATION = "cross_correlation"
    CONVOLUTION = "convolution"

    __hash__ = object.__hash__  # as of `DType`


class MathType(Enum):
    """How exact products of float32 must be; other dtypes are multiplied as they are stored, whatever this says.

    STRICT multiplies operands as they are. TF32 lets an algorithm round them to 10 bits of mantissa before, to the nearest, which
    makes tensor cores do the products: each has a relative error of up to 2^-10, and sums stay in float32. It permits and does
    not demand: where no such algorithm suits or is fastest, products are exact.
    """

    STRICT = "strict"
    TF32 = "tf32"

    __hash__ = object.__hash__  # as of `DType`


@dataclass(frozen=True, slots=True)
class ConvolutionDescriptor(HashedOnce):
    """How a filter moves over an input. Immutable.

    Args:
        padding: Zeros before and after, a pair per spatial dimension.
        stride: Steps, one per spatial dimension.
        dilation: Distance between the filter's taps, one per spatial dimension; 1 is dense.
        groups: G; C and K are cut into G parts that do not see each other.
        mode: Cross-correlation (what nets mean by convolution) or true convolution.
        math: Whether operands of float32 may be rounded to tf32 before they are multiplied.
    """

    padding: Pairs
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION
    math: MathType = MathType.STRICT

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        settle(
            self,
            padding=whole_pairs(self.padding, "padding"),
            stride=wholes(self.stride, "stride"),
            dilation=wholes(self.dilation, "dilation"),
            groups=whole(self.groups, "groups"),
            mode=member(ConvolutionMode, self.mode),
            math=member(MathType, self.math),
        )
        if not len(self.padding) == len(self.stride) == len(self.dilation):
            raise BadParamError(
                f"padding {self.padding}, stride {self.stride} and dilation {self.dilation} differ in length"
            )
        if not 1 <= len(self.stride) <= MAX_NDIM - 2:
            raise BadParamError(f"{len(self.stride)} spatial dimensions; 1 to {MAX_NDIM - 2} are supported")
        if min(self.stride) < 1 or min(self.dilation) < 1 or self.groups < 1:
            raise BadParamError(
                f"stride {self.stride}, dilation {self.dilation} and groups {self.groups} must be 1 or more"
            )
        if min(min(pair) for pair in self.padding) < 0:
            raise BadParamError(f"padding {self.padding} must not be negative")

    @classmethod
    def make(
        cls,
        spatial_ndim: int = 2,
        *,
        padding: int | Sequence[int | tuple[int, int]] = 0,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        mode: ConvolutionMode | str = ConvolutionMode.CROSS_CORRELATION,
        math: MathType | str = MathType.STRICT,
    ) -> ConvolutionDescriptor:
        """Build one from single numbers (the same in every spatial dimension) or sequences."""
        return cls(
            pairs(padding, spatial_ndim, "padding"),
            each(stride, spatial_ndim, "stride"),
            each(dilation, spatial_ndim, "dilation"),
            groups,
            member(ConvolutionMode, mode),
            member(MathType, math),
        )

    @property
    def spatial_ndim(self) -> int:
        """Number of spatial dimensions."""
        return len(self.stride)

    def output_shape(self, x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
        """Shape [N, K, *output] for an input [N, C, *input] and a filter [K, C/G, *filter].

        Each output extent is floor((input + padding - ((filter - 1) * dilation + 1)) / stride) + 1.

        Raises:
            BadParamError: dimensions, channels or groups disagree, or the filter is larger than the padded input.
        """
        x, w, ndim = wholes(x, "x"), wholes(w, "w"), len(self.stride) + 2
        if len(x) != ndim or len(w) != ndim:
            raise BadParamError(
                f"x {x} and w {w} need {ndim} dimensions for a convolution with {self.spatial_ndim} spatial ones"
            )
        if x[1] != w[1] * self.groups:
            raise BadParamError(f"x has {x[1]} channels, w {w} with {self.groups} groups expects {w[1] * self.groups}")
        if w[0] % self.groups:
            raise BadParamError(f"w has {w[0]} output channels, which {self.groups} groups do not divide")
        output = [x[0], w[0]]
        for extent, taps, step, dilation, (before, after) in zip(
            x[2:], w[2:], self.stride, self.dilation, self.padding, strict=True
        ):
            span, padded = (taps - 1) * dilation + 1, extent + before + after
            if taps < 1 or span > padded:
                raise BadParamError(
                    f"filter extent {taps} with dilation {dilation} covers {span}, more than the padded "
                    f"input's {padded} in spatial dimension {len(output) - 2}"
                )
            output.append((padded - span) // step + 1)
        return tuple(output)
