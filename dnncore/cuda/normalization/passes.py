"""Calls of several kernels in a row, which leave what they found to each other in the workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.cuda.calls import WORKSPACE, Call, Calls, FieldPath, Place, WhereAligned, aligned, kernel_call
from dnncore.cuda.normalization.frame import LIKE_X, PACK_BYTES, PARAMS, THREADS, Operand
from dnncore.cuda.params import FLOATING, c_type, generate_together
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.problems import Problem

__all__ = ["CHANNELS_ITEM_BYTES", "CHANNEL_KERNELS", "FIELDS", "Pass", "Scratch", "all_passes", "calls_of"]

_MAX_BLOCKS = 1 << 20

CHANNELS_ITEM_BYTES = 2
"""Of the elements that there are kernels of channels for."""

CHANNEL_KERNELS = {
    "forward": ("channels_moments", "channels_normalize"),
    "backward": ("channels_sums", "channels_gradient"),
}
"""Those that reduce, and those that write the output."""

FIELDS = {
    "x": Operand.X,
    "dy": Operand.DY,
    "y": Operand.OUTPUT,
    "dx": Operand.OUTPUT,
    "scale": Operand.SCALE,
    "bias": Operand.BIAS,
    "mean": Operand.MEAN,
    "saved_mean": Operand.MEAN,
    "variance": Operand.INV_STD,
    "saved_inv_std": Operand.INV_STD,
    "running_mean": Operand.FIRST_OLD,
    "running_variance": Operand.SECOND_OLD,
    "new_running_mean": Operand.FIRST_NEW,
    "new_running_variance": Operand.SECOND_NEW,
    "old_dscale": Operand.FIRST_OLD,
    "old_dbias": Operand.SECOND_OLD,
    "dscale": Operand.FIRST_NEW,
    "dbias": Operand.SECOND_NEW,
}
"""Which operand a problem's field is."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """A piece of the workspace. Immutable."""

    offset_bytes: int
    nbytes: int

    @property
    def end(self) -> int:
        """Where the next piece may begin."""
        return aligned(self.offset_bytes + self.nbytes)


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel of several. Immutable.

    Args:
        kernel: "forward", "backward", "finish_forward", "finish_backward" or "channels_backward".
        blocks: Of the grid; with 0 there is nothing to do.
        seconds: Estimated time of a launch.
        params: Makes the struct, without addresses and `narrow`.
        operands: Which it is given.
        partials: Where parts' results are.
        totals: Where groups' sums are.
        aligned_kernel: The one in its place where addresses are multiples of 16 bytes; None if there is none.
        starts_early: Whether the kernels may be launched so; those of channels may, and those that finish.
    """

    kernel: str
    blocks: int
    seconds: float
    params: Callable[[], np.ndarray]
    operands: frozenset[Operand]
    partials: Scratch | None = None
    totals: Scratch | None = None
    aligned_kernel: str | None = None
    starts_early: bool = False

    @property
    def workspace_end(self) -> int:
        """Bytes of workspace that it needs."""
        return max((piece.end for piece in (self.partials, self.totals) if piece is not None), default=0)


def _units(direction: str, dtype: DType, parameters: DType) -> dict[str, Unit]:
    """The kernels of a direction by the last words of their names, compiled together.

    Args:
        direction: "forward" or "backward".
        dtype: Of x.
        parameters: What parameters may be stored in: the compute type alone, or dtype beside it; is_narrow in frame.cuh says more.
    """
    element = c_type(dtype)
    suffix = element if parameters is dtype.compute else f"{element}_narrow"
    names = [direction, f"{direction}_aligned", f"{direction}_kept", f"finish_{direction}"]
    if direction == "backward":
        names.append("channels_backward")
    functions = {
        f"normalization_{name}_{suffix}": f"normalization_{name}<{element}, {c_type(parameters)}>" for name in names
    }
    units = generate_together(
        f"dnncore/normalization/{direction}_aligned.cuh", functions, "NormalizationParams", PARAMS, THREADS
    )
    found = dict(zip(names, units.values(), strict=True))
    return found | _channel_units(direction, dtype, parameters) if dtype.itemsize == CHANNELS_ITEM_BYTES else found


def _channel_units(direction: str, dtype: DType, parameters: DType) -> dict[str, Unit]:
    """The kernels of `normalization/channels.cuh`, compiled together whatever parameters are stored in."""
    element, (reduces, applies) = c_type(dtype), CHANNEL_KERNELS[direction]
    functions = {f"normalization_{reduces}_{element}": f"normalization_{reduces}<{element}>"}
    for stored, suffix in ((dtype.compute, element), (dtype, f"{element}_narrow")):
        functions[f"normalization_{applies}_{suffix}"] = f"normalization_{applies}<{element}, {c_type(stored)}>"
    first, wide, narrow = generate_together(
        "dnncore/normalization/channels.cuh", functions, "NormalizationParams", PARAMS, THREADS
    ).values()
    return {reduces: first, applies: wide if parameters is dtype.compute else narrow}


def all_passes(direction: str) -> tuple[Unit, ...]:
    """Every unit of a direction."""
    units = (
        unit
        for dtype in FLOATING
        for parameters in dict.fromkeys((dtype.compute, dtype))
        for unit in _units(direction, dtype, parameters).values()
    )
    return tuple(dict.fromkeys(units))


def calls_of(passes: Sequence[Pass], problem: Problem, direction: str, dtype: DType) -> Calls:
    """Wire the problem's operands to the passes' parameters; where there are kernels for aligned addresses, these choose."""
    names = (*problem.input_names, *problem.output_names)
    places = {FIELDS[name]: Place(place) for place, name in enumerate(names)}
    tensors = zip(names, (*problem.inputs, *problem.outputs), strict=True)
    narrow = {FIELDS[name] for name, tensor in tensors if tensor.dtype is not dtype.compute}.difference(LIKE_X)
    calls: list[Call] = []
    for one in passes:
        params = one.params()
        params["narrow"] = sum(1 << operand for operand in narrow & one.operands)
        units = _units(direction, dtype, dtype if narrow & one.operands else dtype.compute)
        calls += _calls(one, params, units, places)
    return tuple(calls)


def _calls(one: Pass, params: np.ndarray, units: Mapping[str, Unit], places: Mapping[Operand, Place]) -> Calls:
    wanted = {operand: place for operand, place in places.items() if operand in one.operands}
    scratch = {"partials": one.partials, "totals": one.totals}
    addresses: dict[FieldPath, Place] = {
        **{("operands", int(operand)): place for operand, place in wanted.items()},
        **{name: Place(WORKSPACE, piece.offset_bytes) for name, piece in scratch.items() if piece is not None},
    }
    blocks = min(one.blocks, _MAX_BLOCKS)
    early = one.starts_early
    has_one = one.aligned_kernel is None  # the other, for whatever addresses, waits for nothing
    calls = kernel_call(units[one.kernel], blocks, THREADS, params, addresses, starts_early=early and has_one)
    if one.aligned_kernel is None or not calls:
        return calls
    fast = kernel_call(units[one.aligned_kernel], blocks, THREADS, params, addresses, starts_early=early)
    return (WhereAligned(tuple((place, PACK_BYTES) for place in wanted.values()), fast, calls),)
