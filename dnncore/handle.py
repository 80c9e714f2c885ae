"""The handle: one thread's door to one device, with its stream, workspace, plans and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from dnncore import devices, interchange
from dnncore.arena import Arena
from dnncore.backend import Device, Event, Memory
from dnncore.belongings import Belongings, Closable
from dnncore.descriptors import Layout, TensorDescriptor
from dnncore.dlpack import Borrowed
from dnncore.dtypes import DType
from dnncore.errors import BadParamError, OutOfMemoryError
from dnncore.interchange import SupportsCudaStream
from dnncore.measured import MeasuredChoices, of_user
from dnncore.plan import Preference
from dnncore.program import Program
from dnncore.runner import Runner
from dnncore.tensor import Tensor

__all__ = ["Handle"]


class Handle(Runner):
    """Everything one thread needs to run operations on one device. Owned by one thread, until another adopts it; checked.

    As many handles per device as wanted, each with a stream of its own. What a handle made (tensors, plans) is used with that
    handle. Operations are enqueued on the stream and return before they have run; `synchronize` and `Tensor.numpy` wait.

    Args:
        device: "cpu" or "cuda:N"; or a device that is open already, which the handle closes.
        preference: What algorithms may take, unless an operation says otherwise.
        stream: A stream of another library to enqueue on, as a CUstream or an object with `__cuda_stream__`; 0 and 1 are the legacy
            default stream. Whoever made it destroys it, after the handle is closed or has another stream (`set_stream`). None for a
            stream of the handle's own.
        autotune: Whether `plan` times the algorithms of a problem when it first sees it, and takes the fastest.
        choices: A file of what was measured on such devices, as `find_algorithms(..., save=path)` writes it: `plan` goes by it,
            where it says nothing by what comes with the library, and then by estimates. None for the file that $DNNCORE_CHOICES
            names, if it does. `MeasuredChoices` take the place of both; `MeasuredChoices()` leaves estimates alone.

    Raises:
        BadParamError: the stream is not this device's.
        ConfigError: the file of choices is not there, damaged or of a newer version.
        DeviceNotFoundError: no such device.
        BackendUnavailableError: PyCUDA or the driver is missing.
    """

    def __init__(
        self,
        device: str | Device = "cpu",
        *,
        preference: Preference = Preference.PREFER_FASTEST,
        stream: int | SupportsCudaStream | None = None,
        autotune: bool = False,
        choices: MeasuredChoices | str | os.PathLike[str] | None = None,
    ) -> None:
        own = () if isinstance(choices, MeasuredChoices) else of_user(choices)
        opened = devices.open_device(device) if isinstance(device, str) else device
        if not isinstance(choices, MeasuredChoices):
            here = opened.info.model, opened.figures.architecture
            of_here = [each for each in own if (each.device, each.architecture) == here]
            choices = MeasuredChoices([*opened.choices, *of_here]) if of_here else opened.choices
        super().__init__(opened, preference, stream, autotune=autotune, choices=choices)
        self._belongings = Belongings()

    def tensor(
        self,
        shape: Sequence[int] | TensorDescriptor,
        dtype: DType | str = DType.FLOAT32,
        layout: Layout | str = Layout.NCHW,
    ) -> Tensor:
        """Allocate an uninitialised tensor, from a shape or with a descriptor's own strides.

        Raises:
            OutOfMemoryError: the device has no room.
        """
        self.check_owner()
        descriptor = shape if isinstance(shape, TensorDescriptor) else TensorDescriptor.packed(shape, dtype, layout)
        memory = self.device.allocate(max(descriptor.nbytes, 1))
        self._belongings.add(memory)
        return Tensor(self, descriptor, memory)

    def new(self, descriptor: TensorDescriptor) -> Tensor:
        """Allocate an uninitialised tensor from the device's pool, in the order of the handle's stream: nothing waits.

        It goes back to the pool when it is closed, or when nobody refers to it or to a view of it any more; what was enqueued
        before that still has it. Up to 4 MiB of it are kept for the next tensor of their size, of 32 MiB in all.

        Raises:
            BadParamError: the handle is recording: a program's tensors must outlive it.
            OutOfMemoryError: the device has no room.
        """
        self.check_not_recording("a tensor that goes when nobody refers to it")
        belongings, nbytes = self._belongings, descriptor.nbytes or 1
        tensor = Tensor(self, descriptor, memory := belongings.spare(nbytes) or self._ordered(nbytes))
        belongings.add_until_last(memory, tensor)
        return tensor

    def _ordered(self, nbytes: int) -> Memory:
        """A block of the device's pool; where it has no room, once what is kept for results has gone back to it."""
        try:
            return self.device.allocate_ordered(nbytes, self._stream)
        except OutOfMemoryError:
            self._belongings.give_spare_back()
            return self.device.allocate_ordered(nbytes, self._stream)

    def retire(self, tensors: Sequence[Tensor]) -> None:
        """Close tensors once the stream has passed what was enqueued so far, without waiting: for what was borrowed briefly."""
        self.check_owner()
        passed = None if self._stream.handle is None else self._stream.record_event()
        self._belongings.retire([tensor.memory for tensor in tensors], passed)

    def arena(self, descriptors: Mapping[str, TensorDescriptor]) -> Arena:
        """Allocate several uninitialised tensors in one block, which programs can be moved from and to.

        Raises:
            OutOfMemoryError: the device has no room.
        """
        return Arena(self, descriptors)

    def upload(self, array: np.ndarray, layout: Layout | str = Layout.NCHW) -> Tensor:
        """Allocate a tensor and fill it; waits for the copy.

        Raises:
            BadParamError: a dtype that is not ours, or the handle is recording.
            OutOfMemoryError: the device has no room.
        """
        self.check_not_recording("an upload")
        array = np.asarray(array)
        tensor = self.tensor(array.shape, DType.of(array.dtype), layout)
        tensor.assign(array)
        return tensor

    def from_dlpack(self, array: Any) -> Tensor:
        """Share the memory of another library's array, without a copy: what has `__dlpack__` and is on this handle's device.

        The handle's stream waits for the producer's work. What the producer does with the memory later is not ordered after ours:
        close the tensor or `synchronize` first, or let its stream wait (`Tensor.__dlpack__`, `Handle(stream=...)`).

        Returns:
            A tensor with the array's strides; read-only where the producer says so. Closing it gives the memory back.

        Raises:
            BadParamError: another device, a dtype that is not ours, a negative stride, elements that are not aligned, or more
                than 8 dimensions.
        """
        self.check_owner()
        return self._adopt(*interchange.borrow_dlpack(self.device, self._stream, array))

    def from_cuda_array(self, array: Any) -> Tensor:
        """Share the memory of what has `__cuda_array_interface__`; everything else as `from_dlpack`.

        Where the interface names no stream, as PyTorch's does not, there is nothing to wait for: the producer's work must be done.
        """
        self.check_owner()
        return self._adopt(*interchange.borrow_cuda_array(self.device, self._stream, array))

    def _adopt(self, memory: Memory, borrowed: Borrowed) -> Tensor:
        self._belongings.add(memory)
        return Tensor(self, borrowed.descriptor, memory, read_only=borrowed.read_only)

    def release(self, memory: Memory) -> None:
        """Give back memory of this handle after the work that may use it; for `Tensor.close`."""
        if self._closed:
            return
        self.check_owner()
        self._stream.synchronize()
        self._belongings.remove(memory)

    def keep(self, resource: Closable) -> None:
        """Close something that was made of this handle's memory with it; until `let_go`."""
        self._belongings.keep(resource)

    def let_go(self, resource: Closable) -> None:
        """Forget what was closed, in the thread of this handle."""
        self.check_owner()
        self._belongings.let_go(resource)

    @contextmanager
    def record(self) -> Iterator[Program]:
        """Collect the operations called in the block instead of running them; `Program.run` runs them, as often as wanted."""
        self.check_owner()
        if self._recording is not None:
            raise BadParamError("this handle is recording already")
        self._recording = Program(self)
        try:
            yield self._recording
        finally:
            self._recording = None

    def record_event(self) -> Event:
        """Mark what was enqueued so far: for `wait` of other handles, and for the time between two of them (`Event.elapsed_ms`)."""
        self.check_not_recording("an event")
        return self._stream.record_event()

    def wait(self, event: Event) -> None:
        """Let what is enqueued from now on wait for an event of another handle, also one of another thread or CUDA device.

        Raises:
            BadParamError: the event is of another backend.
        """
        self.check_not_recording("a wait")
        self._stream.wait(event)

    def synchronize(self) -> None:
        """Wait until everything enqueued has run.

        Raises:
            DeviceFaultError: something that was enqueued failed.
        """
        self.check_owner()
        self._stream.synchronize()
        self._belongings.drain()

    def close(self) -> None:
        """Wait for the work, then give back every tensor, the workspace and the stream; a second call does nothing.

        Raises:
            OwnerError: the calling thread did not make this handle.
        """
        if self._closed:
            return
        self.check_owner()
        try:
            self._belongings.close_resources()
        finally:
            self._closed = True
            self._close()

    def _close(self) -> None:
        with ExitStack() as closing:  # last first; what fails keeps nothing behind it from being given back
            closing.callback(self.device.close)
            closing.callback(self._belongings.close)
            closing.callback(self._planner.clear)
            closing.callback(self._stream.close)
            closing.callback(self._workspace.close)

    def abandon(self) -> None:
        """Give everything back, from whichever thread, for an owner that has ended; a second call does nothing.

        The caller answers for nobody using the handle any more.
        """
        if self._closed:
            return
        self._closed = True
        self._planner.clear()
        self._stream.abandon()
        self.device.abandon()
        self._workspace.abandon()
        self._belongings.abandon()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Handle({self.info.name}, {'closed' if self._closed else f'{len(self._belongings.memory)} tensors'})"
