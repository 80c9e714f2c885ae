"""The handle: one thread's door to one device, with its stream, workspace, plans and memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from dnncore import devices
from dnncore.backend import DeviceInfo, Memory
from dnncore.descriptors import Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ClosedError, OwnerError
from dnncore.plan import Plan, Preference, make_plan
from dnncore.problems import Problem
from dnncore.program import Program, Step
from dnncore.tensor import Tensor
from dnncore.workspace import Workspace

__all__ = ["Handle"]


class Handle:
    """Everything one thread needs to run operations on one device. Owned by one thread; checked.

    As many handles a device as wanted, each with a stream of its own. What a handle made (tensors, plans) is used with that handle.
    Operations are enqueued on the stream and return before they have run; `synchronize` and `Tensor.numpy` wait.

    Args:
        device: "cpu" or "cuda:N".
        preference: How much workspace algorithms may take, unless an operation says otherwise.

    Raises:
        DeviceNotFoundError: no such device.
        BackendUnavailableError: PyCUDA or the driver is missing.
    """

    def __init__(self, device: str = "cpu", *, preference: Preference = Preference.PREFER_FASTEST) -> None:
        self._thread = threading.get_ident()
        self._thread_name = threading.current_thread().name
        self.preference = preference
        self.device = devices.open_device(device)
        self.stream = self.device.create_stream()
        self._workspace = Workspace(self.device, self.stream)
        self._plans: dict[tuple[Problem, Preference, str | None], Plan] = {}
        self._memory: dict[int, Memory] = {}
        self._recording: Program | None = None
        self._closed = False

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self.device.info

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory held now."""
        return self._workspace.nbytes

    def check_owner(self) -> None:
        """Refuse a foreign thread and a closed handle.

        Raises:
            OwnerError: the calling thread did not make this handle.
            ClosedError: it was closed.
        """
        if threading.get_ident() != self._thread:
            raise OwnerError(
                f"this handle on {self.info.name} belongs to thread {self._thread_name!r}, not to "
                f"{threading.current_thread().name!r}; make a handle in each thread"
            )
        if self._closed:
            raise ClosedError(f"this handle on {self.info.name} was closed")

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
        self._memory[id(memory)] = memory
        return Tensor(self, descriptor, memory)

    def upload(self, array: np.ndarray, layout: Layout | str = Layout.NCHW) -> Tensor:
        """Allocate a tensor and fill it; waits for the copy."""
        array = np.asarray(array)
        tensor = self.tensor(array.shape, DType.of(array.dtype), layout)
        tensor.assign(array)
        return tensor

    def release(self, memory: Memory) -> None:
        """Give back memory of this handle after the work that may use it; for `Tensor.close`."""
        if self._closed:
            return
        self.check_owner()
        self.stream.synchronize()
        del self._memory[id(memory)]
        memory.close()

    def plan(self, problem: Problem, *, preference: Preference | None = None, algorithm: str | None = None) -> Plan:
        """The plan for a problem, chosen once and kept.

        Raises:
            NotSupportedError: no algorithm fits the preference; the message lists each and why.
        """
        self.check_owner()
        key = (problem, preference or self.preference, algorithm)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = make_plan(problem, self.device, key[1], algorithm)
        return plan

    def run(self, plan: Plan, alpha: float, inputs: Sequence[Tensor], beta: float, outputs: Sequence[Tensor]) -> None:
        """Enqueue outputs = alpha * operation(inputs) + beta * outputs.

        Raises:
            BadParamError: a tensor belongs to another handle, its descriptor is not the problem's, or there are too few or many.
        """
        self.check_owner()
        expected = (*plan.problem.inputs, *plan.problem.outputs)
        if len(inputs) != len(plan.problem.inputs) or len(outputs) != len(plan.problem.outputs):
            raise BadParamError(
                f"{len(inputs)} inputs and {len(outputs)} outputs are given, the plan takes {len(plan.problem.inputs)} and "
                f"{len(plan.problem.outputs)}"
            )
        for tensor, descriptor in zip((*inputs, *outputs), expected, strict=True):
            if tensor.handle is not self:
                raise BadParamError(f"{tensor} belongs to another handle")
            if tensor.descriptor != descriptor:
                raise BadParamError(f"tensor is {tensor.descriptor}, the plan was made for {descriptor}")
        step = Step(plan, alpha, [tensor.address for tensor in inputs], beta, [tensor.address for tensor in outputs])
        if self._recording is None:
            self._enqueue(step)
        else:
            self._recording.steps.append(step)

    def _enqueue(self, step: Step) -> None:
        self.check_owner()
        workspace = self._workspace.reserve(step.plan.workspace_bytes)
        step.plan.launch(self.stream, step.alpha, step.inputs, step.beta, step.outputs, workspace)

    @contextmanager
    def record(self) -> Iterator[Program]:
        """Collect the operations called in the block instead of running them; `Program.run` runs them, as often as wanted."""
        self.check_owner()
        if self._recording is not None:
            raise BadParamError("this handle is recording already")
        self._recording = Program(self._enqueue)
        try:
            yield self._recording
        finally:
            self._recording = None

    def synchronize(self) -> None:
        """Wait until everything enqueued has run.

        Raises:
            DeviceFaultError: something that was enqueued failed.
        """
        self.check_owner()
        self.stream.synchronize()

    def close(self) -> None:
        """Wait for the work, then give back every tensor, the workspace and the stream; a second call does nothing.

        Raises:
            OwnerError: the calling thread did not make this handle.
        """
        if self._closed:
            return
        self.check_owner()
        self._closed = True
        try:
            self._workspace.close()
            self.stream.close()
        finally:
            self._plans.clear()
            for memory in self._memory.values():
                memory.close()
            self._memory.clear()
            self.device.close()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Handle({self.info.name}, {'closed' if self._closed else f'{len(self._memory)} tensors'})"
