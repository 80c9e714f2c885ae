"""A device in a process of its own: whatever happens to its context or hangs on it, this process goes on and starts another one.

The kernels are launched without the interpreter lock of the front end, and a CUDA error that no context survives costs one process,
not the server.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dnncore import errors
from dnncore.errors import DeviceFaultError, DnncoreError
from dnnserve.engine.host import Buffers, Fresh
from dnnserve.engine.messages import (
    Assignment,
    BeginLoad,
    Done,
    Failed,
    Load,
    Loaded,
    Loading,
    Look,
    Message,
    Opened,
    Run,
    Unload,
)
from dnnserve.engine.slot import Slot
from dnnserve.envelope import ModelKey
from dnnserve.processes.child import Child
from dnnserve.processes.parcel import Parcel
from dnnserve.processes.shared_buffer import SharedBuffer

__all__ = ["EngineProcesses", "ProcessHost", "ProcessInstance"]

_Wanted = TypeVar("_Wanted")


class EngineProcesses:
    """Opens devices in processes of their own: a `HostFactory`, once it is `told`. Thread-safe.

    Args:
        names: Devices whose processes are begun at once, so that their start goes on beside everything else; each name once for
            each time that it will be opened.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._lock = threading.Lock()
        self._ready = {name: [_child(name) for _ in range(names.count(name))] for name in names}
        self._parcel: Parcel | None = None
        self._models: dict[ModelKey, Parcel] = {}

    def tell(self, assignment: Assignment) -> None:
        """Say what each of them does."""
        self._parcel = Parcel(assignment)

    def put(self, model: ModelKey, served: object) -> None:
        """Keep a model to be loaded; packed once, so that all processes and their successors share one copy of the weights."""
        self._models[model] = Parcel(served)

    def drop(self, model: ModelKey) -> None:
        """Keep a model no more. A second call does nothing."""
        parcel = self._models.pop(model, None)
        if parcel is not None:
            parcel.close()

    def __call__(self, device: str) -> ProcessHost:
        """Take a process that was begun, or begin one, and wait until it has its device.

        Raises:
            DnncoreError: it cannot open it.
        """
        assert self._parcel is not None
        with self._lock:
            ready = self._ready.get(device)
            child = ready.pop() if ready else _child(device)
        return ProcessHost(device, child, self._parcel, self._models)

    def close(self) -> None:
        """End the processes that were not needed, and give the parcels back; no device can be opened any more."""
        for children in self._ready.values():
            while children:
                children.pop().close()
        if self._parcel is not None:
            self._parcel.close()
        for model in list(self._models):
            self.drop(model)


def _child(device: str) -> Child:
    return Child("dnnserve.engine.child", device)


class ProcessHost:
    """A device behind an engine process. Owned by one thread, but for `kill`.

    Args:
        device: What the process opens.
        child: The process.
        parcel: Its assignment.
        models: What may be loaded beside what the assignment has; others may be added to it later.

    Raises:
        DeviceFaultError: the process ended.
        DnncoreError: it cannot open the device.
    """

    def __init__(self, device: str, child: Child, parcel: Parcel, models: Mapping[ModelKey, Parcel]) -> None:
        self._device = device
        self._child = child
        self._models = models
        try:
            with contextlib.suppress(OSError):  # it has ended, as its answer will say
                child.tell(parcel)
            self.answer(Opened)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    def load(self, model: ModelKey, max_batch_rows: int, buffers: Buffers | None = None) -> ProcessInstance:
        """Have the process load a model and warm it up; its slots lie in memory that both processes map.

        Raises:
            DeviceFaultError: the process ended.
            DnncoreError: it cannot load the model.
        """
        if buffers is not None:
            raise ValueError("an engine process makes its buffers itself")
        self._send_with_parcel(Load(model, max_batch_rows))
        loaded, fds = self.answer(Loaded)
        return ProcessInstance(self, model, loaded, [SharedBuffer(fd) for fd in fds])

    def begin_load(self, model: ModelKey, max_batch_rows: int, warm_up_ns: int, buffers: Buffers | None = None) -> None:
        """Have the process begin to load a model, in another thread of it."""
        assert buffers is None
        self._send_with_parcel(BeginLoad(model, max_batch_rows, warm_up_ns))
        self.answer(Loading)

    def loaded(self, model: ModelKey) -> Fresh | None:
        """Ask the process whether it is there.

        Raises:
            DeviceFaultError: the process ended.
            DnncoreError: it cannot load the model.
        """
        self.ask(Look(model))
        answer, fds = self.answer((Loaded, Loading))
        if not isinstance(answer, Loaded):
            return None
        return Fresh(ProcessInstance(self, model, answer, [SharedBuffer(fd) for fd in fds]), answer.timings_ns)

    def unload(self, model: ModelKey) -> None:
        """Have the process give a model's memory back."""
        self.ask(Unload(model))
        self.answer(Done)

    def _send_with_parcel(self, message: Load | BeginLoad) -> None:
        parcel = self._models.get(message.model)
        self.ask(message, () if parcel is None else (parcel.fd,))

    def ask(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message, and files with it.

        Raises:
            DeviceFaultError: the process ended.
        """
        try:
            self._child.link.send(message, fds)
        except OSError:
            raise self._ended() from None

    def answer(self, wanted: type[_Wanted] | tuple[type[_Wanted], ...]) -> tuple[_Wanted, Sequence[int]]:
        """Wait for the answer to the oldest question.

        Raises:
            DeviceFaultError: the process ended.
            DnncoreError: what was asked for failed; of the class that the process says.
        """
        received = self._child.link.receive()
        if received is None:
            raise self._ended()
        message, fds = received
        if isinstance(message, Failed):
            kind = getattr(errors, message.error, DnncoreError)
            raise kind(message.text)
        if not isinstance(message, wanted):
            raise DnncoreError(f"the engine process of {self._device} answered {message} where {wanted} was due")
        return message, fds

    def on_loss(self, act: Callable[[], None]) -> None:
        """Act when the process ends."""
        self._child.on_end(act)

    def kill(self) -> bool:
        """Kill the process."""
        self._child.kill()
        return True

    def close(self) -> None:
        """Let the process close its device and end; one that does not is killed. A second call does nothing."""
        self._child.close()

    def _ended(self) -> DeviceFaultError:
        self._child.link.close()
        return DeviceFaultError(f"the engine process {self.pid} of {self._device} ended by {self._child.wait()}")


class ProcessInstance:
    """A model in an engine process. Owned by its host's thread.

    Args:
        host: The process.
        model: Which.
        loaded: What the process said of it.
        buffers: Its slots and, last, its outputs.
    """

    def __init__(self, host: ProcessHost, model: ModelKey, loaded: Loaded, buffers: Sequence[SharedBuffer]) -> None:
        self._host = host
        self._model = model
        self.max_batch_rows = loaded.max_batch_rows
        self.output_shape = loaded.output_shape
        rows = loaded.max_batch_rows
        self.slots = tuple(
            Slot(buffer.bytes, rows, loaded.row_shape, loaded.preprocessing) for buffer in buffers[: loaded.slots]
        )
        self._outputs = buffers[-1].view((loaded.slots, rows, *loaded.output_shape))
        for buffer in buffers:
            buffer.close()
        self._begun: deque[tuple[int, int]] = deque()
        self.computed_ns = 0

    def begin(self, slot: int, rows: int, pixels: bool) -> None:
        """Have the process run the first rows of a slot, after what was begun before; returns at once."""
        self._host.ask(Run(self._model, slot, rows, pixels))
        self._begun.append((slot, rows))

    def finish(self) -> np.ndarray:
        """Wait for the oldest batch that was begun."""
        slot, rows = self._begun.popleft()
        self.computed_ns = self._host.answer(Done)[0].computed_ns
        return self._outputs[slot, :rows]
