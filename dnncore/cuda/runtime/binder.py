"""The binder: the only code that turns calls into work on a device.

What does not change from launch to launch is done once, when calls are bound: kernels are loaded, parameter blocks laid out, the
fields that take factors and addresses gathered into runs that one `pack_into` writes. A launch then is a context check, a write and
a call of the driver for each kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.calls import Call, Calls, Copy, KernelCall, Memset, Place, WhereAligned
from dnncore.cuda.runtime import driver
from dnncore.cuda.runtime.context import Context
from dnncore.cuda.runtime.driver import CudaCallError, Launcher
from dnncore.cuda.runtime.kernels import Kernels
from dnncore.cuda.runtime.stream import CudaStream

__all__ = ["bind"]

_Step = Callable[[int, float, float, Sequence[Address]], None]
"""step(CUstream, alpha, beta, addresses) enqueues one call; the context is current."""

_FIELD_BYTES = 8


def bind(calls: Calls, kernels: Kernels, context: Context) -> Launch:
    """Make a launch of calls.

    Raises:
        CompilationError: a kernel does not compile.
        BackendUnavailableError: there is neither a compiler nor a prebuilt cubin.
    """
    steps = [_step(call, kernels) for call in calls]
    handle = context.handle
    current_context = driver.current_context

    def launch(stream: Stream, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
        assert isinstance(stream, CudaStream)
        queue = stream.handle
        if current_context() != handle:
            with context:
                for step in steps:
                    step(queue, alpha, beta, addresses)
            return
        try:
            for step in steps:
                step(queue, alpha, beta, addresses)
        except CudaCallError as error:
            raise context.mapped(error) from error

    return launch


def _step(call: Call, kernels: Kernels) -> _Step:
    if isinstance(call, KernelCall):
        return _kernel(call, kernels)
    if isinstance(call, WhereAligned):
        return _where_aligned(call, kernels)
    if isinstance(call, Memset):
        return _memset(call)
    return _copy(call)


def _kernel(call: KernelCall, kernels: Kernels) -> _Step:
    function = kernels.function(call.unit, call.shared_bytes)
    launcher = Launcher(function, call.grid, call.block, call.params, call.shared_bytes)
    writes = [_write(launcher.block, run) for run in _runs(call)]
    enqueue = launcher.launch
    if len(writes) == 1:
        (write,) = writes

        def step(queue: int, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
            write(alpha, beta, addresses)
            enqueue(queue)

        return step

    def step_of_many(queue: int, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
        for write in writes:
            write(alpha, beta, addresses)
        enqueue(queue)

    return step_of_many


_Source = str | Place
"""What a field of eight bytes takes: "alpha", "beta" or an address."""


def _runs(call: KernelCall) -> list[tuple[int, list[_Source]]]:
    """The fields that change, those without gaps between them together: (bytes from the block's beginning, what goes there)."""
    fields: dict[int, _Source] = {slot.field: slot.place for slot in call.slots}
    if call.alpha is not None:
        fields[call.alpha] = "alpha"
    if call.beta is not None:
        fields[call.beta] = "beta"
    runs: list[tuple[int, list[_Source]]] = []
    for field, source in sorted(fields.items()):
        if runs and runs[-1][0] + _FIELD_BYTES * len(runs[-1][1]) == field:
            runs[-1][1].append(source)
        else:
            runs.append((field, [source]))
    return runs


def _write(block: bytearray, run: tuple[int, list[_Source]]) -> Callable[[float, float, Sequence[Address]], None]:
    """What writes a run of fields."""
    start, sources = run
    pack = Struct("<" + "".join("Q" if isinstance(source, Place) else "d" for source in sources)).pack_into
    places = [source for source in sources if isinstance(source, Place)]
    factors = [source for source in sources if not isinstance(source, Place)]
    in_front = sources[: len(factors)] == factors
    if in_front and factors in ([], ["alpha", "beta"]) and places and not any(p.offset_bytes for p in places):
        operands = [place.operand for place in places]
        # Of one index itemgetter gives no tuple.
        pick = itemgetter(*operands) if len(operands) > 1 else itemgetter(slice(operands[0], operands[0] + 1 or None))
        if factors:
            return lambda alpha, beta, addresses: pack(block, start, alpha, beta, *pick(addresses))
        return lambda _alpha, _beta, addresses: pack(block, start, *pick(addresses))

    def write(alpha: float, beta: float, addresses: Sequence[Address]) -> None:
        values = [
            addresses[source.operand] + source.offset_bytes
            if isinstance(source, Place)
            else alpha
            if source == "alpha"
            else beta
            for source in sources
        ]
        pack(block, start, *values)

    return write


def _where_aligned(call: WhereAligned, kernels: Kernels) -> _Step:
    wanted = [(place.operand, place.offset_bytes, multiple) for place, multiple in call.alignments]
    aligned = [_step(each, kernels) for each in call.aligned]
    otherwise = [_step(each, kernels) for each in call.otherwise]

    def step(queue: int, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
        steps = aligned
        for operand, offset, multiple in wanted:
            if (addresses[operand] + offset) % multiple:
                steps = otherwise
                break
        for each in steps:
            each(queue, alpha, beta, addresses)

    return step


def _memset(call: Memset) -> _Step:
    operand, offset = call.place.operand, call.place.offset_bytes

    def step(queue: int, _alpha: float, _beta: float, addresses: Sequence[Address]) -> None:
        driver.memset(queue, addresses[operand] + offset, call.value, call.nbytes)

    return step


def _copy(call: Copy) -> _Step:
    to, of = call.destination, call.source

    def step(queue: int, _alpha: float, _beta: float, addresses: Sequence[Address]) -> None:
        destination, source = addresses[to.operand] + to.offset_bytes, addresses[of.operand] + of.offset_bytes
        driver.copy(queue, destination, source, call.nbytes)

    return step
