"""The binder: the only code that turns calls into work on a device.

What does not change from launch to launch is done once, when calls are bound: kernels are loaded, parameter blocks laid out, the
fields that take factors and addresses gathered into runs that one `pack_into` writes. A launch then costs the host a write and a
call of the driver for each kernel.

    values     alpha  beta  address 0  address 1  ...  workspace       of `bind`
                            address 0  address 1  ...  workspace       of `wire`, whose factors are in the blocks already
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from struct import Struct
from typing import Any

from dnncore.backend import Address, Enqueue, Launch, Stream
from dnncore.cuda.calls import Call, Calls, Copy, KernelCall, Memset, Place, WhereAligned
from dnncore.cuda.runtime import driver
from dnncore.cuda.runtime.context import Context
from dnncore.cuda.runtime.driver import CudaCallError, Launcher
from dnncore.cuda.runtime.kernels import Kernels
from dnncore.cuda.runtime.stream import CudaStream

__all__ = ["bind", "wire"]

_Values = Sequence[Any]
"""Factors, where a launch has some, and addresses."""

_Step = Callable[[int, _Values], None]
"""step(CUstream, values) enqueues one call."""

_FACTORS = 2
"""Values in front of the addresses of a launch that has factors: alpha and beta."""

_FIELD_BYTES = 8
"""Of a factor and of an address."""

_LARGEST_GAP_BYTES = 128
"""Of zeros that are written along with the fields around them, which takes less time than another write."""


def bind(calls: Calls, kernels: Kernels, context: Context) -> Launch:
    """Make a launch of calls.

    Raises:
        CompilationError: a kernel does not compile.
        BackendUnavailableError: there is neither a compiler nor a prebuilt cubin.
    """
    run = _run(calls, kernels, context, _FACTORS)

    def launch(stream: Stream, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
        assert isinstance(stream, CudaStream)
        run(stream.handle, (alpha, beta, *addresses))

    return launch


def wire(calls: Calls, kernels: Kernels, context: Context, stream: CudaStream) -> Enqueue:
    """Make one function of calls whose factors are fixed (`calls.rewired`), on one stream.

    Raises:
        CompilationError: a kernel does not compile.
        BackendUnavailableError: there is neither a compiler nor a prebuilt cubin.
    """
    return partial(_run(calls, kernels, context, 0), stream.handle)


def _run(calls: Calls, kernels: Kernels, context: Context, num_factors: int) -> _Step:
    """What enqueues calls one after the other, whichever context is current."""
    steps = [_step(call, kernels, num_factors) for call in calls]
    handle, current = context.handle, driver.context_getter()
    # A kernel that cannot be launched in the context that is current says so, and nothing has happened: to ask before would take a
    # third of what is Python's part of a launch. Anything else might run there, in the order of a stream of that context.
    asks = not all(_launches_only(call) for call in calls)

    def in_context(queue: int, values: _Values) -> None:
        with context:
            for step in steps:
                step(queue, values)

    def run(queue: int, values: _Values) -> None:
        if context.forked or (
            asks and int(current()[1]) != handle
        ):  # in a forked child the driver may not even be asked
            in_context(queue, values)
            return
        try:
            for step in steps:
                step(queue, values)
        except CudaCallError as error:
            if not error.of_context or int(current()[1]) == handle:
                raise context.mapped(error) from error
            in_context(queue, values)

    return run


def _launches_only(call: Call) -> bool:
    if isinstance(call, WhereAligned):
        return all(_launches_only(each) for each in (*call.aligned, *call.otherwise))
    return isinstance(call, KernelCall)


def _step(call: Call, kernels: Kernels, num_factors: int) -> _Step:
    if isinstance(call, KernelCall):
        return _kernel(call, kernels, num_factors)
    if isinstance(call, WhereAligned):
        return _where_aligned(call, kernels, num_factors)
    if isinstance(call, Memset):
        return _memset(call, num_factors)
    return _copy(call, num_factors)


def _kernel(call: KernelCall, kernels: Kernels, num_factors: int) -> _Step:
    function = kernels.function(call.unit, call.shared_bytes)
    launcher = Launcher(function, call.grid, call.block, call.params, call.shared_bytes)
    block, launch, success = launcher.block, launcher.call, launcher.success
    last, arguments = -1, launcher.arguments(0)
    writes = _writes(call, num_factors)

    def step(queue: int, values: _Values) -> None:
        nonlocal last, arguments
        for pack, start, pick in writes:
            pack(block, start, *pick(values))
        if queue != last:
            last, arguments = queue, launcher.arguments(queue)
        (status,) = launch(*arguments)
        if status is not success:
            raise CudaCallError("cuLaunchKernel", status)

    return step


def _writes(call: KernelCall, num_factors: int) -> list[tuple[Callable[..., None], int, Callable[[_Values], _Values]]]:
    """For each run of fields which one write fills: what packs, where the run begins, what picks its values.

    A run goes on over a gap that holds zeros, as the fields of operands do that are not there.
    """
    fields = {slot.field: ("Q", _index(slot.place, num_factors), slot.place.offset_bytes) for slot in call.slots}
    for index, field in enumerate((call.alpha, call.beta)):
        if field is not None:
            assert num_factors, "factors have to be fixed"
            fields[field] = ("d", index, 0)
    runs: list[tuple[int, str, list[tuple[int, int]]]] = []
    end = 0
    for field, (letter, index, offset) in sorted(fields.items()):
        gap = field - end
        if runs and gap <= _LARGEST_GAP_BYTES and not any(call.params[end:field]):
            start, letters, sources = runs.pop()
            runs.append((start, f"{letters}{gap}x{letter}", [*sources, (index, offset)]))
        else:
            runs.append((field, letter, [(index, offset)]))
        end = field + _FIELD_BYTES
    return [(Struct(f"<{letters}").pack_into, start, _picker(sources)) for start, letters, sources in runs]


def _index(place: Place, num_factors: int) -> int:
    """Of a place's address among the values; the workspace's counts from their end."""
    return place.operand if place.operand < 0 else place.operand + num_factors


def _picker(sources: Sequence[tuple[int, int]]) -> Callable[[_Values], _Values]:
    """What takes values by their indices, each with what is to be added to it."""
    if any(offset for _, offset in sources):
        return lambda values: [values[index] + offset for index, offset in sources]
    indices = [index for index, _ in sources]
    # Of one index itemgetter gives no tuple.
    return itemgetter(*indices) if len(indices) > 1 else itemgetter(slice(indices[0], indices[0] + 1 or None))


def _where_aligned(call: WhereAligned, kernels: Kernels, num_factors: int) -> _Step:
    are_aligned = _alignment_check(call, num_factors)
    aligned, otherwise = ([_step(each, kernels, num_factors) for each in way] for way in (call.aligned, call.otherwise))

    def step(queue: int, values: _Values) -> None:
        for each in aligned if are_aligned(values) else otherwise:
            each(queue, values)

    return step


def _alignment_check(call: WhereAligned, num_factors: int) -> Callable[[_Values], bool]:
    wanted = [(_index(place, num_factors), place.offset_bytes, multiple) for place, multiple in call.alignments]
    largest = max(multiple for _, _, multiple in wanted)
    if any(multiple != largest or offset % multiple for _, offset, multiple in wanted) or largest & (largest - 1):
        return lambda values: all((values[index] + offset) % multiple == 0 for index, offset, multiple in wanted)
    pick, mask = _picker([(index, 0) for index, _, _ in wanted]), largest - 1

    def are_aligned(values: _Values) -> bool:
        bits = 0
        for address in pick(values):
            bits |= address
        return not bits & mask

    return are_aligned


def _memset(call: Memset, num_factors: int) -> _Step:
    index, offset = _index(call.place, num_factors), call.place.offset_bytes

    def step(queue: int, values: _Values) -> None:
        driver.memset(queue, values[index] + offset, call.value, call.nbytes)

    return step


def _copy(call: Copy, num_factors: int) -> _Step:
    to, of = (_index(place, num_factors) for place in (call.destination, call.source))
    to_offset, of_offset = call.destination.offset_bytes, call.source.offset_bytes

    def step(queue: int, values: _Values) -> None:
        driver.copy(queue, values[to] + to_offset, values[of] + of_offset, call.nbytes)

    return step
