"""The binder: turns calls into launches; what makes nodes of a CUDA graph of them is `graph`.

What does not change from launch to launch is done once, when calls are bound: kernels are loaded, parameter blocks laid out, fields
that take factors and addresses gathered into runs that one `pack_into` writes. What is left is written out as a function of Python,
since a launch takes less time than the loops and calls that would interpret its calls:

    def launch(v):                                                      # v: addresses, the workspace's last
        if ((v[0]) | (v[2])) & 15:
            elsewhere0(v)
        else:
            pack0(block0, 16, v[0], v[2] + n0, v[-1])
            (status,) = enqueue0(*arguments0)
            ...

What addresses that are not aligned take is written out when such addresses come: mostly they never do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from textwrap import indent
from types import CodeType
from typing import Any

from dnncore.backend import Address, Enqueue, Launch, Stream
from dnncore.cuda.calls import Call, Calls, Copy, KernelCall, MapSlot, Memset, Place, WhereAligned
from dnncore.cuda.runtime import driver, driver_tensor_map
from dnncore.cuda.runtime.context import Context
from dnncore.cuda.runtime.driver import CudaCallError
from dnncore.cuda.runtime.driver_launch import Launcher
from dnncore.cuda.runtime.kernels import Kernels
from dnncore.cuda.runtime.stream import CudaStream
from dnncore.cuda.tensor_map import TENSOR_MAP_BYTES

__all__ = ["bind", "wire"]

_FIELD_BYTES = 8
"""Of a factor and of an address."""

_MAPS_KEPT = 16
"""Of each tensor map as it is encoded for an address: as many as there are sets of buffers that take turns, and some more."""

_LARGEST_GAP_BYTES = 128
"""Of zeros that are written along with the fields around them, which takes less time than another write."""
_ZEROS = bytes(_LARGEST_GAP_BYTES)


def bind(calls: Calls, kernels: Kernels, context: Context) -> Launch:
    """Make a launch of calls.

    Raises:
        CompilationError: a kernel does not compile.
        BackendUnavailableError: there is neither a compiler nor a prebuilt cubin.
    """
    script = _Script(calls, kernels, context, "v, alpha, beta")
    run, last = script.function(), -1

    def launch(stream: Stream, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
        nonlocal last
        assert isinstance(stream, CudaStream)
        queue = stream.handle
        if queue != last:
            script.use(queue)
            last = queue
        run(addresses, alpha, beta)

    return launch


def wire(calls: Calls, kernels: Kernels, context: Context, stream: CudaStream) -> Enqueue:
    """Make one function of calls whose factors are fixed (`calls.rewired`), on one stream.

    Raises:
        CompilationError: a kernel does not compile.
        BackendUnavailableError: there is neither a compiler nor a prebuilt cubin.
    """
    script = _Script(calls, kernels, context, "v")
    script.use(stream.handle)
    return script.function()


class _Script:
    """Calls as lines of Python, and what these name. Owned by one thread.

    Args:
        calls: What is to be enqueued.
        kernels: Where its kernels are.
        context: The one that the calls belong to.
        parameters: Of the function: "v", the addresses, and the factors where the calls take some.
    """

    def __init__(self, calls: Calls, kernels: Kernels, context: Context, parameters: str) -> None:
        self._kernels = kernels
        self._context = context
        self._parameters = parameters
        self._launchers: list[Launcher] = []
        self._others: list[_Elsewhere] = []
        self._num_numbers = 0
        self._names: dict[str, Any] = {"driver": driver, "CudaCallError": CudaCallError}
        self._lines = self._written(calls)
        # A kernel that cannot be launched in the context that is current says so, and nothing has happened: to ask before would
        # take as long as all else that is Python's part. Anything else might run there, in the order of a stream of that context.
        self._asks = not all(_launches_only(call) for call in calls)

    def use(self, queue: int) -> None:
        """Enqueue on a CUstream from now on."""
        self._names["queue"] = queue
        for number, launcher in enumerate(self._launchers):
            self._names[f"arguments{number}"] = launcher.arguments(queue)
        for other in self._others:
            other.use(queue)

    def function(self) -> Callable[..., None]:
        """What enqueues the calls, whichever context is current."""
        context, parameters = self._context, self._parameters
        asks = "or int(current()[1]) != context.handle" if self._asks else ""
        source = _source("\n".join(self._lines) or "pass", parameters, asks)

        def within(*arguments: Any) -> None:
            with context:
                self._names["bare"](*arguments)

        self._names |= {"context": context, "current": driver.context_getter(), "within": within}
        exec(_compiled(source), self._names)
        launch: Callable[..., None] = self._names["launch"]
        return launch

    def _written(self, calls: Calls) -> list[str]:
        lines: list[str] = []
        for call in calls:
            if isinstance(call, KernelCall):
                lines += self._kernel(call)
            elif isinstance(call, WhereAligned):
                name = f"elsewhere{len(self._others)}"
                self._names[name] = other = _Elsewhere(call, self._kernels, self._context, self._parameters)
                self._others.append(other)
                lines += [f"if {self._misaligned(call)}:", f"    {name}({self._parameters})", "else:"]
                lines += [f"    {line}" for line in self._written(call.aligned) or ["pass"]]
            elif isinstance(call, Memset):
                lines.append(
                    f"driver.memset(queue, {self._address(call.place)}, {call.value}, {self._number(call.nbytes)})"
                )
            elif isinstance(call, Copy):
                places = f"{self._address(call.destination)}, {self._address(call.source)}"
                lines.append(f"driver.copy(queue, {places}, {self._number(call.nbytes)})")
        return lines

    def _number(self, number: int) -> str:
        """A name for what differs from plan to plan of one algorithm, so that their lines are the same."""
        name = f"n{self._num_numbers}"
        self._num_numbers += 1
        self._names[name] = number
        return name

    def _address(self, place: Place) -> str:
        return f"v[{place.operand}]" + (f" + {self._number(place.offset_bytes)}" if place.offset_bytes else "")

    def _kernel(self, call: KernelCall) -> list[str]:
        number, names, lines = len(self._launchers), self._names, []
        function = self._kernels.function(call.unit, call.shared_bytes)
        launcher = Launcher(function, call.grid, call.block, call.params, call.shared_bytes, call.starts_early)
        self._launchers.append(launcher)
        names[f"block{number}"], names[f"enqueue{number}"], names["success"] = (
            launcher.block,
            launcher.call,
            launcher.success,
        )
        for start, letters, values in self._writes(call):
            pack = f"pack{number}_{start}"
            names[pack] = _pack_into(letters)
            lines.append(f"{pack}(block{number}, {start}, {', '.join(values)})")
        for slot in call.maps:
            name = f"map{number}_{slot.field}"
            names[name] = _map_writer(launcher.block, slot)
            lines.append(f"{name}({self._address(slot.place)})")
        lines += [
            f"(status,) = enqueue{number}(*arguments{number})",
            "if status is not success:",
            "    raise CudaCallError('cuLaunchKernel', status)",
        ]
        return lines

    def _misaligned(self, call: WhereAligned) -> str:
        """Whether an address is no multiple of what it should be one of, a power of two."""
        by_multiple: dict[int, list[str]] = {}
        for place, multiple in call.alignments:
            assert multiple & (multiple - 1) == 0, "an alignment is a power of two"
            left = Place(place.operand, place.offset_bytes % multiple)
            by_multiple.setdefault(multiple, []).append(f"({self._address(left)})")
        return " or ".join(f"({' | '.join(addresses)}) & {multiple - 1}" for multiple, addresses in by_multiple.items())

    def _writes(self, call: KernelCall) -> list[tuple[int, str, list[str]]]:
        """The runs of fields that one write fills: where each begins, its format, and its values.

        A run goes on over a gap that holds zeros, as the fields of operands do that are not there.
        """
        fields = [(field, "Q", self._address(place)) for field, place in call.slots]
        fields += [
            (field, "d", name) for name, field in (("alpha", call.alpha), ("beta", call.beta)) if field is not None
        ]
        runs: list[tuple[int, str, list[str]]] = []
        end = -_LARGEST_GAP_BYTES - 1  # of the last run
        for field, letter, value in sorted(fields):
            gap = field - end
            if gap <= _LARGEST_GAP_BYTES and call.params[end:field] == _ZEROS[:gap]:
                start, letters, values = runs[-1]
                runs[-1] = start, f"{letters}{gap}x{letter}", [*values, value]
            else:
                runs.append((field, letter, [value]))
            end = field + _FIELD_BYTES
        return runs


class _Elsewhere:
    """The calls for addresses that are not aligned, written out when such addresses come. Owned by one thread.

    Args:
        call: The choice that they are one way of.
        kernels: As of the script that makes it.
        context: Likewise.
        parameters: Likewise.
    """

    def __init__(self, call: WhereAligned, kernels: Kernels, context: Context, parameters: str) -> None:
        self._of_script = kernels, context, parameters
        self._call = call
        self._script: _Script | None = None
        self._launch: Callable[..., None] | None = None
        self._queue: int | None = None

    def use(self, queue: int) -> None:
        """Enqueue on a CUstream from now on."""
        self._queue = queue
        if self._script is not None:
            self._script.use(queue)

    def __call__(self, *arguments: Any) -> None:
        """Enqueue the calls.

        Raises:
            CompilationError: a kernel does not compile.
            BackendUnavailableError: there is neither a compiler nor a prebuilt cubin.
        """
        if self._launch is None:
            self._script = _Script(self._call.otherwise, *self._of_script)
            assert self._queue is not None, "a stream is given before anything is launched"
            self._script.use(self._queue)
            self._launch = self._script.function()
        self._launch(*arguments)


@lru_cache(maxsize=512)
def _source(body: str, parameters: str, asks: str) -> str:
    """Two functions that enqueue what a body of lines says: in the context that is current, and in the one that it belongs to."""
    return "\n".join(
        (
            f"def bare({parameters}):",
            indent(body, " " * 4),
            f"def launch({parameters}):",
            f"    if context.forked {asks}:",  # in a forked child the driver may not even be asked
            f"        return within({parameters})",
            "    try:",
            indent(body, " " * 8),
            "    except CudaCallError as error:",
            "        if not error.of_context or int(current()[1]) == context.handle:",
            "            raise context.mapped(error) from error",
            f"        within({parameters})",
        )
    )


@lru_cache(maxsize=256)
def _pack_into(letters: str) -> Callable[..., None]:
    """What writes a run of fields."""
    return Struct(f"<{letters}").pack_into


@lru_cache(maxsize=512)
def _compiled(source: str) -> CodeType:
    """Most plans of one algorithm have the same lines: their numbers are elsewhere."""
    return compile(source, "<launch>", "exec")


def _map_writer(block: bytearray, slot: MapSlot) -> Callable[[int], None]:
    """What writes the map of a tensor at an address into a parameter block."""
    encode, kept = driver_tensor_map.tensor_map_encoder(slot.tensor), dict[int, bytes]()
    field = memoryview(block)[slot.field : slot.field + TENSOR_MAP_BYTES]

    def write(address: int) -> None:
        encoded = kept.get(address)
        if encoded is None:
            if len(kept) == _MAPS_KEPT:
                del kept[next(iter(kept))]
            encoded = kept[address] = encode(address)
        field[:] = encoded

    return write


def _launches_only(call: Call) -> bool:
    if isinstance(call, WhereAligned):
        return all(map(_launches_only, call.aligned))  # the other way asks for itself
    return isinstance(call, KernelCall)
