"""Links between processes: messages and notes of every size come whole, and what a link keeps for them."""

from __future__ import annotations

import marshal
import pickle
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from dnnserve.processes.link import _INLINE, Link


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    here, there = map(Link, Link.pair())
    yield here, there
    here.close()
    there.close()


@pytest.mark.parametrize("beyond", [-1, 0, 1, 3 * _INLINE])
@pytest.mark.parametrize("pack", [marshal.dumps, pickle.dumps], ids=["note", "message"])
def test_what_is_sent_comes_whole(ends: tuple[Link, Link], pack: Callable[[object], bytes], beyond: int) -> None:
    """Up to what goes through the socket at once, and beyond that, as a file."""
    here, there = ends
    sent = (1, "x" * (_INLINE + beyond - len(pack((1, "x" * _INLINE))) + _INLINE))
    assert len(pack(sent)) == _INLINE + beyond
    send = here.note if pack is marshal.dumps else here.send
    sending = threading.Thread(target=send, args=(sent,), daemon=True)  # it may wait for the other end to read
    sending.start()
    received = there.receive()
    sending.join()
    assert received is not None
    assert received[0] == sent
    assert not received[1]


def test_a_link_keeps_no_more_than_the_largest_that_comes_through_it() -> None:
    """Each process has one at both ends, and a server that lost processes keeps room for several."""
    ours, theirs = Link.pair()
    tracemalloc.start()
    try:
        link = Link(ours)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    link.close()
    theirs.close()
    assert _INLINE < kept < 1.1 * _INLINE
