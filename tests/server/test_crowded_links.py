"""Links with much more on them than they take: whoever receives goes on receiving, whatever becomes of what it says."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from dnnserve.channel import messages
from dnnserve.errors import StartError
from dnnserve.front.child import FrontAssignment, _Process
from dnnserve.front.process import FrontProcess, Shared
from dnnserve.processes.link import Link
from dnnserve.processes.receiver import Receiver
from dnnserve.shared_memory.requests import Registration
from dnnserve.statistics import Statistics

from tests.server.fakes import PATIENCE_S, make_spec
from tests.server.serving import make_config

SPEC = make_spec()
CROWD = 3000  # several times what a link takes


class FakeChild:
    """A process whose part the test plays."""

    pid = 0

    def __init__(self, link: Link) -> None:
        self.link = link

    def wait(self) -> str:
        return "the test"

    def close(self) -> None:
        self.link.close()


def receive(link: Link, kind: type) -> object:
    received = link.receive()
    assert received is not None
    assert isinstance(received[0], kind)
    return received[0]


def crowd(link: Link, ask: Callable[[], None], kind: type) -> None:
    """Ask many times before any answer is read."""

    def ask_all() -> None:
        for _ in range(CROWD):
            ask()

    asking = threading.Thread(target=ask_all, daemon=True)
    asking.start()
    asking.join(PATIENCE_S / 4)
    stuck = asking.is_alive()
    for _ in range(CROWD):
        receive(link, kind)
    asking.join(PATIENCE_S)
    assert not stuck, "each end waits for the other to read"


@pytest.fixture
def shared() -> Iterator[Shared]:
    """What a front end's process has in common with others, as far as it is used here."""
    receiver = Receiver("test-fronts")
    counters = Statistics([SPEC.key])
    yield Shared(None, counters, lambda *_: None, lambda *_: None, None, {}, receiver)  # type: ignore[arg-type]
    receiver.close()


@pytest.fixture
def links() -> tuple[Link, Link]:
    here, there = map(Link, Link.pair())
    return here, there


def test_the_server_reads_on_while_a_front_end_reads_none_of_its_answers(
    links: tuple[Link, Link], shared: Shared
) -> None:
    ours, front_ends = links
    front = FrontProcess(FakeChild(ours), shared, 0, lambda *_: None)  # type: ignore[arg-type]
    crowd(front_ends, lambda: front_ends.send(messages.Snapshot(SPEC.key)), messages.SnapshotOf)
    front_ends.shut_down()
    front._keeper.join(PATIENCE_S)
    assert front.ended


def test_who_asks_a_front_end_that_has_ended_hears_so_at_once_every_time(
    links: tuple[Link, Link], shared: Shared
) -> None:
    ours, front_ends = links
    front = FrontProcess(FakeChild(ours), shared, 0, lambda *_: None)  # type: ignore[arg-type]
    front_ends.shut_down()
    for _ in range(2):
        with pytest.raises(StartError, match="has ended"):
            front.wait_served()


def test_a_front_end_without_descriptors_says_that_it_cannot_know_a_region(
    links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, servers = links
    process = _Process(ours, FrontAssignment(make_config(), 1 << 20))
    receive(servers, messages.Arena)

    def run() -> None:
        with closing(ours):  # should it fail, nobody waits for what it says
            process.run()

    running = threading.Thread(target=run)
    running.start()
    region = Registration("mine", "/mine", 0, 64)

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    servers.send(messages.AddRegion(1, region))  # whose file has been lost on its way
    with Path(os.devnull).open("rb") as file:
        monkeypatch.setattr("dnnserve.shared_memory.regions.fcntl.fcntl", fail)
        servers.send(messages.AddRegion(2, region), [file.fileno()])
        for ticket in (1, 2):
            known = receive(servers, messages.Known)
            assert isinstance(known, messages.Known)
            assert known.ticket == ticket
            assert "Too many open files" in known.failure
        monkeypatch.undo()
        servers.send(messages.AddRegion(3, region), [file.fileno()])
        assert receive(servers, messages.Known) == messages.Known(3)
    servers.send(messages.Stop(0.0))
    receive(servers, messages.Stopped)
    servers.shut_down()
    running.join(PATIENCE_S)
    assert not running.is_alive()


def test_a_front_end_reads_on_while_the_server_reads_none_of_its_answers(links: tuple[Link, Link]) -> None:
    ours, servers = links
    process = _Process(ours, FrontAssignment(make_config(), 1 << 20))
    receive(servers, messages.Arena)
    running = threading.Thread(target=process.run)
    running.start()
    crowd(servers, lambda: servers.send(messages.Holds(SPEC.key)), messages.Held)
    servers.send(messages.Stop(0.0))
    receive(servers, messages.Stopped)
    servers.shut_down()
    running.join(PATIENCE_S)
    assert not running.is_alive()
