"""When Python looks for circles of objects."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Iterator

import pytest
from dnnserve.garbage import collect_after_a_loss

from tests.server.fakes import Lab, wait_until
from tests.server.serving import serving
from tests.server.test_front_processes import fronts_of


@pytest.fixture
def left_alone() -> Iterator[None]:
    """As in a server that serves: what there is is left alone, and new objects are too few for Python to look."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()  # and nothing is thawed: most of it was frozen before (tests/conftest.py)


class Circle:
    def __init__(self) -> None:
        self.itself = self


def test_circles_go_where_what_was_loaded_is_left_alone(left_alone: None) -> None:
    seen = weakref.ref(Circle())
    assert seen() is not None
    collect_after_a_loss()
    assert seen() is None


def test_what_a_front_end_leaves_behind_goes_when_the_next_one_is_lost(left_alone: None) -> None:
    with serving(Lab(), front_ends=1) as (server, _):
        fronts = fronts_of(server)
        first = weakref.ref(fronts._fronts[0])
        for restarts in (1, 2):
            os.kill(fronts._fronts[0].pid, signal.SIGKILL)
            wait_until(lambda restarts=restarts: fronts.restarts == restarts)  # type: ignore[misc]
            wait_until(lambda: not fronts._fronts[0].ended)
        wait_until(lambda: first() is None)
