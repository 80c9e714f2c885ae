"""From PyTorch's tensors to our launches: the short way, which costs the host less than PyTorch's own dispatcher.

An operation is planned once for each form of its tensors (element types, extents, strides): what was planned holds the formats of
the results and what to launch, and is found by that form from then on. Work is enqueued on PyTorch's current stream, and PyTorch's
allocator hands memory out in the order of that stream: so a tensor may be freed as soon as its launch is enqueued.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from dnncore.backend import Address
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.per_thread import PerThread
from dnncore.plan import Plan
from dnncore.problems import Problem

__all__ = ["Behind", "Door", "Operation", "Step", "current_handle", "operate"]

_DTYPES = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.int8: DType.INT8,
    torch.int32: DType.INT32,
}
_TORCH_DTYPES = {ours: theirs for theirs, ours in _DTYPES.items()}

_MOST_OPERATIONS = 4096
"""That a door remembers: shapes may be new ones at every call."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A place in a tensor: several tensors that lie behind each other in one take one call of PyTorch's allocator. Immutable.

    Args:
        place: Of the tensor, among the operation's.
        offset: Bytes from its beginning.
    """

    place: int
    offset: int


@dataclass(frozen=True, slots=True)
class Step:
    """One launch of an operation: output = alpha * problem(inputs) + beta * output. Immutable.

    Args:
        problem: What is computed.
        operands: Its inputs and outputs by their places among the operation's tensors: those that it was given, in order, then
            those that it makes.
        alpha: Factor of the result.
        beta: Factor of what the output held.
    """

    problem: Problem
    operands: tuple[int | Behind, ...]
    alpha: float = 1.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Operation:
    """What a function of this package does to tensors of given formats. Immutable.

    Args:
        results: Tensors that it makes, as PyTorch's users see them; a problem may have other dimensions of the same memory.
        ways: Steps that compute them, in several ways where there are several; the fastest by estimate is taken.
    """

    results: tuple[TensorDescriptor, ...]
    ways: tuple[tuple[Step, ...], ...]

    @classmethod
    def of(cls, problem: Problem, operands: tuple[int | Behind, ...], *results: TensorDescriptor) -> Operation:
        """One launch."""
        return cls(results, ((Step(problem, operands),),))


_Pick = Callable[[Sequence[Address]], Sequence[Address]]


class _Prepared:
    """An operation with the plans of a handle. Owned by the handle's thread.

    Attributes:
        results: (shape, strides, dtype) of each tensor to make.
        launches: (plan, alpha, beta, what picks its operands' addresses).
    """

    __slots__ = ("launches", "results")

    def __init__(self, handle: Handle, operation: Operation) -> None:
        self.results = [(each.shape, each.strides, _TORCH_DTYPES[each.dtype]) for each in operation.results]
        ways = operation.ways
        fastest = ways[0] if len(ways) == 1 else min(ways, key=lambda way: _seconds(handle, way))
        self.launches: list[tuple[Plan, float, float, _Pick]] = [
            (handle.plan(step.problem), step.alpha, step.beta, _picker(step.operands)) for step in fastest
        ]


def _seconds(handle: Handle, way: Sequence[Step]) -> float:
    """Estimated time, without compiling anything; infinite where a step cannot be computed."""
    best = [handle.get_algorithms(step.problem)[0] for step in way]
    return sum(math.inf if each.status or each.offer is None else each.offer.seconds for each in best)


def _picker(operands: tuple[int | Behind, ...]) -> _Pick:
    """What takes the operands' addresses out of those of the operation's tensors."""
    places = [operand.place if isinstance(operand, Behind) else operand for operand in operands]
    # Of a single place itemgetter would give the address itself.
    pick = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
    behind = [(index, operand.offset) for index, operand in enumerate(operands) if isinstance(operand, Behind)]
    if not behind:
        return pick

    def pick_and_move(addresses: Sequence[Address]) -> Sequence[Address]:
        picked = list(pick(addresses))
        for index, offset in behind:
            address = picked[index]
            picked[index] = address[offset:] if isinstance(address, np.ndarray) else address + offset
        return picked

    return pick_and_move


class Door:
    """A thread's handle for a device and a stream of PyTorch's, and what was launched through it. Owned by one thread.

    Args:
        device: What PyTorch calls the device.
        handle: For that device and stream.
    """

    __slots__ = ("address", "device", "handle", "seen")

    def __init__(self, device: torch.device, handle: Handle) -> None:
        self.device = device
        self.handle = handle
        self.address: Callable[[torch.Tensor], Address] = _bytes if device.type == "cpu" else torch.Tensor.data_ptr
        self.seen: dict[tuple[Any, ...], _Prepared] = {}

    def prepare(
        self,
        key: tuple[Any, ...],
        operation: Callable[..., Operation],
        settings: tuple[Any, ...],
        tensors: Sequence[torch.Tensor | None],
    ) -> _Prepared:
        """Plan an operation that is called in this form for the first time, and remember it by its key."""
        for tensor in tensors:
            if tensor is not None and tensor.device != self.device:
                raise BadParamError(f"tensors are on {tensor.device} and on {self.device}; all must be on one device")
        prepared = _Prepared(self.handle, operation(*settings, *(t if t is None else _describe(t) for t in tensors)))
        if len(self.seen) >= _MOST_OPERATIONS:
            del self.seen[next(iter(self.seen))]
        self.seen[key] = prepared
        return prepared

    def abandon(self) -> None:
        """Give the handle back, for a thread that has ended."""
        self.handle.abandon()


_doors: PerThread[tuple[int, int | None], Door] = PerThread()
"""By device and stream."""

_CPU = (-1, None)
"""Where the CPU's door is among a thread's: -1 is what PyTorch has as its index."""

_current_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream if torch.cuda._is_compiled() else lambda _: 0
"""The CUstream of PyTorch's current stream, without the object around it, which takes fifty times as long."""


def _open(key: tuple[int, int | None]) -> Door:
    index, stream = key
    name = "cpu" if key == _CPU else f"cuda:{index}"
    door = _doors.opened[key] = Door(torch.device(name), Handle(name, stream=stream))
    return door


def _door_to(tensor: torch.Tensor) -> Door:
    """The calling thread's door to where a tensor is: on CUDA for PyTorch's current stream there."""
    if tensor.is_cuda:
        index = tensor.get_device()
        key: tuple[int, int | None] = (index, _current_stream(index))
    elif tensor.is_cpu:
        key = _CPU
    else:
        raise _without_door(tensor.device)
    return _doors.opened.get(key) or _open(key)


def _without_door(device: torch.device) -> BadParamError:
    return BadParamError(f"tensors on {device} are not supported; move them to the CPU or to a CUDA device")


def current_handle(device: torch.device) -> Handle:
    """The calling thread's handle for a device: on CUDA for PyTorch's current stream there.

    Raises:
        BadParamError: a device that is neither the CPU nor CUDA.
    """
    if device.type not in ("cpu", "cuda"):
        raise _without_door(device)
    return _door_to(torch.empty(0, device=device)).handle


def _describe(tensor: torch.Tensor) -> TensorDescriptor:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise BadParamError(f"dtype {tensor.dtype} is not supported; use one of {', '.join(map(str, _DTYPES))}")
    return TensorDescriptor(dtype, tuple(tensor.shape), tensor.stride())


def operate(
    operation: Callable[..., Operation],
    settings: tuple[Any, ...],
    tensors: Sequence[torch.Tensor | None],
) -> list[torch.Tensor]:
    """Enqueue an operation on PyTorch's current stream.

    Args:
        operation: operation(*settings, *descriptors) says what is to be done; called once for each form of its arguments.
        settings: What it is called with, hashable.
        tensors: What is read, and what is written beside the results; the first is there and says the device, others may be None.

    Returns:
        The results, in the operation's order.

    Raises:
        BadParamError: the tensors are on different devices, or do not fit together.
        NotSupportedError: nothing fits.
    """
    # Each line here is paid for at every call, in front of a kernel that may take less time itself.
    first = tensors[0]
    assert first is not None
    door = _door_to(first)
    parts: list[Any] = [operation, settings]
    for tensor in tensors:
        if tensor is None:
            parts.append(None)
        else:
            parts += tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device()
    key = tuple(parts)
    prepared = door.seen.get(key) or door.prepare(key, operation, settings, tensors)
    address, device = door.address, door.device
    addresses: list[Address] = []
    for tensor in tensors:
        addresses.append(None if tensor is None else address(tensor))  # noqa: PERF401 (a comprehension is a call more)
    results: list[torch.Tensor] = []
    for shape, strides, dtype in prepared.results:
        result = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        results.append(result)
        addresses.append(address(result))
    enqueue = door.handle.enqueue
    for plan, alpha, beta, pick in prepared.launches:
        enqueue(plan, alpha, beta, pick(addresses))
    return results


def _bytes(tensor: torch.Tensor) -> Address:
    """The bytes from the first element of a CPU tensor to the end of the last."""
    reach = 0
    if tensor.numel():
        reach = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    raw: np.ndarray = tensor.detach().as_strided((reach,), (1,)).view(torch.uint8).numpy()
    return raw
