"""Engines give signs of life, and one that stands still is replaced, also while nothing is asked of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dnnserve.engine import watchdog
from dnnserve.engine.process import ProcessHost
from dnnserve.engine.runner import Runner
from dnnserve.engine.watchdog import Watchdog
from dnnserve.envelope import Answer
from dnnserve.processes.signs_of_life import SignsOfLife

from tests.processes import is_running
from tests.server.fakes import make_rows, outputs_of, wait_until
from tests.server.test_blocks_in_engines import Chain

LOOKS = 10


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    chain = Chain(tmp_path)
    yield chain
    chain.close()


def host_of(runner: Runner) -> ProcessHost:
    host = runner._host
    assert isinstance(host, ProcessHost)
    return host


def test_looks_are_counted_until_there_is_a_sign() -> None:
    signs = SignsOfLife()
    for _ in range(2):
        assert all(signs.look() for _ in range(LOOKS))
        assert not signs.look()
        signs.seen()


def test_an_engine_that_stands_still_while_idle_is_killed_and_replaced(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runner,) = chain.runners
    monkeypatch.setattr(watchdog, "LOOK_S", 0.01)
    still = host_of(runner)
    os.kill(still.pid, signal.SIGSTOP)
    watching = Watchdog([runner], limit_s=0.0)
    watching.start()
    wait_until(lambda: runner.restarts >= 1)
    watching.stop()  # a hundred looks a second are more than a successor on a busy machine may have answers for
    wait_until(lambda: runner._host not in (None, still) and runner.in_service)
    assert not is_running(still.pid)
    request = chain.submit(chain.scheduler, make_rows(3.0))
    chain.inbox.wait(1)
    assert isinstance(chain.inbox.of(request).outcome, Answer)
    assert outputs_of(request)[0, 0] == 3.0


def test_an_engine_whose_batch_takes_long_gives_signs_of_life_and_stays(chain: Chain) -> None:
    (runner,) = chain.runners
    host = host_of(runner)
    chain.orders.give("pause")
    chain.submit(chain.scheduler, make_rows(3.0))
    wait_until(lambda: chain.orders.given("staged"))
    for _ in range(2 * LOOKS):
        runner.look()
        wait_until(lambda: host._signs.unanswered == 0)
    chain.orders.take_back("pause")
    chain.inbox.wait(1)
    assert (runner.restarts, is_running(host.pid)) == (0, True)


def test_looks_at_an_engine_that_reads_nothing_hold_nobody_up(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    (runner,) = chain.runners
    host = host_of(runner)
    signs = host._signs
    monkeypatch.setattr(
        signs, "look", lambda: True
    )  # else the eleventh would kill it, and nothing could hold up the others
    os.kill(host.pid, signal.SIGSTOP)

    def look() -> None:
        for _ in range(3000):  # several times what a link takes
            host.look()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    wait_until(lambda: not looking.is_alive())
    monkeypatch.undo()
    for _ in range(11):
        host.look()
    wait_until(lambda: runner.restarts == 1)
