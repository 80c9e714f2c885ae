"""How long the algorithms for one problem take beside each other: graphs of calls on rotating operands (`benchmarks.race`).

Operands are places in memory that is made once for all problems: noise that is only read, and room that is only written, so that
numbers stay as they are. Allocating and filling operands for each problem would take longer than its launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np

from benchmarks.race import Replay, Rotation, race
from dnncore import Handle, TensorDescriptor
from dnncore.backend import Address, Memory
from dnncore.dtypes import DType
from dnncore.errors import CompilationError, DeviceError, DeviceFaultError
from dnncore.problems import Problem
from dnncore.program import CapturedProgram

__all__ = ["Trials"]

_TOO_SLOW = 2.0
"""Times the fastest so far: at its first sample such an algorithm is out."""

_ROUNDS = 7
_ALIGNMENT = 1024
_PATTERN = 1 << 22
"""Numbers that are drawn; noise repeats them."""

_Operands = tuple[Sequence[Address], Sequence[Address]]


class Trials:
    """Times algorithms on one device. Owned by one thread.

    Args:
        handle: On the device.
        is_dry: Two calls a graph and one round, which shows that all of it runs.
    """

    def __init__(self, handle: Handle, *, is_dry: bool = False) -> None:
        self._handle = handle
        self._is_dry = is_dry
        self._noise = {dtype: _Block(handle, dtype) for dtype in DType}
        self._room = _Block(handle, None)

    def seconds(self, problem: Problem, algorithms: Sequence[str], estimate: float) -> dict[str, float]:
        """What a launch takes, of each that could be run; of those that were out at once it is their first sample.

        Args:
            problem: What is solved.
            algorithms: By name, the one first that is expected to be the fastest.
            estimate: Seconds that this one is expected to take.

        Raises:
            OutOfMemoryError: there is no room for the operands.
            BackendUnavailableError: there is neither a compiler nor a prebuilt kernel.
            DeviceFaultError: an algorithm has lost the device.
        """
        nbytes = sum(tensor.nbytes for tensor in (*problem.inputs, *problem.outputs))
        l2_bytes = self._handle.device.figures.l2_bytes
        rotation = Rotation(2, 1) if self._is_dry else Rotation.cold(nbytes, l2_bytes, estimate)
        sets = self._sets(problem, rotation.sets)
        found: dict[str, float] = {}
        captured: dict[str, CapturedProgram] = {}
        with ExitStack() as stack:
            for name in algorithms:
                try:
                    captured[name] = stack.enter_context(closing(self._captured(problem, name, sets, rotation)))
                    found[name] = self._sample(Replay(captured[name].run, rotation.calls))
                except DeviceFaultError:
                    raise
                except (DeviceError, CompilationError) as error:  # there is no room for its workspace, most of all
                    print(f"{name} is left out: {error}", flush=True)
                for slow in [
                    each for each in captured if found.get(each, np.inf) > _TOO_SLOW * min(found.values(), default=0)
                ]:
                    captured.pop(slow).close()
            replays = {name: Replay(each.run, rotation.calls) for name, each in captured.items()}
            times = race(replays, self._handle.record_event, 1 if self._is_dry else _ROUNDS)
        return found | {name: time.ms * 1e-3 for name, time in times.items()}

    def close(self) -> None:
        """Give the memory back."""
        for block in (*self._noise.values(), self._room):
            block.close()

    def _captured(self, problem: Problem, name: str, sets: Sequence[_Operands], rotation: Rotation) -> CapturedProgram:
        plan = self._handle.plan(problem, algorithm=name)
        with self._handle.record() as program:
            for _ in range(rotation.passes):
                for inputs, outputs in sets:
                    self._handle.launch(plan, 1.0, inputs, 0.0, outputs)
        return program.capture()

    def _sample(self, replay: Replay) -> float:
        """Seconds of a call."""
        replay.enqueue()  # which loads code
        start = self._handle.record_event()
        replay.enqueue()
        return self._handle.record_event().elapsed_ms(start) * 1e-3 / replay.calls

    def _sets(self, problem: Problem, count: int) -> list[_Operands]:
        """So many sets of operands, none of which shares memory with another."""
        for dtype, block in self._noise.items():
            block.begin(count * sum(_padded(tensor) for tensor in problem.inputs if tensor.dtype is dtype))
        self._room.begin(count * sum(map(_padded, problem.outputs)))
        return [
            (
                [self._noise[tensor.dtype].take(tensor) for tensor in problem.inputs],
                [self._room.take(tensor) for tensor in problem.outputs],
            )
            for _ in range(count)
        ]


class _Block:
    """Memory that operands are places in, one behind the other. Owned by one thread.

    Args:
        handle: Whose.
        dtype: Of the noise in it: normally distributed, bytes, or zeros where it may be indices; None where nothing reads it.
    """

    def __init__(self, handle: Handle, dtype: DType | None) -> None:
        self._handle = handle
        self._dtype = dtype
        self._memory: Memory | None = None
        self._taken = 0

    def begin(self, nbytes: int) -> None:
        """Have so many bytes, and give out places from the beginning."""
        self._taken = 0
        if self._memory is not None and self._memory.nbytes >= nbytes:
            return
        self.close()
        if nbytes:
            self._memory = self._handle.device.allocate(nbytes)
            self._fill(self._memory)

    def take(self, tensor: TensorDescriptor) -> Address:
        """A place for a tensor."""
        assert self._memory is not None
        place = self._memory.at(self._taken)
        self._taken += _padded(tensor)
        return place

    def close(self) -> None:
        """Give the memory back, after the work that may use it."""
        if self._memory is not None:
            self._handle.synchronize()
            self._memory.close()
            self._memory = None

    def _fill(self, memory: Memory) -> None:
        if self._dtype is None:
            return
        random = np.random.default_rng(0)
        if self._dtype.is_floating:
            pattern = random.standard_normal(_PATTERN, np.float32).astype(self._dtype.numpy).view(np.uint8)
        elif self._dtype.itemsize == 1 and self._dtype is not DType.BOOL:
            pattern = random.integers(0, 256, _PATTERN, np.uint8)
        else:
            pattern = np.zeros(_PATTERN, np.uint8)
        device, stream, filled = self._handle.device, self._handle.stream, min(memory.nbytes, pattern.nbytes)
        device.copy_to_device(stream, memory.at(0), pattern[:filled])
        while filled < memory.nbytes:
            more = min(filled, memory.nbytes - filled)
            device.copy(stream, memory.at(filled), memory.at(0), more)
            filled += more
        self._handle.synchronize()


def _padded(tensor: TensorDescriptor) -> int:
    return -(-max(tensor.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
