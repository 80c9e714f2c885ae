"""What a handle holds on its device until it is closed: memory of tensors, memory of other libraries, captured programs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from dnncore.backend import Event, Memory

__all__ = ["Belongings", "Closable"]


class Closable(Protocol):
    """Something that holds device resources beside memory."""

    def close(self) -> None:
        """Give them back; a second call does nothing."""

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""


class Belongings:
    """Everything that goes back with a handle. Owned by one thread; `collect` and `abandon` are any thread's.

    Attributes:
        memory: Blocks, by their identity.
    """

    def __init__(self) -> None:
        self.memory: dict[int, Memory] = {}
        self._resources: dict[int, Closable] = {}
        self._retired: deque[tuple[Event, Sequence[Memory]]] = deque()

    def add(self, memory: Memory) -> None:
        """Hold a block until it is collected or removed."""
        self.memory[id(memory)] = memory

    def remove(self, memory: Memory) -> None:
        """Close a block that nothing enqueued uses any more."""
        if self.memory.pop(id(memory), None) is not None:
            memory.close()

    def collect(self, memory: Memory) -> None:
        """Give back a block that nobody refers to any more, unless it is gone already."""
        if self.memory.pop(id(memory), None) is not None:
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
        self.memory.clear()

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""
        self._retired.clear()
        for resource in list(self._resources.values()):
            resource.abandon()
        self._resources.clear()
        for memory in list(self.memory.values()):
            memory.abandon()
        self.memory.clear()
