"""The handle: one thread's door to one device, with its stream, workspace, plans and memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from dnncore import devices, find, interchange
from dnncore.aliasing import check_apart
from dnncore.arena import Arena
from dnncore.backend import Address, Device, DeviceInfo, Enqueue, Event, Memory, Stream, Wired
from dnncore.belongings import Belongings, Closable
from dnncore.descriptors import Layout, TensorDescriptor
from dnncore.descriptors.settings import number
from dnncore.dlpack import Borrowed
from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ClosedError, OwnerError
from dnncore.interchange import SupportsCudaStream
from dnncore.plan import AlgorithmPerformance, Plan, Preference
from dnncore.planner import Planner
from dnncore.problems import FusedConvolutionProblem, Problem
from dnncore.program import Program, Step, WiredStep
from dnncore.tensor import Tensor
from dnncore.workspace import Workspace

__all__ = ["Handle"]


class Handle:
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

    Raises:
        BadParamError: the stream is not this device's.
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
    ) -> None:
        self._own()
        self.device = devices.open_device(device) if isinstance(device, str) else device
        self._planner = Planner(self.device, preference, self._fastest)
        self._planner.autotune = autotune
        self._stream_owner = stream  # lives as long as we enqueue on it
        self._stream = interchange.open_stream(self.device, stream)
        self._workspace = Workspace(self.device, self._stream)
        self._belongings = Belongings()
        self._recording: Program | None = None
        self._closed = False

    @property
    def preference(self) -> Preference:
        """What algorithms may take, unless an operation says otherwise."""
        return self._planner.preference

    @preference.setter
    def preference(self, preference: Preference) -> None:
        self.check_owner()
        self._planner.preference = preference

    @contextmanager
    def preferring(self, preference: Preference) -> Iterator[None]:
        """Let algorithms take this, in the block, instead of what the handle's own preference allows."""
        self.check_owner()
        with self._planner.preferring(preference):
            yield

    @property
    def autotune(self) -> bool:
        """Whether algorithms are timed when a problem is first seen."""
        return self._planner.autotune

    @property
    def stream(self) -> Stream:
        """What operations are enqueued on; `stream.handle` is the CUstream, None on "cpu"."""
        return self._stream

    def set_stream(self, stream: int | SupportsCudaStream | None) -> None:
        """Enqueue on another stream from now on, recorded programs too; it first waits for what was enqueued. The host does not.

        Args:
            stream: As the constructor takes it; None for a new stream of the handle's own.

        Raises:
            BadParamError: the stream is not this device's, or the handle is recording.
        """
        self.check_not_recording("a change of stream")
        opened = interchange.open_stream(self.device, stream)
        opened.take_over(self._stream)
        self._stream, self._stream_owner = opened, stream
        self._workspace.rebind(opened)

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
            OwnerError: the calling thread did not make this handle, nor adopt it.
            ClosedError: it was closed.
        """
        if threading.get_ident() != self._thread:
            raise OwnerError(
                f"this handle on {self.info.name} belongs to thread {self._thread_name!r}, not to "
                f"{threading.current_thread().name!r}; make a handle in each thread"
            )
        if self._closed:
            raise ClosedError(f"this handle on {self.info.name} was closed")

    def adopt(self) -> None:
        """Belong to the calling thread from now on, with all that was made of this handle.

        For what one thread prepares and another runs: a server loads a model beside the one that it serves. The caller answers for
        the thread before having ended, or using the handle no more.

        Raises:
            ClosedError: it was closed.
        """
        self._own()
        self.check_owner()
        self.device.adopt()

    def _own(self) -> None:
        self._thread = threading.get_ident()
        self._thread_name = threading.current_thread().name

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
        before that still has it.

        Raises:
            BadParamError: the handle is recording: a program's tensors must outlive it.
            OutOfMemoryError: the device has no room.
        """
        self.check_not_recording("a tensor that goes when nobody refers to it")
        memory = self.device.allocate_ordered(max(descriptor.nbytes, 1), self._stream)
        tensor = Tensor(self, descriptor, memory)
        self._belongings.add(memory)
        weakref.finalize(tensor, self._belongings.collect, memory).atexit = False
        return tensor

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
            BadParamError: another device, a dtype that is not ours, a negative stride, elements that are not aligned, none or
                more than 8 dimensions.
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

    def plan(self, problem: Problem, *, preference: Preference | None = None, algorithm: str | None = None) -> Plan:
        """The plan for a problem, chosen once and kept as long as it is one of the 1,024 last used.

        Raises:
            NotSupportedError: no algorithm fits the preference; the message lists each and why.
        """
        self.check_owner()
        return self._planner.plan(problem, preference, algorithm)

    def _fastest(self, problem: Problem, preference: Preference) -> str | None:
        """The name of what is fastest; None where there is nothing to choose."""
        if sum(algorithm.status is None for algorithm in self.get_algorithms(problem, preference=preference)) < 2:
            return None
        best = self.find_algorithms(problem, preference=preference)[0]
        return best.name if best.status is None else None

    def get_algorithms(self, problem: Problem, *, preference: Preference | None = None) -> list[AlgorithmPerformance]:
        """Every algorithm for a problem, without running one: those that can be used in the order in which `plan` would take them,
        then the others, each with the reason.
        """
        self.check_owner()
        return self._planner.rank(problem, preference)

    def find_algorithms(
        self,
        problem: Problem,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        *,
        preference: Preference | None = None,
    ) -> list[AlgorithmPerformance]:
        """Time every algorithm that can be used, on the handle's stream: the fastest first, then those that failed or are out.

        Args:
            problem: What to solve.
            inputs: Tensors to time with; without them, memory of the same size is allocated and given back.
            outputs: These too; they are overwritten.
            preference: What algorithms may take.

        Returns:
            Results whose `name` can be given to `plan(problem, algorithm=name)`. Waits for the stream.

        Raises:
            BadParamError: the tensors are not what the problem takes.
            OutOfMemoryError: there is no room for tensors to time with.
            DeviceFaultError: an algorithm has lost the device.
        """
        self.check_owner()
        operands = None
        if inputs is not None or outputs is not None:
            inputs, outputs = inputs or (), outputs or ()
            self._check_descriptors(problem, inputs, outputs)
            nbytes = [tensor.nbytes for tensor in (*inputs, *outputs)]
            addresses = self._addresses(problem, nbytes, inputs, outputs)
            operands = addresses[: len(inputs)], addresses[len(inputs) :]

        def plan(algorithm: str) -> Plan:
            return self.plan(problem, preference=preference, algorithm=algorithm)

        ranked = self.get_algorithms(problem, preference=preference)
        return find.find_algorithms(ranked, problem, self.device, self._stream, plan, operands)

    def run(self, plan: Plan, alpha: float, inputs: Sequence[Tensor], beta: float, outputs: Sequence[Tensor]) -> None:
        """Enqueue outputs = alpha * operation(inputs) + beta * outputs.

        Raises:
            BadParamError: the plan or a tensor belongs to another handle, a descriptor is not the problem's, there are too few
                tensors or too many, an output is read-only, or it shares memory with another operand where the problem does
                not say that it may (`Problem.in_place`); or alpha or beta is no number.
        """
        self._check_own(plan)
        self._check_descriptors(plan.problem, inputs, outputs)
        self._launch(plan, alpha, inputs, beta, outputs)

    def execute(
        self,
        kind: Callable[..., Problem],
        arguments: tuple[Hashable, ...],
        alpha: float,
        inputs: Sequence[Tensor],
        beta: float,
        outputs: Sequence[Tensor],
        *,
        algorithm: str | None = None,
    ) -> None:
        """Enqueue the operation that `kind(*arguments)` describes: the short way from an operation's call to its launch.

        What was called with equal arguments before is found by these, without making the problem, or checking it, again.

        Args:
            kind: Makes the problem.
            arguments: Its arguments, the descriptors of the tensors among them.
            alpha: Factor of the result.
            inputs: Tensors in the problem's order.
            beta: Factor of what the outputs hold.
            outputs: Tensors likewise.
            algorithm: Take this one, by name, and no other.

        Raises:
            BadParamError: the arguments make no problem; and as `run`.
            NotSupportedError: no algorithm fits the preference; the message lists each and why.
        """
        self.check_owner()
        plan = self._planner.called(kind, arguments, algorithm)
        self._launch(plan, alpha, inputs, beta, outputs)

    def _launch(
        self, plan: Plan, alpha: float, inputs: Sequence[Tensor], beta: float, outputs: Sequence[Tensor]
    ) -> None:
        """Launch a plan of this handle's on tensors that have its problem's descriptors."""
        addresses = self._addresses(plan.problem, plan.nbytes, inputs, outputs)
        self.launch(plan, alpha, addresses[: len(inputs)], beta, addresses[len(inputs) :])

    def _addresses(
        self, problem: Problem, nbytes: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> list[Address]:
        """Where operands lie that are this handle's, may be written and keep apart, as they must."""
        operands = (*inputs, *outputs)
        for tensor in operands:
            if tensor.handle is not self:
                raise BadParamError(f"{tensor} belongs to another handle")
        for tensor in outputs:
            if tensor.read_only:
                tensor.check_writable()
        pointers = [tensor.locate() for tensor in operands]
        check_apart(problem, pointers, nbytes, len(inputs))
        return pointers if self.device.addresses_are_pointers else [tensor.address for tensor in operands]

    def launch(
        self, plan: Plan, alpha: float, inputs: Sequence[Address], beta: float, outputs: Sequence[Address]
    ) -> None:
        """As `run`, with addresses in place of tensors: for memory that the caller manages, and answers for.

        Args:
            plan: One of this handle's.
            alpha: Factor of the result.
            inputs: On CUDA where each tensor's first element lies, an int; on the reference backend the bytes from there on, uint8.
            beta: Factor of what is there.
            outputs: Likewise.

        Raises:
            BadParamError: the plan belongs to another handle, alpha or beta is no number, or beta is not 0 where the problem
                overwrites its output.
        """
        self._check_own(plan)
        if type(alpha) is not float or type(beta) is not float:
            alpha, beta = number(alpha, "alpha"), number(beta, "beta")
        if beta and isinstance(plan.problem, FusedConvolutionProblem) and plan.problem.overwrites:
            raise BadParamError(
                f"beta is {beta}, but the plan is for a y that is overwritten; plan it with overwrites=False"
            )
        if self._recording is not None:
            self._recording.steps.append(Step(plan, alpha, beta, (*inputs, *outputs)))
            return
        self.enqueue(plan, alpha, beta, (*inputs, *outputs))

    def enqueue(self, plan: Plan, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
        """Launch a plan of this handle's now: what everything else comes to.

        Args:
            plan: The plan.
            alpha: Factor of the result.
            beta: Factor of what is there.
            addresses: Of the inputs and then of the outputs; the caller answers for them.
        """
        if threading.get_ident() != self._thread or self._closed:
            self.check_owner()  # which refuses
        nbytes = plan.offer.workspace_bytes
        plan.launch(self._stream, alpha, beta, (*addresses, self._workspace.reserve(nbytes) if nbytes else None))

    def wire(self, steps: Sequence[WiredStep]) -> Enqueue:
        """Make one function of plans that are launched in a row, with the same factors always: what costs the host least.

        It runs on the stream that the handle has now, whatever it is given later. The caller answers for it being called in the
        handle's thread, while the handle is open and not recording, and for the addresses.

        Args:
            steps: The plans, with their operands' places among the addresses that the function will be called with.

        Raises:
            BadParamError: a plan belongs to another handle.
        """
        for step in steps:
            self._check_own(step.plan)
        parts = [Wired(step.plan.work, step.alpha, step.beta, step.operands) for step in steps]
        enqueue = self.device.wire(parts, self._stream)
        nbytes = max((step.plan.workspace_bytes for step in steps), default=0)
        if not nbytes:
            return enqueue
        reserve = self._workspace.reserve
        return lambda addresses: enqueue((*addresses, reserve(nbytes)))

    def _check_own(self, plan: Plan) -> None:
        self.check_owner()
        if plan.device is not self.device:
            raise BadParamError(
                f"{plan.algorithm} was planned by another handle, on {plan.device.info.name}; plan(plan.problem) of this one, on "
                f"{self.info.name}, gives a plan that it can run"
            )

    def _check_descriptors(self, problem: Problem, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        read, written = problem.inputs, problem.outputs
        if len(inputs) != len(read) or len(outputs) != len(written):
            raise BadParamError(
                f"{len(inputs)} inputs and {len(outputs)} outputs are given, the plan takes {len(read)} and {len(written)}"
            )
        for tensor, descriptor in zip((*inputs, *outputs), (*read, *written), strict=True):
            if tensor.descriptor is not descriptor and tensor.descriptor != descriptor:
                raise BadParamError(f"tensor is {tensor.descriptor}, the plan was made for {descriptor}")

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

    def check_not_recording(self, what: str) -> None:
        """Refuse what acts at once and so cannot be part of a recorded program, as well as what `check_owner` refuses.

        Raises:
            BadParamError: this is the block of `record`.
        """
        self.check_owner()
        if self._recording is not None:
            raise BadParamError(f"{what} is no part of a recorded program; use it outside the block of record()")

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
        self._workspace.abandon()
        self._belongings.abandon()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Handle({self.info.name}, {'closed' if self._closed else f'{len(self._belongings.memory)} tensors'})"
