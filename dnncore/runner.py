"""Running plans: what one thread does with operands that are there, on one stream of one device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dnncore import find, interchange, measured
from dnncore.aliasing import check_apart
from dnncore.backend import Address, Device, DeviceInfo, Enqueue, Stream, Wired
from dnncore.descriptors.settings import number
from dnncore.errors import BadParamError, ClosedError, OwnerError
from dnncore.interchange import SupportsCudaStream
from dnncore.measured import MeasuredChoices
from dnncore.plan import AlgorithmPerformance, Plan, Preference
from dnncore.planner import Planner
from dnncore.problems import FusedConvolutionProblem, Problem
from dnncore.program import Program, Step, WiredStep
from dnncore.tensor import Tensor
from dnncore.workspace import Workspace

__all__ = ["Runner"]

_ALIGNMENT_BYTES = 256
"""As `Device.allocate` aligns memory."""


class Runner:
    """Plans problems and enqueues plans; `dnncore.Handle` adds the tensors. Owned by one thread, until another adopts it; checked.

    Args:
        device: Open; whoever opened it closes it.
        preference: What algorithms may take, unless an operation says otherwise.
        stream: To enqueue on, as `dnncore.Handle` takes it.
        autotune: Whether `plan` times the algorithms of a problem when it first sees it, and takes the fastest.
        choices: What was measured on such a device: what `plan` goes by before estimates.

    Raises:
        BadParamError: the stream is not this device's.
    """

    def __init__(
        self,
        device: Device,
        preference: Preference,
        stream: int | SupportsCudaStream | None,
        *,
        autotune: bool,
        choices: MeasuredChoices,
    ) -> None:
        self._own()
        self.device = device
        self._planner = Planner(device, preference, self._fastest, choices)
        self._planner.autotune = autotune
        self._stream_owner = stream  # lives as long as we enqueue on it
        self._stream = interchange.open_stream(device, stream)
        self._workspace = Workspace(device, self._stream)
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
    def seen(self) -> Mapping[Hashable, Any]:
        """What `remember` was given, as long as the preference is the same: for a look-up in place of all that leads to a plan."""
        return self._planner.seen

    def remember(self, key: Hashable, made: Any) -> None:
        """Keep what a caller has made of plans by what it was called with, among the last 1,024 of such."""
        self._planner.remember(key, made)

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

    def check_not_recording(self, what: str) -> None:
        """Refuse what acts at once and so cannot be part of a recorded program, as well as what `check_owner` refuses.

        Raises:
            BadParamError: this is the block of `record`.
        """
        self.check_owner()
        if self._recording is not None:
            raise BadParamError(f"{what} is no part of a recorded program; use it outside the block of record()")

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

    def plan(self, problem: Problem, *, preference: Preference | None = None, algorithm: str | None = None) -> Plan:
        """The plan for a problem, chosen once and kept as long as it is one of the 1,024 last used.

        It is chosen by what was measured of the problem on such a device, where that is known (`dnncore.measured`), else by
        estimates. Nothing is timed, unless the handle has `autotune`.

        Raises:
            NotSupportedError: no algorithm fits the preference; the message lists each and why.
        """
        self.check_owner()
        return self._planner.plan(problem, preference, algorithm)

    def estimated_seconds(self, problem: Problem) -> float:
        """What the algorithm that `plan` takes was measured or is estimated to take; infinite where there is none.

        Nothing is compiled, and a `plan` of the problem that follows does not choose again.
        """
        self.check_owner()
        return self._planner.estimated_seconds(problem)

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
        most: int | None = None,
        save: str | os.PathLike[str] | None = None,
    ) -> list[AlgorithmPerformance]:
        """Time every algorithm that can be used, on the handle's stream: the fastest first, then those that failed or are out.

        Args:
            problem: What to solve.
            inputs: Tensors to time with; without them, memory of the same size is allocated and given back.
            outputs: These too; they are overwritten.
            preference: What algorithms may take.
            most: How many are timed, in the order of `get_algorithms`; None for all.
            save: A file that is to keep what was found, beside what it says of other problems: the handles that are given it
                (`Handle(choices=...)`, $DNNCORE_CHOICES) when they are opened choose by it. None for no file.

        Returns:
            Results whose `name` can be given to `plan(problem, algorithm=name)`. Waits for the stream.

        Raises:
            ConfigError: the file to save in is damaged, or cannot be written.
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
        found = find.find_algorithms(ranked, problem, self.device, self._stream, plan, operands, most)
        choice = None if save is None else find.measured_choice(found, problem, self.device)
        if save is not None and choice is not None:
            measured.save(save, choice)
        return found

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

    def reserve(self, nbytes: int) -> Address:
        """Scratch memory of the handle's stream, at least so many bytes, until more is asked for: what a plan is launched with."""
        return self._workspace.reserve(nbytes)

    def wire(
        self,
        steps: Sequence[WiredStep],
        reserve: Callable[[int], Address] | None = None,
        scratch_bytes: int = 0,
        replayed_unless: Callable[[], bool] | None = None,
    ) -> Enqueue:
        """Make one function of plans that are launched in a row, with the same factors always: what costs the host least.

        It runs on the stream that the handle has now, whatever it is given later. The caller answers for it being called in the
        handle's thread, while the handle is open and not recording, and for the addresses.

        Args:
            steps: The plans, with their operands' places among the addresses that the function will be called with.
            reserve: Asked at each call for scratch memory, where the plans need any, of so many bytes behind `TICKET_BYTES` of
                zeros, that no other stream uses meanwhile; None for the handle's own `reserve`.
            scratch_bytes: Of that memory, what steps name as operands (`SCRATCH`): it holds what one of them leaves for another.
                The plans' own scratch memory lies behind it.
            replayed_unless: Lets many launches that come again at the same addresses be one launch of a CUDA graph, as long as the
                handle is open, but for calls at which this is true: whoever captures the stream says so here. None for never.

        Raises:
            BadParamError: a plan belongs to another handle.
        """
        for step in steps:
            self._check_own(step.plan)
        parts = [Wired(step.plan.work, step.alpha, step.beta, step.operands) for step in steps]
        own_bytes = -(-scratch_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        enqueue = self.device.wire(parts, self._stream, own_bytes, replayed_unless)
        nbytes = own_bytes + max((step.plan.workspace_bytes for step in steps), default=0)
        if not nbytes:
            return enqueue
        take = reserve or self._workspace.reserve

        def with_workspace(addresses: Sequence[Address]) -> None:
            enqueue([*addresses, take(nbytes)])

        return with_workspace

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
