"""Calls of several kernels in a row, which leave what they found to each other in the workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dnncore.cuda.calls import WORKSPACE, Call, Calls, FieldPath, Place, WhereAligned, aligned, kernel_call
from dnncore.cuda.normalization.frame import LIKE_X, PACK_BYTES, PARAMS, THREADS, Operand
from dnncore.cuda.params import FLOATING, c_type, generate_together
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.problems import Problem

__all__ = ["CHANNELS_ITEM_BYTES", "Pass", "Scratch", "all_passes", "calls_of", "places_of"]

_MAX_BLOCKS = 1 << 20

CHANNELS_ITEM_BYTES = (2, 4)
"""Of the elements that there are kernels of channels for."""

_CHANNEL_KERNELS = {
    "forward": {
        "channels_moments": ("moments", False, ""),
        "channels_normalize": ("normalize", True, ""),
        "channels_normalize_added": ("normalize", True, ", true"),
    },
    "backward": {
        "channels_sums": ("sums", False, ""),
        "channels_sums_by_line": ("sums", True, ", Mask::kByLine"),
        "channels_sums_by_y": ("sums", False, ", {compute}, Mask::kByY"),
        "channels_gradient": ("gradient", True, ""),
        "channels_gradient_by_line": ("gradient", True, ", Mask::kByLine"),
    },
}
"""Of each kernel of `normalization/channels.cuh`: the function, whether it reads parameters, and further template arguments."""

_FIELDS = {
    "x": Operand.X,
    "dy": Operand.DY,
    "y": Operand.OUTPUT,
    "dx": Operand.OUTPUT,
    "z": Operand.Z,
    "dz": Operand.Z,
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
"""Which operand a problem's field is; but for y where it is read."""


def places_of(problem: Problem) -> dict[Operand, int]:
    """Places of a problem's operands among its inputs and outputs."""
    read = {Operand.Y if name == "y" else _FIELDS[name]: place for place, name in enumerate(problem.input_names)}
    return read | {_FIELDS[name]: place for place, name in enumerate(problem.output_names, len(problem.input_names))}


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
        in_place_of: Operands that are given to it as others: what the launch before left in one is read as the other.
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
    in_place_of: Mapping[Operand, Operand] = field(default_factory=dict)

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
    return found | _channel_units(direction, dtype, parameters) if dtype.itemsize in CHANNELS_ITEM_BYTES else found


def _channel_units(direction: str, dtype: DType, parameters: DType) -> dict[str, Unit]:
    """The kernels of `normalization/channels.cuh`, compiled together whatever parameters are stored in."""
    element, compute = c_type(dtype), c_type(dtype.compute)
    functions: dict[str, str] = {}
    wanted: dict[str, str] = {}
    for name, (function, has_parameters, further) in _CHANNEL_KERNELS[direction].items():
        for stored in dict.fromkeys((dtype.compute, dtype) if has_parameters else (dtype.compute,)):
            entry = f"normalization_{name}_{element}{'' if stored is dtype.compute else '_narrow'}"
            types = f"{element}, {c_type(stored)}" if has_parameters else element
            functions[entry] = f"normalization_channels_{function}<{types}{further.format(compute=compute)}>"
            if stored is parameters or not has_parameters:
                wanted[name] = entry
    units = generate_together("dnncore/normalization/channels.cuh", functions, "NormalizationParams", PARAMS, THREADS)
    return {name: units[entry] for name, entry in wanted.items()}


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
    places = {operand: Place(place) for operand, place in places_of(problem).items()}
    tensors = (*problem.inputs, *problem.outputs)
    stored = {operand for operand, place in places_of(problem).items() if tensors[place].dtype is not dtype.compute}
    narrow = stored.difference(LIKE_X)
    calls: list[Call] = []
    for one in passes:
        params = one.params()
        params["narrow"] = sum(1 << operand for operand in narrow & one.operands)
        units = _units(direction, dtype, dtype if narrow & one.operands else dtype.compute)
        calls += _calls(one, params, units, places)
    return tuple(calls)


def _calls(one: Pass, params: np.ndarray, units: Mapping[str, Unit], places: Mapping[Operand, Place]) -> Calls:
    wanted = {operand: places[one.in_place_of.get(operand, operand)] for operand in sorted(one.operands)}
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
