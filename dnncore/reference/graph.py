"""Bound work as one launch: a list that is gone through."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnncore.backend import Address, Bound, Launch, Move, Stream
from dnncore.errors import ClosedError

__all__ = ["ReferenceGraph"]


class ReferenceGraph:
    """Steps of a program, one after the other. Owned by one thread.

    Args:
        steps: What runs, in this order.
    """

    def __init__(self, steps: Sequence[Bound]) -> None:
        self._steps: list[tuple[Launch, Bound]] | None = [(step.work.bind(), step) for step in steps]
        self._moved: dict[tuple[int, int], np.ndarray] = {}
        self._addresses = [list(step.addresses) for step in steps]

    def _open(self) -> list[tuple[Launch, Bound]]:
        if self._steps is None:
            raise ClosedError("a graph of cpu was used after close()")
        return self._steps

    def launch(self, stream: Stream) -> None:
        """Run all of it.

        Raises:
            ClosedError: the graph was given back.
        """
        for (run, step), addresses in zip(self._open(), self._addresses, strict=True):
            run(stream, step.alpha, step.beta, addresses)

    def move(self, moves: Sequence[Move]) -> None:
        """Let the launches from now on use other memory; ranges are given as they were at first, whatever was moved since.

        Raises:
            ClosedError: the graph was given back.
        """
        steps = self._open()
        self._moved |= {(start, end): new for start, end, new in moves}
        self._addresses = [[self._now(address) for address in step.addresses] for _, step in steps]

    def _now(self, address: Address) -> Address:
        if address is None:
            return None
        pointer = int(address.ctypes.data)
        for (start, end), new in self._moved.items():
            if start <= pointer < end:
                return new[pointer - start :]
        return address

    def close(self) -> None:
        """Let go of all memory; a second call does nothing."""
        self._steps = None
        self._addresses.clear()
        self._moved.clear()

    abandon = close
