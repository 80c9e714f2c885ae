"""A pooling window and how it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from dnncore.descriptors.settings import HashedOnce, Pairs, each, member, pairs, settle, whole_pairs, wholes
from dnncore.descriptors.tensor import MAX_NDIM
from dnncore.errors import BadParamError

__all__ = ["PoolingDescriptor", "PoolingMode"]


class PoolingMode(Enum):
    """What a pooling window computes; the averages differ in whether padding counts in the divisor."""

    MAX = "max"
    AVERAGE_INCLUDE_PADDING = "average_include_padding"
    AVERAGE_EXCLUDE_PADDING = "average_exclude_padding"


@dataclass(frozen=True, slots=True)
class PoolingDescriptor(HashedOnce):
    """A pooling window and how it moves. Immutable.

    Args:
        mode: Maximum or one of the two averages.
        window: Extents of the window, one per spatial dimension.
        padding: Places before and after, a pair per spatial dimension; a maximum never sees them.
        stride: Steps, one per spatial dimension.
        ceil_mode: Round the output extent up, unless the last window would start in the padding behind the input.
        propagate_nan: Whether NaN is the maximum of every window it is in; else it counts as minus infinity.

    Padding is less than the window, so that every window has a place in the input (cuDNN v2 asks the same; PyTorch allows half
    the window).
    """

    mode: PoolingMode
    window: tuple[int, ...]
    padding: Pairs
    stride: tuple[int, ...]
    ceil_mode: bool = False
    propagate_nan: bool = True

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        settle(
            self,
            mode=member(PoolingMode, self.mode),
            window=wholes(self.window, "window"),
            padding=whole_pairs(self.padding, "padding"),
            stride=wholes(self.stride, "stride"),
        )
        if not len(self.window) == len(self.padding) == len(self.stride):
            raise BadParamError(
                f"window {self.window}, padding {self.padding} and stride {self.stride} differ in length"
            )
        if not 1 <= len(self.window) <= MAX_NDIM - 2:
            raise BadParamError(f"{len(self.window)} spatial dimensions; 1 to {MAX_NDIM - 2} are supported")
        if min(self.window) < 1 or min(self.stride) < 1:
            raise BadParamError(f"window {self.window} and stride {self.stride} must be 1 or more")
        for pair, extent in zip(self.padding, self.window, strict=True):
            if min(pair) < 0 or max(pair) >= extent:
                raise BadParamError(f"padding {self.padding} must be 0 or more and less than the window {self.window}")

    @classmethod
    def make(
        cls,
        mode: PoolingMode | str,
        window: int | Sequence[int],
        *,
        spatial_ndim: int = 2,
        padding: int | Sequence[int | tuple[int, int]] = 0,
        stride: int | Sequence[int] | None = None,
        ceil_mode: bool = False,
        propagate_nan: bool = True,
    ) -> PoolingDescriptor:
        """Build one from single numbers or sequences; without a stride the windows touch."""
        extents = each(window, spatial_ndim, "window")
        return cls(
            member(PoolingMode, mode),
            extents,
            pairs(padding, spatial_ndim, "padding"),
            extents if stride is None else each(stride, spatial_ndim, "stride"),
            bool(ceil_mode),
            bool(propagate_nan),
        )

    @property
    def spatial_ndim(self) -> int:
        """Number of spatial dimensions."""
        return len(self.window)

    def output_shape(self, x: Sequence[int]) -> tuple[int, ...]:
        """Shape [N, C, *output] for an input [N, C, *input].

        Raises:
            BadParamError: the number of dimensions disagrees, or a window is larger than the padded input.
        """
        x = wholes(x, "x")
        if len(x) != self.spatial_ndim + 2:
            raise BadParamError(f"x {x} needs {self.spatial_ndim + 2} dimensions for a window {self.window}")
        output = []
        for extent, window, (before, after), stride in zip(x[2:], self.window, self.padding, self.stride, strict=True):
            room = extent + before + after - window
            if room < 0:
                raise BadParamError(f"window {self.window} is larger than the padded input of x {x}")
            count = (-(-room // stride) if self.ceil_mode else room // stride) + 1
            if self.ceil_mode and (count - 1) * stride >= extent + before:
                count -= 1
            output.append(count)
        return (x[0], x[1], *output)
