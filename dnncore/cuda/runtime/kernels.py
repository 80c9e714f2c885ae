"""From a compiled unit to a launch: what every algorithm's `prepare` ends in."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda import driver, jit
from dnncore.cuda.context import Context
from dnncore.cuda.jit import Unit
from dnncore.cuda.stream import CudaStream
from dnncore.errors import ClosedError

__all__ = ["Kernel", "Unit", "blocks_for", "kernel", "single", "through_workspace"]

_STATIC_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory that every launch may have; more needs a word to the driver (CUDA C++ Programming Guide, 16.8.3)."""

_MAX_BLOCKS = 132 * 16
"""Cap on a grid-stride loop's blocks: 16 of 128 threads fill each of an H200's 132 multiprocessors; more only queue up."""


class _Module:
    """What a source was compiled to, loaded into a device's context. Thread-safe."""

    def __init__(self, context: Context, image: bytes) -> None:
        self.context = context
        with context:
            self._module: driver.DriverModule | None = driver.load_module(image)
        context.add_user(self)

    def function(self, name: str) -> driver.DriverFunction:
        """One of its kernels.

        Raises:
            ClosedError: the interpreter is ending.
        """
        if self._module is None:
            raise ClosedError(f"kernel {name} was asked for at the interpreter's exit")
        with self.context:
            return driver.get_function(self._module, name)

    def release(self) -> None:
        """Forget the module, at the interpreter's exit."""
        with self.context:
            self._module = None


class Kernel:
    """A kernel of a loaded module. Thread-safe."""

    def __init__(self, module: _Module, name: str) -> None:
        self.name = name
        self._context = module.context
        self._shared_bytes = _STATIC_SHARED_BYTES  # raised only by a first launch; doing it twice does no harm
        self._function: driver.DriverFunction | None = module.function(name)
        self._context.add_user(self)

    def launch(
        self,
        stream: CudaStream,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        params: np.void | np.ndarray | bytes,
        shared_bytes: int = 0,
    ) -> None:
        """Enqueue the kernel.

        Args:
            stream: Where; its owner is the calling thread.
            grid: Blocks; none may be 0.
            block: Threads a block.
            params: The one parameter struct, of exactly the size that the unit's static_assert names.
            shared_bytes: Dynamic shared memory a block.

        Raises:
            DeviceError: the launch was refused.
            DeviceFaultError: the device's context is lost.
        """
        queue, function = stream.driver_stream, self._function
        if function is None:
            raise ClosedError(f"kernel {self.name} was launched at the interpreter's exit")
        packed = params if isinstance(params, bytes) else params.tobytes()
        with self._context:
            if shared_bytes > self._shared_bytes:
                driver.allow_shared_bytes(function, shared_bytes)
                self._shared_bytes = shared_bytes
            driver.launch(function, grid, block, packed, shared_bytes, queue)

    def release(self) -> None:
        """Forget the function, at the interpreter's exit; with the last of a module's, PyCUDA unloads the module."""
        with self._context:
            self._function = None


_lock = threading.Lock()  # guards _kernels and _modules
_modules: dict[tuple[int, str], _Module] = {}
_kernels: dict[tuple[int, Unit], Kernel] = {}


def kernel(context: Context, unit: Unit) -> Kernel:
    """Return the process's one kernel of a unit on a device, compiled and loaded by the first who asks.

    Raises:
        CompilationError: the unit does not compile.
        BackendUnavailableError: there is neither a compiler nor a prebuilt cubin.
    """
    key = context.index, unit
    with _lock:
        found = _kernels.get(key)
    if found is None:
        image = jit.cubin(unit, jit.architecture(context.compute_capability))  # not under the lock: it takes seconds
        with _lock:
            found = _kernels.get(key)
            if found is None:
                place = context.index, unit.source
                module = _modules.get(place)
                if module is None:
                    module = _modules[place] = _Module(context, image)
                found = _kernels[key] = Kernel(module, unit.entry)
    return found


def blocks_for(work: int, per_block: int) -> int:
    """Blocks of a grid-stride loop over `work` items, of which a block takes `per_block` at a time."""
    return min(-(-work // per_block), _MAX_BLOCKS)


def single(
    kernel: Kernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    params: np.ndarray,
    inputs: Sequence[str],
    outputs: Sequence[str],
    shared_bytes: int = 0,
) -> Launch:
    """Build the launch of an algorithm that is one kernel without workspace.

    Args:
        kernel: The kernel.
        grid: Blocks; when one is 0 there is nothing to compute and nothing is launched.
        block: Threads a block.
        params: A zero-dimensional structured array; everything but addresses, alpha and beta is filled in. The launch owns it.
        inputs: Its fields that take the inputs' addresses, in the problem's order.
        outputs: Its fields that take the outputs' addresses, in the problem's order.
        shared_bytes: Dynamic shared memory a block.
    """

    def launch(
        stream: Stream,
        alpha: float,
        input_addresses: Sequence[Address],
        beta: float,
        output_addresses: Sequence[Address],
        workspace: Address | None,  # noqa: ARG001 -- none was asked for
    ) -> None:
        assert isinstance(stream, CudaStream)
        params["alpha"] = alpha
        params["beta"] = beta
        for name, address in zip(inputs, input_addresses, strict=True):
            params[name] = address
        for name, address in zip(outputs, output_addresses, strict=True):
            params[name] = address
        kernel.launch(stream, grid, block, params, shared_bytes)

    return launch if math.prod(grid) else _nothing


def through_workspace(to_parts: Launch, from_parts: Launch) -> Launch:
    """Build the launch of an algorithm that leaves parts in the workspace and then puts them together, blended."""

    def launch(
        stream: Stream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        to_parts(stream, 1.0, inputs, 0.0, (workspace,), None)
        from_parts(stream, alpha, (workspace,), beta, outputs, None)

    return launch


def _nothing(
    stream: Stream,
    alpha: float,
    inputs: Sequence[Address],
    beta: float,
    outputs: Sequence[Address],
    workspace: Address | None,
) -> None:
    """Launch of an operation whose outputs are empty."""
