"""What a handle holds on its device until it is closed: memory of tensors, memory of other libraries, captured programs."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from dnncore.backend import Event, Memory
from dnncore.spare import Spare

__all__ = ["Belongings", "Closable"]


class Closable(Protocol):
    """Something that holds device resources beside memory."""

    def close(self) -> None:
        """Give them back; a second call does nothing."""

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""


class _Last(weakref.ref[object]):
    """Says when nobody refers to an owner of memory any more. Immutable."""

    __slots__ = ("memory",)

    memory: Memory


class Belongings:
    """Everything that goes back with a handle. Owned by one thread; `collect` and `abandon` are any thread's.

    Attributes:
        memory: Blocks, by their identity.
    """

    def __init__(self) -> None:
        self.memory: dict[int, Memory] = {}
        self._resources: dict[int, Closable] = {}
        self._retired: deque[tuple[Event, Sequence[Memory]]] = deque()
        self._lasts: dict[int, _Last] = {}
        self._spare = Spare()

    def spare(self, nbytes: int) -> Memory | None:
        """A block that was collected, of just this size, for what is enqueued from now on; None where there is none."""
        return self._spare.take(nbytes)

    def give_spare_back(self) -> None:
        """Let the device have what was collected."""
        self._spare.abandon()

    def add_until_last(self, memory: Memory, owner: object) -> None:
        """Hold a block until nobody refers to its owner any more, in whichever thread that is.

        A reference with a callback: `weakref.finalize` does as much, and takes several times as long.
        """
        self.memory[id(memory)] = memory
        last = self._lasts[id(memory)] = _Last(owner, self._collect_last)
        last.memory = memory

    def _collect_last(self, last: weakref.ref[object]) -> None:
        assert isinstance(last, _Last)
        self.collect(last.memory)

    def add(self, memory: Memory) -> None:
        """Hold a block until it is collected or removed."""
        self.memory[id(memory)] = memory

    def remove(self, memory: Memory) -> None:
        """Close a block that nothing enqueued uses any more."""
        self._lasts.pop(id(memory), None)
        if self.memory.pop(id(memory), None) is not None:
            memory.close()

    def collect(self, memory: Memory) -> None:
        """Let go of a block that nobody refers to any more, unless it is gone already: for results to come, or for good."""
        self._lasts.pop(id(memory), None)
        if self.memory.pop(id(memory), None) is not None and not self._spare.keep(memory):
            memory.abandon()

    def retire(self, blocks: Sequence[Memory], passed: Event | None) -> None:
        """Collect blocks once an event has passed, at once where there is none, and those that have waited for theirs."""
        if passed is None:
            for memory in blocks:
                self.collect(memory)
            return
        self._retired.append((passed, blocks))
        self.drain()

    def drain(self) -> None:
        """Collect what was retired and whose event has passed."""
        while self._retired and self._retired[0][0].query():
            for memory in self._retired.popleft()[1]:
                self.collect(memory)

    def keep(self, resource: Closable) -> None:
        """Close a resource with everything else, unless it is let go of before."""
        self._resources[id(resource)] = resource

    def let_go(self, resource: Closable) -> None:
        """Forget a resource; a second call does nothing."""
        self._resources.pop(id(resource), None)

    def close_resources(self) -> None:
        """Close what uses memory, before that goes."""
        with ExitStack() as closing:  # one that fails keeps no other from being closed
            for resource in list(self._resources.values()):
                closing.callback(resource.close)

    def close(self) -> None:
        """Give every block back, after the work that uses them."""
        self._retired.clear()
        with ExitStack() as closing:
            for memory in list(self.memory.values()):
                closing.callback(memory.close)
            closing.callback(self._spare.abandon)
        self.memory.clear()
        self._lasts.clear()

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""
        self._retired.clear()
        for resource in list(self._resources.values()):
            resource.abandon()
        self._resources.clear()
        for memory in list(self.memory.values()):
            memory.abandon()
        self._spare.abandon()
        self.memory.clear()
        self._lasts.clear()
