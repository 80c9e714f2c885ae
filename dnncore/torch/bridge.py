"""From PyTorch's tensors to our launches: the short way, which costs the host less than PyTorch's own dispatcher.

An operation is planned once for each form of its tensors (element types, extents, strides): what was planned holds the formats of
the results and what to launch, and is found by that form from then on. A layer mostly gets tensors of the form that it had before:
then one comparison in C++ takes the place of a key that Python puts together, in a third of the time.

Work is enqueued on PyTorch's current stream, and PyTorch's allocator hands memory out in the order of that stream: so a tensor may
be freed as soon as its launch is enqueued. While that stream is being captured (`torch.cuda.graph`), the launches become part of a
graph, and their scratch memory the graph's, as results are. Else many launches of one operation are one launch of a graph of our
own wherever the allocator hands out the memory of an earlier call again (`dnncore.cuda.runtime.replays`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dnncore.backend import TICKET_BYTES, Address, Enqueue
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.per_thread import PerThread
from dnncore.program import SCRATCH, WiredStep
from dnncore.torch.dtypes import DTYPES, TORCH_DTYPES
from dnncore.torch.operation import Behind, Composite, Operation, Place, Scratch, Way

__all__ = ["Door", "chosen_way", "current_handle", "fastest_way", "operate"]

_MOST_OPERATIONS = 4096
"""That a thread remembers: shapes may be new ones at every call."""

_Describes = Callable[..., Operation | Composite]
"""describe(*settings, *descriptors) says what is to be done to tensors of these forms."""

_Run = Callable[[Sequence[torch.Tensor]], Sequence[Any]]
"""run(given tensors) -> results: makes them and enqueues what computes them. Behind them are the way's notes."""

_Fits = Callable[..., bool]
"""fits(*tensors): whether they are of the form that something was planned for."""

_Recent = tuple[int | None, tuple[Any, ...], int, _Fits, _Run]
"""What somebody called last: stream, settings, number and form of the tensors, and what that came to."""

_Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""empty(shape, strides, dtype) -> a tensor."""


class Door:
    """A thread's handle for a device and a stream of PyTorch's. Owned by one thread.

    Args:
        device: What PyTorch calls the device.
        handle: For that device and stream.
    """

    def __init__(self, device: torch.device, handle: Handle) -> None:
        self.handle = handle
        self._device = device
        self._is_captured = _capture_on(device)
        self._reserve = None if self._is_captured is None else _reserve_on(device, handle, self._is_captured)
        self._address: Callable[[torch.Tensor], Address] = _bytes if device.type == "cpu" else torch.Tensor.data_ptr
        self._empty = _empty_on(device)

    def prepare(
        self,
        operation: _Describes,
        settings: tuple[Any, ...],
        tensors: Sequence[torch.Tensor | None],
    ) -> _Run:
        """Plan an operation on tensors of a form that is new."""
        for tensor in tensors:
            if tensor is not None and tensor.device != self._device:
                raise BadParamError(f"tensors are on {tensor.device} and on {self._device}; all must be on one device")
        described = operation(*settings, *(t if t is None else _describe(t) for t in tensors))
        way = chosen_way(self.handle, described)
        steps = _wired(self.handle, way, tensors)
        enqueue = self.handle.wire(steps, self._reserve, way.scratch_bytes, self._is_captured)
        formats = [(each.shape, each.strides, TORCH_DTYPES[each.dtype]) for each in way.results]
        return _run(enqueue, formats, way.notes, self._empty, self._address)

    def abandon(self) -> None:
        """Give the handle back, for a thread that has ended."""
        self.handle.abandon()


def _wired(handle: Handle, way: Way, tensors: Sequence[torch.Tensor | None]) -> list[WiredStep]:
    """A way to compute an operation, on the addresses of the given tensors, but for None, and of those that it makes."""
    places: dict[int, int] = {}
    for place in range(len(tensors) + len(way.results)):
        if place >= len(tensors) or tensors[place] is not None:
            places[place] = len(places)

    def operand(each: Place) -> tuple[int, int]:
        if isinstance(each, Scratch):
            return SCRATCH, each.offset
        return (places[each.place], each.offset) if isinstance(each, Behind) else (places[each], 0)

    return [
        WiredStep(handle.plan(step.problem), step.alpha, step.beta, tuple(map(operand, step.operands)))
        for step in way.steps
    ]


def chosen_way(handle: Handle, described: Operation | Composite) -> Way:
    """The way that an operation takes, or each of several in a row."""
    if isinstance(described, Composite):
        return described.compose(lambda operation: fastest_way(handle, operation.ways))
    return fastest_way(handle, described.ways)


def fastest_way(handle: Handle, ways: Sequence[Way]) -> Way:
    """By estimate, without compiling anything; one that is the only way is not asked what it takes."""
    return (
        ways[0]
        if len(ways) == 1
        else min(ways, key=lambda way: sum(handle.estimated_seconds(step.problem) for step in way.steps))
    )


def _run(
    enqueue: Enqueue,
    formats: Sequence[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]],
    notes: tuple[Any, ...],
    empty: _Empty,
    address: Callable[[torch.Tensor], Address],
) -> _Run:
    """Makers of one, two or three results are written out: a loop over them takes as long as making one."""

    def run(tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
        results = [empty(*each) for each in formats]
        enqueue([*map(address, tensors), *map(address, results)])
        return [*results, *notes] if notes else results

    if notes or not 1 <= len(formats) <= 3:
        return run
    shape, strides, dtype = formats[0]

    def run_of_one(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        result = empty(shape, strides, dtype)
        enqueue([*map(address, tensors), address(result)])
        return (result,)

    if len(formats) == 1:
        return run_of_one
    second_shape, second_strides, second_dtype = formats[1]

    def run_of_two(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        result, second = empty(shape, strides, dtype), empty(second_shape, second_strides, second_dtype)
        enqueue([*map(address, tensors), address(result), address(second)])
        return result, second

    if len(formats) == 2:
        return run_of_two
    third_shape, third_strides, third_dtype = formats[2]

    def run_of_three(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        result, second = empty(shape, strides, dtype), empty(second_shape, second_strides, second_dtype)
        third = empty(third_shape, third_strides, third_dtype)
        enqueue([*map(address, tensors), address(result), address(second), address(third)])
        return result, second, third

    return run_of_three


def _empty_on(device: torch.device) -> _Empty:
    """What makes tensors on a device: on CUDA what PyTorch's compiler has for it, in half the time of `torch.empty_strided`."""

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    if device.type != "cuda" or not torch.cuda._is_compiled():
        return empty
    try:
        quick: _Empty = torch._C._dynamo.guards._empty_strided_cuda
    except AttributeError:  # a PyTorch that has none
        return empty
    if torch.cuda.device_count() == 1:
        return quick
    current, index = torch._C._cuda_getDevice, device.index

    def quick_on_current(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return quick(shape, strides, dtype) if current() == index else empty(shape, strides, dtype)

    return quick_on_current


def _capture_on(device: torch.device) -> Callable[[], bool] | None:
    """What tells whether launches on a device become part of somebody's graph now; None where there is no such thing."""
    if device.type != "cuda" or not torch.cuda._is_compiled():
        return None
    is_captured: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
    return is_captured


def _reserve_on(device: torch.device, handle: Handle, is_captured: Callable[[], bool]) -> Callable[[int], Address]:
    """Where launches on a device have scratch memory: the handle's, but in somebody's graph memory that the graph keeps.

    The handle's may be given back for a larger block while a graph is still replayed, and be used by other launches meanwhile.
    """
    own = handle.reserve

    def reserve(nbytes: int) -> Address:
        return _reserve_in_graph(device, nbytes) if is_captured() else own(nbytes)

    return reserve


def _reserve_in_graph(device: torch.device, nbytes: int) -> Address:
    """Scratch memory of the graph that is being captured: its pool hands it out again to what is captured behind this launch."""
    block = torch.empty(TICKET_BYTES + nbytes, dtype=torch.uint8, device=device)
    block[:TICKET_BYTES].zero_()
    return block.data_ptr() + TICKET_BYTES


class _Thread(PerThread[tuple[int, int | None], Door]):
    """What the calling thread has: doors by device and stream, in `seen` what was launched through them, by its form, and in
    `recent` what was launched last, by who called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[Any, ...], _Run] = {}
        self.recent: dict[tuple[_Describes, int], _Recent] = {}

    def prepare(
        self,
        key: tuple[Any, ...],
        place: tuple[int, int | None],
        operation: _Describes,
        settings: tuple[Any, ...],
        tensors: Sequence[torch.Tensor | None],
    ) -> _Run:
        """Plan an operation that is called in this form for the first time, and remember it by its key."""
        first = tensors[0]
        assert first is not None
        if not first.is_cuda and not first.is_cpu:
            raise _without_door(first.device)
        door = self.opened.get(place) or _open(place)
        run = door.prepare(operation, settings, tensors)
        _remember(self.seen, key, run)
        return run

    def note(
        self,
        caller: tuple[_Describes, int],
        stream: int | None,
        settings: tuple[Any, ...],
        tensors: Sequence[torch.Tensor | None],
        run: _Run,
    ) -> None:
        """Note what a caller's operation came to, and from the second time in a row on, by which form it is known: to make what
        compares that takes as long as some launches.
        """
        last = self.recent.get(caller)
        again = last is not None and last[-1] is run and last[-2] is _never
        fits = _comparison(tensors) if again else _never
        _remember(self.recent, caller, (stream, settings, len(tensors), fits, run))


def _remember(found: dict[Any, Any], key: Any, value: Any) -> None:
    if len(found) >= _MOST_OPERATIONS and key not in found:
        del found[next(iter(found))]
    found[key] = value


def _never(*_tensors: torch.Tensor) -> bool:
    return False


_TensorGuards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
"""What PyTorch's compiler asks whether a function was compiled for such tensors: class, device, element type, extents, strides,
whether a gradient is wanted, and what the thread does with calls (autocast, inference mode). A PyTorch may have none.
"""


def _comparison(tensors: Sequence[torch.Tensor | None]) -> _Fits:
    """Whether other tensors are of the form of these; of some that are missing, nothing is."""
    if _TensorGuards is None or any(tensor is None for tensor in tensors):
        return _never
    fits: _Fits = _TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return fits


_thread = _Thread()

_CPU = (-1, None)
"""Where the CPU's door is among a thread's: -1 is what PyTorch has as its index."""

_current_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream if torch.cuda._is_compiled() else lambda _: 0
"""The CUstream of PyTorch's current stream, without the object around it, which takes fifty times as long."""


def _open(key: tuple[int, int | None]) -> Door:
    index, stream = key
    name = "cpu" if key == _CPU else f"cuda:{index}"
    door = _thread.opened[key] = Door(torch.device(name), Handle(name, stream=stream))
    return door


def _without_door(device: torch.device) -> BadParamError:
    return BadParamError(f"tensors on {device} are not supported; move them to the CPU or to a CUDA device")


def current_handle(device: torch.device) -> Handle:
    """The calling thread's handle for a device: on CUDA for PyTorch's current stream there.

    Raises:
        BadParamError: a device that is neither the CPU nor CUDA.
    """
    if device.type not in ("cpu", "cuda"):
        raise _without_door(device)
    index = torch.empty(0, device=device).get_device()
    place = _CPU if device.type == "cpu" else (index, _current_stream(index))
    return (_thread.opened.get(place) or _open(place)).handle


def _describe(tensor: torch.Tensor) -> TensorDescriptor:
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise BadParamError(f"dtype {tensor.dtype} is not supported; use one of {', '.join(map(str, DTYPES))}")
    return TensorDescriptor(dtype, tuple(tensor.shape), tensor.stride())


def operate(
    operation: _Describes,
    settings: tuple[Any, ...],
    tensors: Sequence[torch.Tensor | None],
    caller: int | None = None,
) -> Sequence[Any]:
    """Enqueue an operation on PyTorch's current stream.

    Args:
        operation: operation(*settings, *descriptors) says what is to be done; called once for each form of its arguments.
        settings: What it is called with, hashable.
        tensors: What is read, and what is written beside the results; the first is there and says the device, others may be None.
        caller: Who calls, where that is likely to call with tensors of the same form again: the `id` of a layer's parameter, or of
            its settings. All else is compared, so it may become the `id` of something else. None for callers of many forms.

    Returns:
        The results, in the operation's order, and its notes.

    Raises:
        BadParamError: the tensors are on different devices, or do not fit together.
        NotSupportedError: nothing fits.
    """
    # Each line here is paid for at every call, in front of a kernel that may take less time itself.
    first = tensors[0]
    assert first is not None
    index = first.get_device()
    stream = _current_stream(index) if index >= 0 else None
    if caller is None:
        return _planned(stream, index, operation, settings, tensors)(_given(tensors))
    last = _thread.recent.get((operation, caller))
    if last is not None:
        its_stream, its_settings, count, fits, run = last
        if its_stream == stream and its_settings == settings and count == len(tensors) and fits(*tensors):
            return run(tensors)
    run = _planned(stream, index, operation, settings, tensors)
    _thread.note((operation, caller), stream, settings, tensors, run)
    return run(_given(tensors))


def _given(tensors: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _planned(
    stream: int | None,
    index: int,
    operation: _Describes,
    settings: tuple[Any, ...],
    tensors: Sequence[torch.Tensor | None],
) -> _Run:
    """What an operation on tensors of this form comes to, on a stream of a CUDA device; None and -1 for the CPU."""
    form: list[Any] = [stream, operation, settings]
    if stream is None:
        form += [t if t is None else (t.dtype, t.shape, t.stride(), t.device) for t in tensors]
    else:
        form.append(
            next(tensor.is_cuda for tensor in tensors if tensor is not None)
        )  # other accelerators have indices, too
        for tensor in tensors:
            form.append(
                tensor if tensor is None else (tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device())
            )
    key = tuple(form)
    return _thread.seen.get(key) or _thread.prepare(key, (index, stream), operation, settings, tensors)


def _bytes(tensor: torch.Tensor) -> Address:
    """The bytes from the first element of a CPU tensor to the end of the last."""
    reach = 0
    if tensor.numel():
        reach = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    raw: np.ndarray = tensor.detach().as_strided((reach,), (1,)).view(torch.uint8).numpy()
    return raw
