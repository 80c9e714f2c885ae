"""Every case by every algorithm on every device that is here."""

from __future__ import annotations

import pytest

from dnncore import Handle, Preference
from dnncore.plan import rank
from dnncore.problems import BottleneckProblem, PooledConvolutionProblem
from tests.cases import CASES, Case
from tests.conftest import EMULATOR, OTHER_ORDER
from tests.ops.harness import GUARD, check
from tests.ops.launches import cover, emulated, kernels_of, launches

VECTORS = (
    "activation-forward-relu-vector",
    "activation-backward-relu-vector-blend",
    "adam-float16",
    "add-same",
    "broadcast-float16-full-rows",
    "broadcast-float16-odd-rows-blend",
    "convolution-forward-1x1",
    "convolution-forward-nhwc",
    "momentum-float32",
    "transform-filters-from-fp16",
    "transform-filters-to-fp16",
    "winograd-forward-pairs",
)
"""Cases whose kernels read or write several elements at a time where they can."""

_COVERED = {name for name, _ in cover()} if OTHER_ORDER else set()
HERE = [case for case in CASES if not OTHER_ORDER or case.name in _COVERED]


@pytest.mark.parametrize("case", HERE, ids=lambda case: case.name)
def test_every_algorithm_agrees_with_the_float64_answer(handle: Handle, case: Case) -> None:
    able = _able(handle, case)
    assert able, "no algorithm supports a legal problem"
    if EMULATOR and handle.info.name != "cpu":
        able = [name for name in able if (case.name, name) in (cover() if OTHER_ORDER else emulated())]
        if not able:
            pytest.skip("large: the emulator runs it in another direction")
    for name in able:
        check(handle, case, name)


def _able(handle: Handle, case: Case) -> list[str]:
    return [a.name for a in rank(case.problem, handle.device, Preference.PREFER_FASTEST) if a.status is None]


@pytest.mark.skipif(not EMULATOR, reason="a GPU runs every case by every algorithm")
def test_the_emulator_launches_every_kernel_that_a_case_does() -> None:
    names = {name for name, _ in kernels_of(launches())}
    assert {name for name, _ in kernels_of(emulated())} == names
    assert {name for name, _ in kernels_of(cover())} == names


@pytest.mark.parametrize("case", [case for case in CASES if case.name in VECTORS], ids=lambda case: case.name)
def test_tensors_that_start_at_an_odd_element_are_as_good(handle: Handle, case: Case) -> None:
    for name in _able(handle, case):
        if not EMULATOR or handle.info.name == "cpu" or (case.name, name) in emulated():
            check(handle, case, name, guard=GUARD + 1)


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
        if handle.info.name != "cpu" and isinstance(case.problem, BottleneckProblem | PooledConvolutionProblem):
            continue  # what lies between their steps is there, unless one kernel does all
        options = rank(case.problem, handle.device, Preference.NO_WORKSPACE)
        assert any(option.status is None for option in options), case.name
