"""From what a caller has to tensors of one handle, and from an operation to its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from dnncore.descriptors import TensorDescriptor
from dnncore.dlpack import CPU, DeviceType
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.functional.launches import Launches
from dnncore.functional.operation import Operation, Step
from dnncore.handle import Handle
from dnncore.per_thread import PerThread
from dnncore.tensor import Tensor

__all__ = ["Operand", "check_not_in_place", "compute", "handle", "owner_of"]


class Operand(Protocol):
    """What functions take: our tensors, NumPy's arrays, and what other libraries share through DLPack."""

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """(DLPack device type, index)."""
        ...

    def __dlpack__(self, *, stream: None = None) -> object:
        """The memory, in a capsule."""
        ...


_own: PerThread[str, Handle] = PerThread()

_MOST_CHOICES = 1024
"""That are remembered for a handle: shapes may be new ones at every call."""


def handle(device: str = "cpu") -> Handle:
    """The calling thread's own handle for a device, which runs what has no handle yet: NumPy's arrays, other libraries' tensors.

    It is opened when first needed and given back, with every tensor of it, when the thread ends; leave it open.

    Args:
        device: "cpu" or "cuda:N".

    Raises:
        BadParamError: no name of a device.
        DeviceNotFoundError: no such device.
        BackendUnavailableError: PyCUDA or the driver is missing.
    """
    found = _own.opened.get(device)
    if found is None:
        found = _own.opened[device] = Handle(device)
    return found


def compute(
    describe: Callable[..., Operation], settings: tuple[Any, ...], *operands: Operand | None, optional: int = 0
) -> list[Tensor]:
    """Enqueue an operation on the handle that its operands are of.

    Args:
        describe: describe(*settings, *descriptors) says what to do with operands of such descriptors; None for one that is missing.
        settings: What it is called with before the descriptors.
        operands: What is read, and what is written beside the results.
        optional: How many of them, at the end, may be None.

    Returns:
        The results, in the operation's order.

    Raises:
        BadParamError: operands are of different devices or handles, or do not fit together.
        NotSupportedError: no algorithm fits the handle's preference.
    """
    owner: Handle | None = None
    descriptors: list[TensorDescriptor | None] = []
    for operand in operands:
        if operand is None:
            _check_there(operands, optional)
            descriptors.append(None)
        elif not isinstance(operand, Tensor):
            _check_there(operands, optional)
            return _compute_with_borrowed(describe, settings, operands, optional)
        else:
            if owner is None:
                owner = operand.handle
            elif operand.handle is not owner:
                raise _two_handles(owner, operand.handle)
            descriptors.append(operand.descriptor)
    assert owner is not None  # the first operand of every function is needed
    key = (describe, settings, *map(type, settings), *descriptors)
    try:
        known: Callable[[Handle, Sequence[Any]], list[Tensor]] | None = owner.seen.get(key)
    except TypeError:  # a list among the settings, by which nothing can be remembered
        return _run(_described(describe, settings, descriptors), owner, operands)
    if known is not None:
        return known(owner, operands)
    operation = _described(describe, settings, descriptors)
    results = _run(operation, owner, operands)
    if owner.device.addresses_are_pointers:
        owner.remember(key, Launches.of(operation, _way(owner, operation), owner, len(operands)))
    else:
        owner.remember(key, partial(_run, operation))
    return results


def _check_there(operands: Sequence[Operand | None], optional: int) -> None:
    for place, operand in enumerate(operands[: len(operands) - optional], start=1):
        if operand is None:
            raise BadParamError(f"tensor {place} of {len(operands)} is None, but it is needed")


def _described(
    describe: Callable[..., Operation], settings: tuple[Any, ...], descriptors: Sequence[TensorDescriptor | None]
) -> Operation:
    try:
        return describe(*settings, *descriptors)
    except TypeError:  # a list among the settings, by which nothing can be remembered
        return describe(*map(_plain, settings), *descriptors)


def _plain(setting: Any) -> Any:
    return tuple(map(_plain, setting)) if isinstance(setting, list | tuple | np.ndarray) else setting


def _run(operation: Operation, owner: Handle, given: Sequence[Any]) -> list[Tensor]:
    """Allocate what an operation makes and launch its steps; a given tensor that no step takes may be None."""
    made = [owner.new(descriptor) for descriptor in operation.made]
    tensors = (*given, *made)
    if operation.views:
        tensors += tuple(tensors[place].view(descriptor, offset) for place, descriptor, offset in operation.views[::-1])
    for step in _way(owner, operation):
        inputs = [tensors[place] for place in step.inputs]
        outputs = [tensors[place] for place in step.outputs]
        owner.execute(step, (), step.alpha, inputs, step.beta, outputs)
    return made[: operation.num_results]


_chosen: WeakKeyDictionary[Handle, dict[Operation, tuple[Step, ...]]] = WeakKeyDictionary()
"""The way that each handle goes, of operations that have several."""


def _way(owner: Handle, operation: Operation) -> tuple[Step, ...]:
    """The steps that a handle takes: of several ways the fastest by estimate."""
    ways = operation.ways
    return ways[0] if len(ways) == 1 else _fastest(owner, operation)


def _fastest(owner: Handle, operation: Operation) -> tuple[Step, ...]:
    chosen = _chosen.get(owner)
    if chosen is None:
        chosen = _chosen[owner] = {}
    way = chosen.get(operation)
    if way is None:
        if len(chosen) >= _MOST_CHOICES:
            del chosen[next(iter(chosen))]
        way = chosen[operation] = min(
            operation.ways, key=lambda way: sum(owner.estimated_seconds(step.problem) for step in way)
        )
    return way


def _compute_with_borrowed(
    describe: Callable[..., Operation], settings: tuple[Any, ...], operands: Sequence[Operand | None], optional: int
) -> list[Tensor]:
    """As `compute`, with tensors of the handle's own in place of what is none."""
    owner = owner_of(*operands)
    tensors: list[Tensor | None] = []
    borrowed: list[Tensor] = []
    copied: set[int] = set()
    try:
        for place, operand in enumerate(operands):
            if operand is None or isinstance(operand, Tensor):
                tensors.append(operand)
                continue
            shared = _shared(owner, operand)
            if shared is None:
                copied.add(place)
                tensors.append(_copied(owner, operand))
            else:
                borrowed.append(shared)
                tensors.append(shared)
        if copied:
            descriptors = [None if tensor is None else tensor.descriptor for tensor in tensors]
            lost = copied & _described(describe, settings, descriptors).writes
            if lost:
                what = ", ".join(str(descriptors[place]) for place in sorted(lost))
                raise BadParamError(f"{what} would be updated in place, but memory of this kind cannot be shared")
        return compute(describe, settings, *tensors, optional=optional)
    finally:
        if borrowed:
            owner.retire(borrowed)


def check_not_in_place(inplace: bool) -> None:
    """Refuse what PyTorch would write over its input.

    Raises:
        BadParamError: that is asked for.
    """
    if inplace:
        raise BadParamError(
            "inplace is True, but results are always new tensors; dnncore.ops writes into tensors of yours"
        )


def owner_of(*operands: Operand | None) -> Handle:
    """The handle of our tensors among the operands, else the calling thread's own for the device that they are on.

    Raises:
        BadParamError: operands are of different devices or handles.
    """
    owner: Handle | None = None
    places: set[str] = set()
    for operand in operands:
        if isinstance(operand, Tensor):
            if owner is None:
                owner = operand.handle
                places.add(owner.info.name)
            elif operand.handle is not owner:
                raise _two_handles(owner, operand.handle)
        elif operand is not None:
            places.add(_device_of(operand))
    if len(places) > 1:
        raise BadParamError(
            f"operands are on {' and on '.join(sorted(places))}; all must be on one device: `handle.upload(array)` copies an "
            "array from the host to that of a handle"
        )
    return handle(places.pop()) if owner is None else owner


def _two_handles(one: Handle, other: Handle) -> BadParamError:
    return BadParamError(
        f"operands belong to two handles, on {one.info.name} and on {other.info.name}; all must belong to one: "
        "`handle.upload(tensor.numpy())` copies, and on one device `handle.from_dlpack(tensor)` shares"
    )


def _device_of(operand: Operand) -> str:
    """The name of the device that an operand of another library is on."""
    if not hasattr(operand, "__dlpack__") or not hasattr(operand, "__dlpack_device__"):
        raise BadParamError(
            f"{type(operand).__name__} is no tensor; give a dnncore.Tensor, a NumPy array, or what has __dlpack__"
        )
    kind, index = operand.__dlpack_device__()
    if kind in (DeviceType.CPU, DeviceType.CUDA_HOST):
        return "cpu"
    if kind in (DeviceType.CUDA, DeviceType.CUDA_MANAGED):
        return f"cuda:{int(index)}"
    raise BadParamError(
        f"{type(operand).__name__} is on DLPack device ({int(kind)}, {int(index)}), neither cpu nor cuda"
    )


def _shared(owner: Handle, operand: Operand) -> Tensor | None:
    """The operand's own memory; None where it is host memory that we cannot take as it is."""
    try:
        return owner.from_dlpack(operand)
    except (BadParamError, BufferError):
        if owner.device.dlpack_device != CPU:
            raise
        return None


def _copied(owner: Handle, operand: Any) -> Tensor:
    """Host memory that has a negative stride or is not aligned, bfloat16 of NumPy, or integers that have to become int32."""
    array = operand if isinstance(operand, np.ndarray) else np.from_dlpack(operand)
    if array.dtype.kind in "iu" and array.dtype.name not in _INTEGERS:
        array = _as_int32(array)
    descriptor = TensorDescriptor.packed(array.shape, DType.of(array.dtype))
    tensor = owner.new(descriptor)
    tensor.assign(array.astype(descriptor.dtype.numpy, copy=False))
    return tensor


_INTEGERS = (DType.INT8.value, DType.INT32.value)


def _as_int32(array: np.ndarray) -> np.ndarray:
    limits = np.iinfo(np.int32)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        raise BadParamError(f"an array of {array.dtype} has elements beyond int32, which is our widest integer")
    return array.astype(np.int32)
