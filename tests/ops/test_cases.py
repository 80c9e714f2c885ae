"""Every case by every algorithm on every device that is here."""

from __future__ import annotations

import pytest

from dnncore import Handle, Preference
from dnncore.plan import rank
from tests.cases import CASES, Case
from tests.conftest import EMULATOR, OTHER_ORDER
from tests.ops.harness import GUARD, check

VECTORS = (
    "activation-forward-relu-vector",
    "activation-backward-relu-vector-blend",
    "add-same",
    "convolution-forward-1x1",
    "convolution-forward-nhwc",
    "winograd-forward-pairs",
)
"""Cases whose kernels read or write 16 bytes at a time where they can."""

SLOW = {"fft_tiling"}
"""Run in another order of threads on the cases written for them alone: of these there are a hundred, which launch every kernel."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_algorithm_agrees_with_the_float64_answer(handle: Handle, case: Case) -> None:
    able = [a.name for a in rank(case.problem, handle.device, Preference.PREFER_FASTEST) if a.status is None]
    assert able, "no algorithm supports a legal problem"
    if EMULATOR and handle.info.name != "cpu" and case.written_for:
        able = [name for name in able if name in case.written_for]
    elif OTHER_ORDER:
        able = [name for name in able if name not in SLOW]
    for name in able:
        check(handle, case, name)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in VECTORS], ids=lambda case: case.name)
def test_tensors_that_start_at_an_odd_element_are_as_good(handle: Handle, case: Case) -> None:
    for algorithm in rank(case.problem, handle.device, Preference.PREFER_FASTEST):
        if algorithm.status is None:
            check(handle, case, algorithm.name, guard=GUARD + 1)


def test_every_algorithm_has_a_case(handle: Handle) -> None:
    listed, exercised = set(), set()
    for case in CASES:
        kind = (type(case.problem).__name__, getattr(case.problem, "direction", None))
        for algorithm in rank(case.problem, handle.device, Preference.PREFER_FASTEST):
            listed.add((*kind, algorithm.name))
            if algorithm.status is None:
                exercised.add((*kind, algorithm.name))
    assert listed == exercised


def test_the_last_algorithm_of_every_list_supports_every_case(handle: Handle) -> None:
    for case in CASES:
        last = handle.device.algorithms(case.problem)[-1]
        assert not isinstance(last.offer(case.problem, handle.device.figures), str), case.name


def test_every_case_has_an_algorithm_without_a_workspace(handle: Handle) -> None:
    for case in CASES:
        options = rank(case.problem, handle.device, Preference.NO_WORKSPACE)
        assert any(option.status is None for option in options), case.name
