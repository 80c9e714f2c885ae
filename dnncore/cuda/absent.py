"""A CUDA device that is not there, of which only the figures are known: operations on it are planned, and never run.

Nothing is compiled, and memory is numbers without bytes behind them; so what a net would take on an H200 is known on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from dnncore.addresses import Addresses
from dnncore.backend import Address, Bound, BoundGraph, DeviceInfo, Enqueue, Event, Launch, Memory, Stream, Wired
from dnncore.cuda import shipped
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.calls import Calls, described
from dnncore.dlpack import Borrowed, DeviceType
from dnncore.errors import BackendUnavailableError
from dnncore.figures import DeviceFigures
from dnncore.problems import Problem

__all__ = ["AbsentDevice"]

_ALIGNMENT = 256
_FIRST_POINTER = 1 << 40
"""Where memory begins; not 0, which stands for no memory."""


class _AbsentStream:
    """A queue that takes nothing. Owned by one thread."""

    handle = None

    def record_event(self) -> Event:
        """Refuse."""
        _refuse("an event")

    def wait(self, event: Event) -> None:
        """Refuse."""
        _refuse(f"a wait for {event}")

    def precede(self, other: int) -> None:
        """Refuse."""
        _refuse(f"an order with stream {other}")

    follow = precede

    def synchronize(self) -> None:
        """Return at once: nothing was enqueued."""

    def close(self) -> None:
        """Return at once."""

    abandon = close

    def take_over(self, other: Stream) -> None:
        """Return at once."""


class AbsentDevice:
    """A device for plans alone: `Handle(AbsentDevice(H200))`. Owned by one thread.

    Whatever would run raises BackendUnavailableError.

    Args:
        figures: What it can do.
        name: What messages call it.
    """

    dlpack_device = (int(DeviceType.CUDA), 0)
    addresses_are_pointers = True

    def __init__(self, figures: DeviceFigures, name: str = "absent") -> None:
        self.figures = figures
        self.choices = shipped.choices(figures)
        self.info = DeviceInfo(name, f"{figures.architecture}, known by its figures", 0)
        self._next = _FIRST_POINTER

    def free_bytes(self) -> int:
        """None: there is no memory."""
        return 0

    def adopt(self) -> None:
        """Nothing here minds which thread calls."""

    def algorithms(self, problem: Problem) -> tuple[CudaAlgorithm, ...]:
        """Those of a device that is there."""
        return algorithms_for(problem)

    def bind(self, work: Calls) -> Launch:
        """A launch that refuses: plans may be made, not run."""

        def launch(_stream: Stream, _alpha: float, _beta: float, _addresses: Sequence[Address]) -> None:
            _refuse(f"a launch of {len(work)} calls")

        return launch

    def wire(
        self,
        parts: Sequence[Wired],
        stream: Stream,
        scratch_bytes: int = 0,  # noqa: ARG002
        replayed_unless: Callable[[], bool] | None = None,  # noqa: ARG002
    ) -> Enqueue:
        """Refuse."""
        _refuse(f"{len(parts)} launches on {stream}")

    def capture(self, steps: Sequence[Bound]) -> BoundGraph:
        """Refuse."""
        _refuse(f"a capture of {len(steps)} steps")

    def describe(self, work: Calls) -> list[str]:
        """A line for each call."""
        return described(work)

    def allocate(self, nbytes: int) -> Memory:
        """Addresses that nothing else has."""
        start, self._next = self._next, self._next + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return Addresses(start, nbytes)

    def allocate_ordered(self, nbytes: int, stream: Stream) -> Memory:  # noqa: ARG002
        """As `allocate`."""
        return self.allocate(nbytes)

    def wrap_memory(self, borrowed: Borrowed) -> Memory:
        """Refuse."""
        _refuse(f"memory of {borrowed.descriptor}")

    def host_buffer(self, nbytes: int) -> np.ndarray:
        """Memory of the host."""
        return np.empty(nbytes, np.uint8)

    def lock_pages(self, array: np.ndarray) -> Callable[[], None]:
        """Refuse."""
        _refuse(f"page-locked memory of {array.nbytes} B")

    def create_stream(self) -> Stream:
        """A queue that takes nothing."""
        return _AbsentStream()

    def wrap_stream(self, handle: int) -> Stream:
        """Refuse."""
        _refuse(f"stream {handle}")

    def copy(self, stream: Stream, destination: Address, source: Address, nbytes: int) -> None:  # noqa: ARG002
        """Refuse."""
        _refuse(f"a copy of {nbytes} B")

    def copy_to_device(self, stream: Stream, destination: Address, source: np.ndarray) -> None:  # noqa: ARG002
        """Refuse."""
        _refuse(f"a copy of {source.nbytes} B")

    def gather_to_device(self, stream: Stream, destination: Address, sources: Sequence[np.ndarray]) -> None:  # noqa: ARG002
        """Refuse."""
        _refuse(f"a copy of {sum(source.nbytes for source in sources)} B")

    def copy_to_host(self, stream: Stream, destination: np.ndarray, source: Address) -> None:  # noqa: ARG002
        """Refuse."""
        _refuse(f"a copy of {destination.nbytes} B")

    def close(self) -> None:
        """Return at once."""

    abandon = close


def _refuse(what: str) -> NoReturn:
    raise BackendUnavailableError(f"{what} cannot be had on a device of which only the figures are known")
