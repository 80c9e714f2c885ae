"""A launch as a value: what is launched, with which parameters, and which addresses go where. Pure.

`Offer.prepare` gives calls; two modules turn them into work and no others: the binder (`runtime.binder`) into launches, one by one,
and `runtime.graph` into the nodes of a CUDA graph. Until then they can be compared, printed, moved to other operands and joined to
longer sequences. What there is much of are named tuples, which are made in a third of the time that frozen dataclasses take.

    operand   0 1 ... | ...       | WORKSPACE
              inputs    outputs     scratch memory, aligned to 256 bytes; right before it the tickets, at TICKETS
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from struct import pack
from typing import NamedTuple

import numpy as np

from dnncore.backend import TICKET_BYTES, Wired
from dnncore.cuda.tensor_map import TENSOR_MAP_BYTES, TensorMap
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures

__all__ = [
    "ALIGNMENT_BYTES",
    "TICKETS",
    "WORKSPACE",
    "Call",
    "Calls",
    "ConstantSlot",
    "Copy",
    "KernelCall",
    "MapSlot",
    "Memset",
    "Place",
    "Slot",
    "WhereAligned",
    "aligned",
    "blocks_for",
    "described",
    "in_order",
    "joined",
    "kernel_call",
    "rewired",
]

WORKSPACE = -1
"""The operand that is the workspace; others are counted from 0, the inputs first, then the outputs, in the problem's order."""

ALIGNMENT_BYTES = 256
"""What workspaces and allocations are aligned to: what cuMemAlloc promises."""

_THREADS = 128
"""Of most blocks of grid-stride loops: as many of these as fill the multiprocessors; more would only queue up."""


class Place(NamedTuple):
    """An address that is known when a call is bound: an operand's first element, or the workspace, and bytes from there. Immutable.

    Args:
        operand: Its number, or WORKSPACE.
        offset_bytes: From its beginning; negative among the tickets.
    """

    operand: int
    offset_bytes: int = 0

    def plus(self, nbytes: int) -> Place:
        """The place so many bytes further on."""
        return Place(self.operand, self.offset_bytes + nbytes)


TICKETS = Place(WORKSPACE, -TICKET_BYTES)
"""Where the tickets are: counters that are 0 between launches."""


class Slot(NamedTuple):
    """Eight bytes of a parameter block that take an address. Immutable.

    Args:
        field: Bytes from the block's beginning.
        place: The address.
    """

    field: int
    place: Place


class ConstantSlot(NamedTuple):
    """Four bytes of a parameter block that say whether an operand is constant while the kernel before runs: 1, else 0. Immutable.

    A kernel that starts early may read such an operand before that kernel has ended. Only a graph knows: an operand is constant
    there if nothing in the graph writes it.

    Args:
        field: Bytes from the block's beginning.
        place: Where the operand begins.
    """

    field: int
    place: Place


class MapSlot(NamedTuple):
    """Where a parameter block takes a tensor map, which is encoded once the address of its tensor is known. Immutable.

    Args:
        field: Bytes from the block's beginning.
        place: The tensor's address.
        tensor: Everything else about it.
    """

    field: int
    place: Place
    tensor: TensorMap


class KernelCall(NamedTuple):
    """A kernel with everything but addresses and blending factors. Immutable.

    Args:
        unit: The kernel.
        grid: Blocks, none of them 0.
        block: Threads per block.
        params: The one parameter struct, bit by bit; slots hold 0.
        slots: Where addresses go.
        alpha: Where alpha goes, as a double, in bytes from the struct's beginning; None where the struct has its own value.
        beta: Where beta goes, likewise.
        shared_bytes: Dynamic shared memory per block.
        maps: Where tensor maps go.
        starts_early: Whether its blocks may begin while the kernel before it still runs (programmatic dependent launch): each
            thread waits for the end of that kernel before it touches memory other than constants (ptx/early_launch.cuh). From
            sm_90 on.
        constants: Where it learns which operands are constant.
    """

    unit: Unit
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: bytes
    slots: tuple[Slot, ...]
    alpha: int | None = None
    beta: int | None = None
    shared_bytes: int = 0
    maps: tuple[MapSlot, ...] = ()
    starts_early: bool = False
    constants: tuple[ConstantSlot, ...] = ()


@dataclass(frozen=True, slots=True)
class Memset:
    """Fill memory with one byte. Immutable."""

    place: Place
    value: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy memory within the device. Immutable."""

    destination: Place
    source: Place
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class WhereAligned:
    """Two ways to do the same, of which addresses choose one. Immutable.

    Operands are aligned nearly always, so that the calls for all others may be left to be made when somebody asks for them.

    Args:
        alignments: Places, and what the address of each must be a multiple of, in bytes, for the first way.
        aligned: The calls where all of them are.
        elsewhere: The calls for others, on the same operands; or what makes them, and gives the same always.
    """

    alignments: tuple[tuple[Place, int], ...]
    aligned: Calls
    elsewhere: Calls | Callable[[], Calls]

    @property
    def otherwise(self) -> Calls:
        """The calls for others, made if they were not yet."""
        if callable(self.elsewhere):
            object.__setattr__(self, "elsewhere", self.elsewhere())  # two threads would make the same
        assert not callable(self.elsewhere)
        return self.elsewhere

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WhereAligned):
            return NotImplemented
        mine, theirs = ((each.alignments, each.aligned, each.otherwise) for each in (self, other))
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self.alignments, self.aligned))


Call = KernelCall | Memset | Copy | WhereAligned

Calls = tuple[Call, ...]
"""In the order in which they run; none where there is nothing to do."""


def aligned(nbytes: int) -> int:
    """How far into a block something aligned may follow what takes `nbytes` at its beginning."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def blocks_for(figures: DeviceFigures, work: int, per_block: int) -> int:
    """Blocks of a grid-stride loop over `work` items, of which a block takes `per_block` at a time."""
    return min(-(-work // per_block), figures.multiprocessors * (figures.threads_per_multiprocessor // _THREADS))


FieldPath = str | tuple[str | int, ...]
"""A field of a struct: its name, or the names and indices that lead to it: ("epilogue", "bias"), ("operands", 3)."""


@cache
def _field_offset(dtype: np.dtype, path: FieldPath, nbytes: int = 8) -> int:
    """Where a field is in one of the library's structs: every call asks for several."""
    offset = 0
    for step in (path,) if isinstance(path, str) else path:
        if isinstance(step, int):
            base, shape = dtype.subdtype or (dtype, ())
            assert shape, f"{dtype} is no array"
            assert 0 <= step < shape[0], f"{step} is no index of {dtype}"
            dtype, offset = base, offset + step * base.itemsize
        else:
            assert dtype.fields is not None, f"{dtype} has no field {step}"
            dtype, start = dtype.fields[step][:2]
            offset += start
    assert dtype.itemsize == nbytes, f"{path} is {dtype}, which does not hold {nbytes} bytes"
    return offset


def in_order(*names: FieldPath | None) -> dict[FieldPath, Place]:
    """The fields that take the operands' addresses, in the problem's order; None for an operand that the kernel does not read."""
    return {name: Place(operand) for operand, name in enumerate(names) if name is not None}


def kernel_call(
    unit: Unit,
    grid: int | tuple[int, int, int],
    threads: int,
    params: np.ndarray,
    places: Mapping[FieldPath, Place],
    *,
    blends: bool = True,
    shared_bytes: int = 0,
    maps: Mapping[FieldPath, tuple[Place, TensorMap]] | None = None,
    starts_early: bool = False,
    constants: Mapping[FieldPath, Place] | None = None,
) -> tuple[KernelCall, ...]:
    """The call of a kernel; none where its grid is empty.

    Args:
        unit: The kernel.
        grid: Blocks, along x or along all three; with a 0 there is nothing to compute.
        threads: Per block.
        params: A zero-dimensional structured array with everything but addresses filled in.
        places: Its fields that take addresses.
        blends: Whether its fields `alpha` and `beta` take the operation's factors; else they stay as they are.
        shared_bytes: Dynamic shared memory per block.
        maps: Its fields that take tensor maps: whose, and how it is seen.
        starts_early: See `KernelCall`.
        constants: Its fields that say whether an operand is constant (`ConstantSlot`).
    """
    blocks = (grid, 1, 1) if isinstance(grid, int) else grid
    if not math.prod(blocks):
        return ()
    dtype = params.dtype
    slots = tuple([Slot(_field_offset(dtype, path), place) for path, place in places.items()])
    alpha, beta = (_field_offset(dtype, "alpha"), _field_offset(dtype, "beta")) if blends else (None, None)
    map_slots: tuple[MapSlot, ...] = ()
    if maps:
        offset = partial(_field_offset, dtype, nbytes=TENSOR_MAP_BYTES)
        map_slots = tuple([MapSlot(offset(path), place, tensor) for path, (place, tensor) in maps.items()])
    constant_slots: tuple[ConstantSlot, ...] = ()
    if constants:
        offset = partial(_field_offset, dtype, nbytes=4)
        constant_slots = tuple([ConstantSlot(offset(path), place) for path, place in constants.items()])
    return (
        KernelCall(
            unit,
            blocks,
            (threads, 1, 1),
            params.tobytes(),
            slots,
            alpha,
            beta,
            shared_bytes,
            map_slots,
            starts_early,
            constant_slots,
        ),
    )


def rewired(
    calls: Calls,
    operands: Sequence[Place],
    workspace: Place | None = None,
    *,
    alpha: float | None = None,
    beta: float | None = None,
) -> Calls:
    """The same calls on other operands: how one algorithm's calls become steps of another's.

    Args:
        calls: What to run.
        operands: Where each of their operands is.
        workspace: Where their workspace begins; None where they take none, or all of it. The tickets stay where they are.
        alpha: Their factor; None for the operation's own.
        beta: Likewise.
    """
    scratch = Place(WORKSPACE) if workspace is None else workspace
    starts = {**dict(enumerate(operands)), WORKSPACE: scratch}

    def place(old: Place) -> Place:
        operand, offset_bytes = old
        if not offset_bytes:
            return starts[operand]
        if operand == WORKSPACE and offset_bytes < 0:
            return old
        new_operand, start = starts[operand]
        return Place(new_operand, start + offset_bytes)

    def rewire(call: Call) -> Calls:
        if isinstance(call, WhereAligned):
            return _where_aligned(
                [(place(where), multiple) for where, multiple in call.alignments],
                partial(rewire_all, call.aligned),
                lambda: rewire_all(call.otherwise),
            )
        return (rewire_one(call),)

    def rewire_all(calls: Calls) -> Calls:
        return tuple([each for call in calls for each in rewire(call)])

    def rewire_one(call: KernelCall | Memset | Copy) -> Call:
        if isinstance(call, KernelCall):
            unit, grid, block, params, slots, at_alpha, at_beta, shared_bytes, maps, starts_early, constants = call
            params, at_alpha = _with_factor(params, at_alpha, alpha)
            params, at_beta = _with_factor(params, at_beta, beta)
            return KernelCall(
                unit,
                grid,
                block,
                params,
                tuple([Slot(field, place(at) if at[1] else starts[at[0]]) for field, at in slots]),
                at_alpha,
                at_beta,
                shared_bytes,
                tuple([MapSlot(field, place(at) if at[1] else starts[at[0]], tensor) for field, at, tensor in maps])
                if maps
                else (),
                starts_early,
                tuple([ConstantSlot(field, place(where)) for field, where in constants]) if constants else (),
            )
        if isinstance(call, Memset):
            return replace(call, place=place(call.place))
        return replace(call, destination=place(call.destination), source=place(call.source))

    return rewire_all(calls)


def joined(parts: Sequence[Wired], scratch_bytes: int) -> Calls:
    """Work in a row as one, on the operands that each part names.

    Args:
        parts: Whose work is calls.
        scratch_bytes: Of the workspace, what parts name as operands; behind these lie the workspaces of all.
    """
    rest = Place(WORKSPACE, scratch_bytes)
    return tuple(
        call
        for part in parts
        for call in rewired(part.work, [Place(*at) for at in part.operands], rest, alpha=part.alpha, beta=part.beta)
    )


def _where_aligned(
    alignments: Sequence[tuple[Place, int]], aligned: Callable[[], Calls], otherwise: Callable[[], Calls]
) -> Calls:
    """The choice between two ways, or the one that is left where the workspace's own alignment decides."""
    open_ones = []
    for where, multiple in alignments:
        if where.operand != WORKSPACE or ALIGNMENT_BYTES % multiple:
            open_ones.append((where, multiple))
        elif where.offset_bytes % multiple:
            return otherwise()
    return (WhereAligned(tuple(open_ones), aligned(), otherwise),) if open_ones else aligned()


def _with_factor(params: bytes, field: int | None, factor: float | None) -> tuple[bytes, int | None]:
    """A parameter block whose factor is fixed, if one is given, and where it still takes one."""
    if factor is None or field is None:
        return params, field
    return params[:field] + pack("<d", factor) + params[field + 8 :], None


def described(calls: Calls) -> list[str]:
    """A line for each call: kernel, grid, block, shared memory; the ways that an alignment chooses between are indented."""
    lines = []
    for call in calls:
        if isinstance(call, KernelCall):
            shared = f", {call.shared_bytes} B shared" if call.shared_bytes else ""
            early = ", starts early" if call.starts_early else ""
            grid, block = (" x ".join(map(str, _trimmed(extents))) for extents in (call.grid, call.block))
            lines.append(
                f"{call.unit.entry}: {grid} blocks of {block} threads, {len(call.params)} B parameters{shared}{early}"
            )
        elif isinstance(call, Memset):
            lines.append(f"memset: {call.nbytes} B to {call.value:#04x}")
        elif isinstance(call, Copy):
            lines.append(f"copy: {call.nbytes} B")
        else:
            multiples = ", ".join(str(multiple) for _, multiple in call.alignments)
            lines.append(f"where addresses are multiples of {multiples} B:")
            lines += [f"  {line}" for line in described(call.aligned)]
            lines.append("elsewhere:")
            lines += [f"  {line}" for line in described(call.otherwise)]
    return lines


def _trimmed(extents: tuple[int, int, int]) -> tuple[int, ...]:
    """Without the extents of 1 at the end."""
    x, y, z = extents
    return (x, y, z) if z != 1 else (x, y) if y != 1 else (x,)
