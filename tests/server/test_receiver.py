"""One thread that receives from many links: all are heard, and what becomes of one is no matter for the others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from dnnserve.processes.link import Link
from dnnserve.processes.receiver import Receiver

from tests.server.fakes import PATIENCE_S

LINKS = 5


class Ears:
    """Hears one link. Thread-safe."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.ends: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self.threads: set[str] = set()

    def hear(self, message: Any, _fds: Sequence[int]) -> None:
        self.threads.add(threading.current_thread().name)
        if message == "nonsense":
            raise ValueError(message)
        self.heard.put(message)

    def next(self) -> Any:
        return self.heard.get(timeout=PATIENCE_S)

    def end(self) -> Exception | None:
        return self.ends.get(timeout=PATIENCE_S)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver("test-links")
    yield made
    made.close()


@pytest.fixture
def make_link() -> Iterator[Callable[[], tuple[Link, Link]]]:
    made: list[Link] = []

    def make() -> tuple[Link, Link]:
        ours, theirs = map(Link, Link.pair())
        made.extend((ours, theirs))
        return ours, theirs

    yield make
    for link in made:
        link.close()


def listen(receiver: Receiver, link: Link) -> Ears:
    ears = Ears()
    receiver.add(link, ears.hear, ears.ends.put)
    return ears


def test_messages_of_all_links_are_heard_in_order_by_one_thread(
    receiver: Receiver, make_link: Callable[[], tuple[Link, Link]]
) -> None:
    links = [make_link() for _ in range(LINKS)]
    ears = [listen(receiver, ours) for ours, _ in links]
    for number in range(3):
        for each, (_, theirs) in enumerate(links):
            theirs.note((each, number))
    for each, ear in enumerate(ears):
        assert [ear.next() for _ in range(3)] == [(each, 0), (each, 1), (each, 2)]
        assert ear.threads == {"test-links"}


@pytest.mark.parametrize("by", ["the other end", "this one"])
def test_the_end_of_a_link_comes_once_and_behind_what_was_sent_before(
    receiver: Receiver, make_link: Callable[[], tuple[Link, Link]], by: str
) -> None:
    (ours, theirs), (other, others) = make_link(), make_link()
    ears, those = listen(receiver, ours), listen(receiver, other)
    theirs.note(("last",))
    assert ears.next() == ("last",)
    (theirs.close if by == "the other end" else ours.shut_down)()
    assert ears.end() is None
    ours.close()  # its descriptor may be another link's from now on
    again, yours = make_link()
    these = listen(receiver, again)
    yours.note(("new",))
    others.note(("still",))
    assert (these.next(), those.next()) == (("new",), ("still",))
    assert ears.ends.empty()


def test_what_cannot_be_heard_ends_its_link_and_no_other(
    receiver: Receiver, make_link: Callable[[], tuple[Link, Link]]
) -> None:
    (ours, theirs), (other, others) = make_link(), make_link()
    ears, those = listen(receiver, ours), listen(receiver, other)
    theirs.send("nonsense")
    theirs.send("unheard")
    assert isinstance(ears.end(), ValueError)
    others.note(("still",))
    assert those.next() == ("still",)
    assert ears.heard.empty()


def test_links_that_are_there_when_it_closes_have_ended_and_so_have_those_that_come_later(
    receiver: Receiver, make_link: Callable[[], tuple[Link, Link]]
) -> None:
    (ours, theirs), (late, _) = make_link(), make_link()
    ears = listen(receiver, ours)
    receiver.close()
    assert ears.end() is None
    theirs.note(("unheard",))
    assert listen(receiver, late).end() is None
    receiver.close()
    assert ears.ends.empty()
    assert ears.heard.empty()


def test_a_thread_that_cannot_be_started_is_started_for_the_next_link(
    receiver: Receiver, make_link: Callable[[], tuple[Link, Link]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    (ours, _), (other, others) = make_link(), make_link()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            listen(receiver, ours)
    ears = listen(receiver, other)
    others.note(("heard",))
    assert ears.next() == ("heard",)


def test_an_end_that_fails_is_no_matter_for_the_other_links(
    receiver: Receiver, make_link: Callable[[], tuple[Link, Link]], caplog: pytest.LogCaptureFixture
) -> None:
    (ours, theirs), (other, others) = make_link(), make_link()

    def fail(_: Exception | None) -> None:
        raise ValueError("it cannot end")

    receiver.add(ours, lambda *_: None, fail)
    ears = listen(receiver, other)
    theirs.close()
    others.note(("heard",))
    assert ears.next() == ("heard",)
    others.close()
    assert ears.end() is None
    assert "it cannot end" in caplog.text
