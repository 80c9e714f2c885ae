"""An H200 that is not there, on which operations are planned and bound all the same, down to a driver that counts launches.

What is timed on it is everything of the library's own that stands in front of the driver. It needs neither a GPU nor PyTorch.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock, get_ident
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from dnncore.backend import Address, Bound, Enqueue, Launch, Memory, Move, Stream, Wired
from dnncore.cuda.absent import AbsentDevice
from dnncore.cuda.calls import Calls, joined
from dnncore.cuda.runtime import binder, driver, driver_launch, driver_tensor_map
from dnncore.cuda.runtime.context import Context
from dnncore.cuda.runtime.memory import CudaMemory
from dnncore.cuda.runtime.replays import Replays, launches_of
from dnncore.cuda.runtime.stream import CudaStream
from dnncore.cuda.tensor_map import TENSOR_MAP_BYTES, TensorMap
from dnncore.cuda.unit import Unit
from dnncore.figures import H200
from dnncore.handle import Handle

__all__ = ["NoDriver", "handle_nowhere"]


class NoDriver:
    """What binding and launching ask cuda-bindings for. Mutable.

    Attributes:
        alone: How many kernels it was given by themselves.
        graphs: How many graphs.
        in_graphs: How many kernels in these.
        rebound: How many of those got other addresses before.
    """

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUstream = ctypes.c_void_p
    CUlaunchConfig = SimpleNamespace
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=0)
    CUmemPool_attribute = SimpleNamespace(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD=0)
    cuuint64_t = int

    def __init__(self) -> None:
        done = (0,)
        self.alone = self.graphs = self.in_graphs = self.rebound = 0

        def launch(*_arguments: object) -> tuple[int]:
            self.alone += 1
            return done

        def done_at_once(*_arguments: object) -> tuple[int]:
            return done

        addresses = itertools.count(1 << 50, 1 << 32)

        def allocate(_nbytes: int, _stream: int) -> tuple[int, int]:
            return 0, next(addresses)

        self.cuLaunchKernel = self.cuLaunchKernelEx = self.cuMemsetD8Async = launch
        self.cuMemAllocAsync, self.cuMemFreeAsync = allocate, done_at_once
        self.cuMemPoolSetAttribute, self.cuDeviceGetDefaultMemPool = done_at_once, lambda _index: (0, 0)

    def cuCtxGetCurrent(self) -> tuple[int, int]:  # noqa: N802 (the driver's name)
        """None."""
        return 0, 0

    def CUlaunchAttribute(self) -> SimpleNamespace:  # noqa: N802 (the driver's name)
        """One to be filled in."""
        return SimpleNamespace(value=SimpleNamespace())


class _Kernels:
    def function(self, unit: Unit, shared_bytes: int = 0) -> Any:  # noqa: ARG002 (as `Kernels` has it)
        return unit


class _NullGraph:
    """Of a number of kernels. Immutable."""

    def __init__(self, nothing: NoDriver, kernels: int) -> None:
        self._nothing, self._kernels = nothing, kernels

    def launch(self, stream: Stream) -> None:  # noqa: ARG002 (there is one)
        """Count them."""
        self._nothing.graphs += 1
        self._nothing.in_graphs += self._kernels

    def rebind(self, steps: Iterable[int], addresses: Sequence[Address]) -> None:  # noqa: ARG002 (nothing is anywhere)
        """Count the kernels that get others."""
        self._nothing.rebound += sum(1 for _ in steps)

    def move(self, moves: Sequence[Move]) -> None:
        """Nothing is anywhere."""

    def close(self) -> None:
        """Nothing is held."""

    abandon = close


class _NullContext(Context):
    """One that is always current. Thread-safe."""

    def __init__(self) -> None:
        nothing: Any = SimpleNamespace(push=_nothing, pop=_nothing)
        self.index, self.name, self.handle, self.forked = -1, "nowhere", 0, False
        self._driver_context, self._driver_errors = nothing, ()
        self._lock, self._users = RLock(), set()


def _nothing() -> None:
    """What there is to do."""


class _NullStream(CudaStream):
    """A queue that counts: what is bound asks for its handle alone. Owned by one thread; checked."""

    def __init__(self) -> None:
        """Open nothing."""
        nothing: Any = SimpleNamespace(handle=0)
        self._ident, self._stream, self._handle = get_ident(), nothing, 0
        self._successor = None

    def synchronize(self) -> None:
        """Return at once: nothing runs."""

    def close(self) -> None:
        """Return at once."""

    abandon = close


class _NullDevice(AbsentDevice):
    """One that is not there, on which launches are bound all the same. Owned by one thread."""

    def __init__(self, nothing: NoDriver) -> None:
        super().__init__(H200)
        self._nothing = nothing
        self._context = _NullContext()
        self._replays = Replays(self.capture)

    def create_stream(self) -> Stream:
        """One that counts."""
        return _NullStream()

    def allocate_ordered(self, nbytes: int, stream: Stream) -> Memory:
        """As of a device that is there."""
        assert isinstance(stream, CudaStream)
        return CudaMemory.ordered(self._context, nbytes, stream)

    def bind(self, work: Calls) -> Launch:
        """As of a device that is there."""
        return binder.bind(work, _Kernels(), self._context)

    def wire(
        self,
        parts: Sequence[Wired],
        stream: Stream,
        scratch_bytes: int = 0,
        replayed_unless: Callable[[], bool] | None = None,
    ) -> Enqueue:
        """As of a device that is there."""
        assert isinstance(stream, CudaStream)
        calls = joined(parts, scratch_bytes)
        enqueue = binder.wire(calls, _Kernels(), self._context, stream)
        return enqueue if replayed_unless is None else self._replays.wired(calls, enqueue, stream, replayed_unless)

    def capture(self, steps: Sequence[Bound]) -> _NullGraph:
        """A graph that counts."""
        return _NullGraph(self._nothing, sum(launches_of(step.work) for step in steps))

    def copy_to_device(self, stream: Stream, destination: Address, source: np.ndarray) -> None:
        """Nothing reads it."""


def _tensor_map_encoder(_tensor: TensorMap) -> Callable[[int], bytes]:
    return lambda _: bytes(TENSOR_MAP_BYTES)


@contextmanager
def handle_nowhere() -> Iterator[tuple[Handle, NoDriver]]:
    """A handle of such a device, and what counts its launches; in this block no other handle launches anything."""
    nothing = NoDriver()

    def bindings() -> NoDriver:  # not a mock's own `return_value`, which takes longer than what is timed
        return nothing

    with (
        mock.patch.object(driver, "bindings", bindings),
        mock.patch.object(driver_launch, "bindings", bindings),
        mock.patch.object(driver_tensor_map, "tensor_map_encoder", _tensor_map_encoder),
        Handle(_NullDevice(nothing)) as handle,
    ):
        yield handle, nothing
