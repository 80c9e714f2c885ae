"""Forward convolution by filters of one tap over few channels, or by few filters: implicit_gemm_thin.

Channels-last images of 16 bits, sums in fp32. Memory bounds it, so warps wait for nothing but memory (the picture is in
`convolution/thin.cuh`); where there is more to multiply, the kernels of larger tiles are faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, FieldPath, Place, kernel_call
from dnncore.cuda.convolution.copy_engine import pixel_pitch, why_no_matrix
from dnncore.cuda.convolution.elsewhere import Otherwise, computing_elsewhere, where_aligned
from dnncore.cuda.convolution.one_row import with_one_row
from dnncore.cuda.convolution.wgmma_output import finish, why_not_finished
from dnncore.cuda.gemm import BLEND_AND_EPILOGUE
from dnncore.cuda.params import ADDRESS, c_type, generate, record, struct
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["ThinConvolution"]

_DTYPES = (DType.FLOAT16, DType.BFLOAT16)
_BLOCK, _PIXELS = 32, 32
"""kBlock and kPixels in thin.cuh."""

_MOST_GROUPS = 2
"""Blocks of filters that stay in registers, reducing; expanding, one of channels does."""

_THREADS, _WARPS = 256, 8
_BLOCKS = 2
"""On a multiprocessor."""

_SHARED_BYTES = 112 * 1024
"""Of a block, so that a multiprocessor of Hopper has room for both."""

_EIGHT = 8
_ALIGNED_BYTES = 16
_MOST = 2**31 - 2**20
"""Pixels, so that 32 bits hold the number of one that a warp looks for behind them."""

_MOST_PITCH = 2**24
"""Elements from pixel to pixel, of which a warp's are so few apart that 32 bits hold it."""

# Fitted to such layers of MobileNetV2 and ResNet-50 on an H200: the share of the memory's rate, in launches what it takes until all
# multiprocessors load, and clocks of 32 products of 32 pixels and 32 filters each, on a multiprocessor that has enough warps.
_OF_MEMORY_RATE, _LAUNCHES, _BLOCK_CLOCKS = 0.78, 0.5, 110

_WARP_CLOCKS, _TURN_CLOCKS = 2000, 500
"""Of 32 pixels, and of each block of their products, while a warp is alone [assumed]."""

_PARAMS = struct(
    *BLEND_AND_EPILOGUE,
    ("x", ADDRESS),
    ("w", ADDRESS),
    ("y", ADDRESS),
    ("w_filter", "<i8"),
    ("x_pitch", "<i4"),
    ("y_pitch", "<i4"),
    ("z_pitch", "<i4"),
    ("pixels", "<i4"),
    ("channels", "<i4"),
    ("filters", "<i4"),
    ("chunks", "<i4"),
    ("groups", "<i4"),
    ("reads_filters_early", "<i4"),
)


@dataclass(frozen=True, slots=True)
class _Size:
    """How many blocks of 32 channels and filters there are. Immutable."""

    chunks: int
    groups: int

    @property
    def function(self) -> str | None:
        """The kernel that has one of the two in registers; None where neither fits."""
        if self.groups <= min(_MOST_GROUPS, self.chunks):
            return f"reduce_{self.groups}"
        return "expand" if self.chunks == 1 else None

    @property
    def shared_bytes(self) -> int:
        """Of the filters, and of their scales and biases."""
        filters = self.groups * _BLOCK
        return self.chunks * filters * _BLOCK * 2 + 2 * filters * 4


def _unit(dtype: DType, function: str) -> Unit:
    kind, *groups = function.split("_")
    arguments = ", ".join((c_type(dtype), *groups))
    return generate(
        header="dnncore/convolution/thin.cuh",
        entry=f"convolution_thin_{function}_{c_type(dtype)}",
        function=f"thin::{kind}<{arguments}>",
        struct_name="thin::Params",
        dtype=_PARAMS,
        threads=_BLOCKS * _THREADS,  # so many registers that both blocks have room
    )


@dataclass(frozen=True)
class ThinConvolution(Bounded, Selective):
    """A forward convolution, with its epilogue or without, no workspace. Immutable.

    Args:
        elsewhere: What computes where an operand does not begin at a multiple of 16 bytes.
    """

    elsewhere: CudaAlgorithm
    name: str = "implicit_gemm_thin"

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype, and what is in registers."""
        functions = ["expand", *(f"reduce_{n + 1}" for n in range(_MOST_GROUPS))]
        return tuple(_unit(dtype, function) for dtype in _DTYPES for function in functions)

    def suits(self, kind: ConvolutionKind) -> bool:
        """Products of pixels and filters of 16 bits, channels innermost."""
        is_product = math.prod(kind.taps) == max(kind.stride) == 1 and not kind.has_groups
        return is_product and kind.direction is Direction.FORWARD and kind.dtypes[0] in _DTYPES and all(kind.inside)

    def least_seconds(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> float:
        """What memory takes for its operands; infinite of kinds of convolutions that it refuses."""
        w = problem.w
        if w.dtype not in _DTYPES or math.prod(w.shape[2:]) > 1 or w.shape[0] % _EIGHT or w.shape[1] % _EIGHT:
            return math.inf
        return operand_bytes(problem) / figures.bytes_per_second

    def offer(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What memory or the warps take, whichever is longer; or the reason why the problem is not for it."""
        given, problem = problem, with_one_row(problem)
        plain = problem if isinstance(problem, ConvolutionProblem) else problem.plain
        reason = _why_not(plain) or why_not_finished(problem, why_no_matrix)
        if reason is not None:
            return reason
        size = _size(plain)
        if size.function is None or size.shared_bytes > min(_SHARED_BYTES, figures.shared_bytes):
            return f"{plain.x.shape[1]} channels and {plain.w.shape[0]} filters are too many for registers and shared memory"
        return Offer(
            _seconds(problem, plain, size, figures),
            partial(_calls, problem, plain, size, figures, computing_elsewhere(self.elsewhere, given, figures)),
        )


def _size(problem: ConvolutionProblem) -> _Size:
    return _Size(-(-problem.x.shape[1] // _BLOCK), -(-problem.w.shape[0] // _BLOCK))


def _why_not(problem: ConvolutionProblem) -> str | None:
    """None where it is a convolution of the kind, else the reason."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    if problem.direction is not Direction.FORWARD:
        return f"it has no {problem.direction.value}"
    if x.dtype not in _DTYPES or y.dtype is not x.dtype:
        return f"x is {x.dtype.value} and y {y.dtype.value}; it takes {', '.join(dtype.value for dtype in _DTYPES)}, both alike"
    if conv.spatial_ndim != 2 or w.shape[2:] != (1, 1) or conv.groups != 1:
        return f"{conv.spatial_ndim} spatial dimensions, taps {w.shape[2:]}, {conv.groups} groups; it takes one tap, and one group"
    if conv.stride != (1, 1) or any(map(any, conv.padding)):
        return f"strides {conv.stride}, padding {conv.padding}; it takes none"
    if not (x.size and w.size and y.size):
        return "there is nothing to multiply"
    if w.shape[0] % _EIGHT or w.shape[1] % _EIGHT or w.strides[1] != 1 or w.strides[0] % _EIGHT:
        return f"w ({w}) needs filters and channels in eights, channel by channel"
    if x.size // x.shape[1] > _MOST:
        return f"{x.size // x.shape[1]} pixels; at most {_MOST}"
    return why_no_matrix("x", x) or why_no_matrix("y", y) or _why_too_far("x", x) or _why_too_far("y", y)


def _why_too_far(name: str, images: TensorDescriptor) -> str | None:
    pitch = abs(pixel_pitch(images))
    return None if pitch <= _MOST_PITCH else f"{name} has {pitch} elements from pixel to pixel; at most {_MOST_PITCH}"


def _seconds(
    problem: ConvolutionProblem | FusedConvolutionProblem,
    plain: ConvolutionProblem,
    size: _Size,
    figures: DeviceFigures,
) -> float:
    """The launch, and memory or the warps, whichever takes longer."""
    pixels = plain.x.size // plain.x.shape[1]
    memory = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
    blocks = size.chunks * size.groups
    work = pixels / _PIXELS * blocks * _BLOCK_CLOCKS / figures.multiprocessors
    turns = -(-pixels // (_PIXELS * _WARPS * _BLOCKS * figures.multiprocessors))
    clocks = max(work, turns * (_WARP_CLOCKS + blocks * _TURN_CLOCKS))
    return figures.launch_seconds * _LAUNCHES + max(memory, clocks / figures.clock_hz)


def _calls(
    problem: ConvolutionProblem | FusedConvolutionProblem,
    plain: ConvolutionProblem,
    size: _Size,
    figures: DeviceFigures,
    elsewhere: Otherwise,
) -> Calls:
    x, w, y = plain.x, plain.w, plain.y
    pixels = x.size // x.shape[1]
    z = problem.z if isinstance(problem, FusedConvolutionProblem) else None
    params = record(
        _PARAMS,
        w_filter=w.strides[0],
        x_pitch=pixel_pitch(x),
        y_pitch=pixel_pitch(y),
        z_pitch=0 if z is None else pixel_pitch(z),
        pixels=pixels,
        channels=x.shape[1],
        filters=w.shape[0],
        chunks=size.chunks,
        groups=size.groups,
    )
    others = finish(params, problem)
    operands = Place(0), Place(1), Place(len(problem.inputs))
    places: dict[FieldPath, Place] = {"x": operands[0], "w": operands[1], "y": operands[2]}
    assert size.function is not None
    calls = kernel_call(
        _unit(x.dtype, size.function),
        min(-(-pixels // (_PIXELS * _WARPS)), _BLOCKS * figures.multiprocessors),
        _THREADS,
        params,
        {**places, **others},
        shared_bytes=size.shared_bytes,
        starts_early=figures.starts_early,
        constants={"reads_filters_early": places["w"]},
    )
    aligned = [*operands, *(place for field, place in others.items() if field[-1] == "z")]
    return where_aligned(tuple((place, _ALIGNED_BYTES) for place in aligned), calls, elsewhere)
