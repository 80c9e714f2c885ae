"""The binder: the only code that turns calls into work on a device.

What does not change from launch to launch is done once, when calls are bound: kernels are loaded, parameter blocks laid out, the
fields that take factors and addresses gathered into runs that one `pack_into` writes. A launch then is a context check, a write and
a call of the driver for each kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import add, itemgetter
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

_Pick = Callable[[Sequence[Address]], Iterable[Address]]

_FIELD_BYTES = 8


def bind(calls: Calls, kernels: Kernels, context: Context) -> Launch:
    """Make a launch of calls.

    Raises:
        CompilationError: a kernel does not compile.
        BackendUnavailableError: there is neither a compiler nor a prebuilt cubin.
    """
    steps = [_step(call, kernels) for call in calls]
    handle, current = context.handle, driver.context_getter()

    def launch(stream: Stream, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
        assert isinstance(stream, CudaStream)
        queue = stream.handle
        if context.forked or int(current()[1]) != handle:  # in a forked child the driver may not even be asked
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
    enqueue, success = launcher.call, launcher.success
    last, arguments = -1, launcher.arguments(0)
    runs = _runs(call)
    plain = _plain(runs)

    if plain is not None:  # nearly every kernel: one write, straight from the addresses
        start, pack, pick = plain
        block = launcher.block

        def step(queue: int, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
            nonlocal last, arguments
            pack(block, start, alpha, beta, *pick(addresses))
            if queue != last:
                last, arguments = queue, launcher.arguments(queue)
            (status,) = enqueue(*arguments)
            if status is not success:
                raise CudaCallError("cuLaunchKernel", status)

        return step

    writes = [_write(launcher.block, run) for run in runs]

    def step_of_many_writes(queue: int, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
        nonlocal last, arguments
        for write in writes:
            write(alpha, beta, addresses)
        if queue != last:
            last, arguments = queue, launcher.arguments(queue)
        (status,) = enqueue(*arguments)
        if status is not success:
            raise CudaCallError("cuLaunchKernel", status)

    return step_of_many_writes


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


def _plain(runs: list[tuple[int, list[_Source]]]) -> tuple[int, Callable[..., None], _Pick] | None:
    """Where the one run begins, what writes alpha, beta and addresses, and what picks these; None for other launches."""
    if len(runs) != 1 or runs[0][1][:2] != ["alpha", "beta"]:
        return None
    start, (_alpha, _beta, *places) = runs[0]
    pick = _picker(places)
    return None if pick is None else (start, Struct(f"<dd{len(places)}Q").pack_into, pick)


def _picker(sources: list[_Source]) -> _Pick | None:
    """What takes places out of the addresses of a launch; None where not all sources are places."""
    places = [source for source in sources if isinstance(source, Place)]
    if not places or len(places) != len(sources):
        return None
    operands, offsets = [place.operand for place in places], [place.offset_bytes for place in places]
    # Of one index itemgetter gives no tuple.
    pick = itemgetter(*operands) if len(operands) > 1 else itemgetter(slice(operands[0], operands[0] + 1 or None))
    return (lambda addresses: map(add, pick(addresses), offsets)) if any(offsets) else pick


def _write(block: bytearray, run: tuple[int, list[_Source]]) -> Callable[[float, float, Sequence[Address]], None]:
    """What writes a run of fields."""
    start, sources = run
    pick = _picker(sources)
    if pick is not None:
        pack_addresses = Struct(f"<{len(sources)}Q").pack_into
        return lambda _alpha, _beta, addresses: pack_addresses(block, start, *pick(addresses))
    pack = Struct("<" + "".join("Q" if isinstance(source, Place) else "d" for source in sources)).pack_into

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
