"""Damaged files of all kinds are imported or refused; `python -m tests.importers.fuzz` tries more of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.importers.fuzz.__main__ import fuzz
from tests.importers.fuzz.mutations import MUTATIONS
from tests.importers.fuzz.targets import TARGETS, onnx_files
from tests.importers.fuzz.wire import parsed, serialized, varints


@pytest.mark.parametrize("target", ["onnx", "caffe"])
def test_damaged_files_are_imported_or_refused_and_nothing_else_happens(target: str) -> None:
    report = fuzz(target, 1500)
    assert not report.failures, report
    assert report.cases == 1500
    assert 100 < report.outcomes["imported"] < 1000
    assert report.peak_bytes < 1 << 30


def test_crashes_hangs_memory_and_other_errors_are_found() -> None:
    report = fuzz("faults", 4, seconds=1)
    assert report.failures == {
        0: "ended the process by SIGABRT",
        1: "out of memory",
        2: "KeyError: \"'shape'\"",
        3: "took too long",
    }


@pytest.mark.parametrize("target", ["external", "hdf5", "solver"])
def test_so_are_those_that_lie_in_files_of_their_own(target: str) -> None:
    report = fuzz(target, 300)
    assert not report.failures, report
    assert min(report.outcomes["imported"], report.outcomes["refused"]) > 30
    assert report.peak_bytes < 1 << 30


@pytest.mark.parametrize("target", ["onnx", "caffe"])
def test_the_files_that_are_damaged_are_whole(target: str) -> None:
    small = TARGETS[target]().small
    assert len(small) > 15
    for seed in small:
        seed.load(seed.data)


def test_every_mutation_makes_another_file() -> None:
    whole, rng = onnx_files()[0], np.random.default_rng(0)
    for mutation in MUTATIONS:
        assert any(mutation(whole, rng) != whole for _ in range(20)), mutation


def test_a_message_is_the_same_after_it_was_taken_apart() -> None:
    whole = onnx_files()[0]
    fields = parsed(whole)
    assert fields is not None
    assert serialized(fields) == whole
    assert len(list(varints(whole))) > 50
    assert parsed(whole[:-1]) is None
