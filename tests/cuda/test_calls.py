"""Calls are values: they are made, moved, printed and filled in without a device."""

from __future__ import annotations

from struct import pack, unpack_from

import numpy as np
import pytest

from dnncore.cuda.algorithms import algorithms_for, all_units
from dnncore.cuda.calls import (
    TICKETS,
    WORKSPACE,
    Calls,
    Copy,
    KernelCall,
    Memset,
    Place,
    WhereAligned,
    described,
    in_order,
    kernel_call,
    rewired,
)
from dnncore.cuda.params import ADDRESS, BLEND, record, struct
from dnncore.cuda.runtime.graph import CopyNode, KernelNode, MemsetNode, nodes_of
from dnncore.cuda.unit import Unit
from dnncore.figures import A100, H200, DeviceFigures
from tests.cases import CASES

UNIT = Unit("source", "scale")
INNER = struct(("pointers", ADDRESS, 2), ("count", "<i8"))
PARAMS = struct(*BLEND, ("x", ADDRESS), ("inner", INNER), ("y", ADDRESS))


def _call() -> KernelCall:
    params = record(PARAMS, inner=record(INNER, count=7))
    places = {**in_order("x", ("inner", "pointers", 1)), "y": Place(WORKSPACE, 512)}
    (call,) = kernel_call(UNIT, (2, 3, 1), 64, params, places, shared_bytes=128)
    assert isinstance(call, KernelCall)
    return call


def test_fields_are_found_by_name_and_index() -> None:
    call = _call()
    assert [(slot.field, slot.place) for slot in call.slots] == [
        (16, Place(0)),
        (32, Place(1)),
        (48, Place(WORKSPACE, 512)),
    ]
    assert (call.alpha, call.beta) == (0, 8)
    assert unpack_from("<q", call.params, 40) == (7,)


def test_an_empty_grid_is_no_call() -> None:
    assert kernel_call(UNIT, 0, 64, np.zeros((), PARAMS), in_order("x")) == ()


@pytest.mark.parametrize("path", ["alpha_", ("inner", "pointers", 2), ("inner", "pointers"), ("x", 0)])
def test_what_holds_no_address_takes_none(path: str | tuple[str | int, ...]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        kernel_call(UNIT, 1, 64, np.zeros((), PARAMS), {path: Place(0)})


def test_calls_are_moved_to_other_operands_with_factors_of_their_own() -> None:
    first, second = rewired(
        (_call(), Memset(Place(WORKSPACE), 0, 16)),
        [Place(3, 8), Place(WORKSPACE, 64)],
        Place(WORKSPACE, 1024),
        beta=2.0,
    )
    assert isinstance(first, KernelCall)
    assert [slot.place for slot in first.slots] == [Place(3, 8), Place(WORKSPACE, 64), Place(WORKSPACE, 1536)]
    assert (first.alpha, first.beta) == (0, None)
    assert unpack_from("<d", first.params, 8) == (2.0,)
    assert second == Memset(Place(WORKSPACE, 1024), 0, 16)


def test_tickets_stay_where_they_are_when_a_workspace_is_moved() -> None:
    memset = Memset(TICKETS.plus(64), 0, 16)
    assert rewired((memset,), (), Place(WORKSPACE, 1024)) == (memset,)


def test_where_the_workspace_decides_an_alignment_there_is_nothing_left_to_choose() -> None:
    choice = WhereAligned(((Place(0), 16), (Place(1), 16)), (_call(),), (Memset(Place(0), 1, 1),))
    assert rewired((choice,), [Place(WORKSPACE), Place(WORKSPACE, 32)]) == rewired(
        (_call(),), [Place(WORKSPACE), Place(WORKSPACE, 32)]
    )
    assert rewired((choice,), [Place(0), Place(WORKSPACE, 8)]) == (Memset(Place(0), 1, 1),)
    (left,) = rewired((choice,), [Place(5), Place(WORKSPACE, 32)])
    assert isinstance(left, WhereAligned)
    assert left.alignments == ((Place(5), 16),)


def test_the_calls_for_other_addresses_are_made_once_and_when_somebody_asks() -> None:
    made: list[int] = []

    def elsewhere() -> Calls:
        made.append(1)
        return (Memset(Place(0), 1, 1),)

    choice = WhereAligned(((Place(0), 16),), (_call(),), elsewhere)
    (moved,) = rewired((choice,), [Place(5), Place(6)])
    next(nodes_of((choice,), 1.0, 0.0, (0x100, 0x200, 0x1000)))
    assert not made
    assert isinstance(moved, WhereAligned)
    assert moved.otherwise == moved.otherwise == (Memset(Place(5), 1, 1),)
    assert choice.otherwise == (Memset(Place(0), 1, 1),)
    assert choice == WhereAligned(choice.alignments, choice.aligned, choice.otherwise)
    assert len(made) == 1


def test_addresses_and_factors_are_filled_in_and_alignment_chooses() -> None:
    copy = Copy(Place(1), Place(0, 4), 12)
    calls = (WhereAligned(((Place(0), 16),), (_call(),), (copy,)), Memset(Place(1), 3, 5))
    kernel, memset = nodes_of(calls, 0.5, 2.0, (0x100, 0x200, 0x1000))
    assert isinstance(kernel, KernelNode)
    expected = bytearray(_call().params)
    expected[:24] = pack("<ddQ", 0.5, 2.0, 0x100)
    expected[32:40], expected[48:56] = pack("<Q", 0x200), pack("<Q", 0x1200)
    assert kernel == KernelNode(UNIT, (2, 3, 1), (64, 1, 1), bytes(expected), 128)
    assert memset == MemsetNode(0x200, 3, 5)
    assert next(nodes_of(calls, 0.5, 2.0, (0x104, 0x200, 0x1000))) == CopyNode(0x200, 0x108, 12)


def test_a_description_has_a_line_for_each_launch() -> None:
    calls = (
        _call(),
        WhereAligned(((Place(0), 16),), (_call()._replace(shared_bytes=0),), ()),
        Memset(Place(0), 255, 8),
        Copy(Place(0), Place(1), 4),
    )
    assert described(calls) == [
        "scale: 2 x 3 blocks of 64 threads, 56 B parameters, 128 B shared",
        "where addresses are multiples of 16 B:",
        "  scale: 2 x 3 blocks of 64 threads, 56 B parameters",
        "elsewhere:",
        "memset: 8 B to 0xff",
        "copy: 4 B",
    ]


@pytest.mark.parametrize("figures", [H200, A100], ids=["H200", "A100"])
def test_every_offer_prepares_calls_that_ask_for_listed_units_and_no_more_workspace_than_it_said(
    figures: DeviceFigures,
) -> None:
    listed = set(all_units(figures.architecture))

    def check(calls: Calls, workspace_bytes: int) -> None:
        for call in calls:
            if isinstance(call, WhereAligned):
                check(call.aligned, workspace_bytes)
                check(call.otherwise, workspace_bytes)
            elif isinstance(call, KernelCall):
                assert all(type(extent) is int for extent in (*call.grid, *call.block, call.shared_bytes))
                assert min(*call.grid, *call.block) > 0
                in_workspace = [slot.place.offset_bytes for slot in call.slots if slot.place.operand == WORKSPACE]
                assert all(offset <= workspace_bytes for offset in in_workspace)  # what is empty may lie at its end
                assert call.unit in listed

    for problem in dict.fromkeys(case.problem for case in CASES):
        for algorithm in algorithms_for(problem):
            offer = algorithm.offer(problem, figures)
            if not isinstance(offer, str):
                assert 0 <= offer.seconds < 1e9, algorithm.name
                calls = offer.prepare()
                assert calls == offer.prepare()
                hash(calls)
                check(calls, offer.workspace_bytes)
