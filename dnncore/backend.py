"""The seam between the library and its backends: Protocols only.

A backend gives devices; a device gives memory, streams and, for each kind of problem, the tuple of algorithms it has. Addresses
are opaque to everything above: what `Memory.at` returns goes back to the backend's own launches and copies and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dnncore.dlpack import Borrowed
from dnncore.figures import DeviceFigures
from dnncore.measured import MeasuredChoices
from dnncore.problems import Problem

__all__ = [
    "TICKET_BYTES",
    "Address",
    "Algorithm",
    "Bound",
    "BoundGraph",
    "Device",
    "DeviceInfo",
    "Enqueue",
    "Event",
    "Launch",
    "Memory",
    "Move",
    "Offer",
    "Stream",
    "Wired",
    "Work",
]

Address = Any
"""Where an operand starts: an integer address on CUDA, a NumPy byte array on the reference backend."""

Work = Any
"""What an algorithm prepared for a problem: calls as data on CUDA, a function on the reference backend. Immutable."""

Launch = Callable[["Stream", float, float, Sequence[Address]], None]
"""launch(stream, alpha, beta, addresses): enqueue outputs = alpha * operation(inputs) + beta * outputs.

Addresses are those of the inputs and of the outputs, in the problem's order, and then the workspace's: at least as large as the
offer said, 256-byte aligned and right behind TICKET_BYTES of zeros; None where it asked for nothing.
"""

TICKET_BYTES = 4096
"""Before every workspace: counters by which the blocks of a launch know which of them is the last; 0 between launches.

`workspace.allocate` sets them to 0, and a launch that uses them leaves them so. A launch that was refused has not begun, and one
that failed has lost its device with all memory.
"""


@dataclass(frozen=True, slots=True)
class Offer:
    """What an algorithm would take to solve a problem on a device with given figures. Immutable.

    Args:
        seconds: Estimated time of a launch; measured where `is_measured`.
        prepare: Does everything that does not depend on addresses; pure, and not called for offers that are not taken.
        workspace_bytes: Scratch memory that a launch needs.
        deterministic: Whether the same inputs on the same model of device always give the same bits.
        math: What it accumulates with: "fp32", "fp64", ... or "dtype" for that of the tensors; "tf32" where float32 is rounded to
            it before it is multiplied, which `ConvolutionDescriptor.math` must permit.
        error_factor: How many times larger its rounding errors may be than those of the direct method, relative to the largest
            magnitude of each output plane; None where they are relative to each output's own terms.
        is_measured: Whether `seconds` is what a launch took where it was measured (`dnncore.measured`); algorithms estimate.
    """

    seconds: float
    prepare: Callable[[], Work] = field(repr=False, compare=False)
    workspace_bytes: int = 0
    deterministic: bool = True
    math: str = "dtype"
    error_factor: float | None = None
    is_measured: bool = False


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is. Immutable.

    Args:
        name: As the user writes it: "cpu", "cuda:0".
        model: What the hardware calls itself.
        total_memory_bytes: Memory of the device.
        compute_capability: (major, minor) on CUDA, None elsewhere.
    """

    name: str
    model: str
    total_memory_bytes: int
    compute_capability: tuple[int, int] | None = None


class Memory(Protocol):
    """A block of device memory. Owned by one thread."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...

    @property
    def closed(self) -> bool:
        """Whether its owner has given it back."""
        ...

    @property
    def reusable(self) -> bool:
        """Whether what its owner enqueues later may use it anew, once nobody refers to it: nobody else has had it."""
        ...

    def at(self, offset_bytes: int) -> Address:
        """Address `offset_bytes` into the block."""
        ...

    def pointer(self, offset_bytes: int) -> int:
        """The same address as a number, for other libraries."""
        ...

    def hold(self) -> Callable[[], None]:
        """Keep the block beyond `close`, until the returned function is called, once, in any thread."""
        ...

    def close(self) -> None:
        """Give the memory back, once nobody holds it; a second call does nothing."""
        ...

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""
        ...


class Event(Protocol):
    """A moment in a stream's work. Thread-safe; freed with its last reference."""

    def query(self) -> bool:
        """Whether it has passed."""
        ...

    def synchronize(self) -> None:
        """Block until it has passed.

        Raises:
            DeviceFaultError: something that was enqueued before it failed.
        """
        ...

    def elapsed_ms(self, since: Event) -> float:
        """Wait for both events, then tell the device's time from `since` to this one, in milliseconds.

        Raises:
            BadParamError: they are of different devices.
        """
        ...


class Stream(Protocol):
    """An ordered queue of work on a device. Owned by one thread."""

    @property
    def handle(self) -> int | None:
        """The CUstream; None where work runs as soon as it is enqueued."""
        ...

    def record_event(self) -> Event:
        """Mark what was enqueued so far."""
        ...

    def wait(self, event: Event) -> None:
        """Let what is enqueued from now on wait for an event, of whichever stream, thread or device of the backend."""
        ...

    def precede(self, other: int) -> None:
        """Let another library's stream wait for what was enqueued here."""
        ...

    def follow(self, other: int) -> None:
        """Wait for what was enqueued on another library's stream."""
        ...

    def synchronize(self) -> None:
        """Block until everything enqueued has run.

        Raises:
            DeviceFaultError: something that was enqueued failed.
        """
        ...

    def close(self) -> None:
        """Wait for the work, then give the stream back; a second call does nothing."""
        ...

    def take_over(self, other: Stream) -> None:
        """Go on after another stream of the same device and thread: wait for what it was given, on the device, and give it back."""
        ...

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""
        ...


class Algorithm(Protocol):
    """One way to solve a kind of problem; stateless. Immutable."""

    @property
    def name(self) -> str:
        """Lower-case name, unique in its tuple: "implicit_gemm"."""
        ...

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """What it would take to solve the problem on such a device; or the reason why it cannot, or had better not."""
        ...


Move = tuple[int, int, Address]
"""(start, end, new start): what lay in [start, end), as pointers, is elsewhere."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Work with its factors and addresses, as a program has it. Immutable.

    Args:
        work: What runs.
        alpha: Factor of the result.
        beta: Factor of what the outputs held.
        addresses: As `Launch` takes them.
        constants: Operands, by number, that nothing in the program writes, as far as that is known.
    """

    work: Work
    alpha: float
    beta: float
    addresses: Sequence[Address]
    constants: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Wired:
    """Work with its factors, and its operands by their places among the addresses of a launch. Immutable.

    Args:
        work: What runs.
        alpha: Factor of the result.
        beta: Factor of what the outputs held.
        operands: Of the inputs and then of the outputs: the number of an address, -1 for the workspace's, and bytes from there.
    """

    work: Work
    alpha: float
    beta: float
    operands: tuple[tuple[int, int], ...]


Enqueue = Callable[[Sequence[Address]], None]
"""enqueue(addresses): run what was wired together; the last address is the workspace's, where one is needed."""


class BoundGraph(Protocol):
    """Bound work that is launched as one. Owned by one thread."""

    def launch(self, stream: Stream) -> None:
        """Enqueue all of it."""
        ...

    def move(self, moves: Sequence[Move]) -> None:
        """Let the launches from now on use other memory: each address that lies in one of the ranges moves with it."""
        ...

    def close(self) -> None:
        """Give it back, once the launches have run; a second call does nothing."""
        ...

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""
        ...


class Device(Protocol):
    """A device as one thread sees it. Owned by one thread; its handle checks."""

    @property
    def info(self) -> DeviceInfo:
        """What it is."""
        ...

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """What DLPack calls it: (device type, index)."""
        ...

    @property
    def addresses_are_pointers(self) -> bool:
        """Whether `Memory.at` gives what `Memory.pointer` gives."""
        ...

    @property
    def figures(self) -> DeviceFigures:
        """What it can do: what offers are made for."""
        ...

    @property
    def choices(self) -> MeasuredChoices:
        """What was measured on this model of device and comes with the library."""
        ...

    def free_bytes(self) -> int:
        """Memory that nobody has taken now."""
        ...

    def adopt(self) -> None:
        """Belong to the calling thread from now on, with all that was made here; the thread before must be done with it."""
        ...

    def algorithms(self, problem: Problem) -> tuple[Algorithm, ...]:
        """Algorithms for this kind of problem; the last supports everything that is legal."""
        ...

    def bind(self, work: Work) -> Launch:
        """Make launches of what an algorithm prepared: compile and load its kernels, once in the process.

        Raises:
            CompilationError: a kernel does not compile.
            BackendUnavailableError: there is neither a compiler nor a prebuilt kernel.
        """
        ...

    def wire(
        self,
        parts: Sequence[Wired],
        stream: Stream,
        scratch_bytes: int = 0,
        replayed_unless: Callable[[], bool] | None = None,
    ) -> Enqueue:
        """Make one function of work that runs in a row on one stream with the same factors always: only addresses are left open.

        Args:
            parts: What runs.
            stream: Where.
            scratch_bytes: At the beginning of the workspace, which parts have operands in; the rest is for the work itself. A
                multiple of 256.
            replayed_unless: Lets what comes again at the same addresses be one launch of a graph, but for calls at which this is
                true, as while the stream is being captured; None for never.

        Raises:
            CompilationError: a kernel does not compile.
            BackendUnavailableError: there is neither a compiler nor a prebuilt kernel.
        """
        ...

    def capture(self, steps: Sequence[Bound]) -> BoundGraph:
        """Make one launch of many: a CUDA graph, whose kernels run one after the other."""
        ...

    def describe(self, work: Work) -> list[str]:
        """A line for each launch: kernel, grid, block, shared memory."""
        ...

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialised memory, 256-byte aligned.

        Raises:
            OutOfMemoryError: there is no room; the message says what was asked for and what is free.
        """
        ...

    def allocate_ordered(self, nbytes: int, stream: Stream) -> Memory:
        """Uninitialised memory for work on one stream, 256-byte aligned; neither taking it nor giving it back waits for the device.

        Raises:
            OutOfMemoryError: there is no room; the message says what was asked for and what is free.
        """
        ...

    def wrap_memory(self, borrowed: Borrowed) -> Memory:
        """See memory of another library as a block, which gives it back when it is closed.

        Raises:
            BadParamError: it is not this device's, or its elements are not aligned.
        """
        ...

    def host_buffer(self, nbytes: int) -> np.ndarray:
        """Host memory (uint8) that copies fastest to and from this device; page-locked on CUDA, freed with its last view."""
        ...

    def lock_pages(self, array: np.ndarray) -> Callable[[], None]:
        """Let copies to and from memory that is there already be as those of `host_buffer`.

        Args:
            array: uint8, contiguous, on pages of its own, as `mmap` gives them; kept until they are unlocked.

        Returns:
            What waits for the device's work and undoes it, in any thread. A second call does nothing.

        Raises:
            NotSupportedError: copies of this kind of device are the processor's.
            OutOfMemoryError: the host has no room that it may lock.
            DeviceError: the driver does not lock such memory.
        """
        ...

    def create_stream(self) -> Stream:
        """Open a queue of its own."""
        ...

    def wrap_stream(self, handle: int) -> Stream:
        """Use a queue that another library made and will destroy.

        Raises:
            BadParamError: it is not this device's.
        """
        ...

    def copy(self, stream: Stream, destination: Address, source: Address, nbytes: int) -> None:
        """Enqueue a copy within the device."""
        ...

    def copy_to_device(self, stream: Stream, destination: Address, source: np.ndarray) -> None:
        """Enqueue a copy of a contiguous host array; `source` must stay unchanged until the stream has passed it."""
        ...

    def gather_to_device(self, stream: Stream, destination: Address, sources: Sequence[np.ndarray]) -> None:
        """Enqueue copies of contiguous host arrays, one behind the other; the caller keeps these, unchanged, until the stream has
        passed them, where `copy_to_device` keeps its array itself.
        """
        ...

    def copy_to_host(self, stream: Stream, destination: np.ndarray, source: Address) -> None:
        """Enqueue a copy into a contiguous host array, which is valid once the stream has passed it."""
        ...

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        ...

    def abandon(self) -> None:
        """Give back what it made for wired work, from whichever thread, for an owner that has ended; a second call does nothing."""
        ...
