"""What a check works with: the device, modules compiled on demand, and buffers that live as long as the check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.conformance.compiler import CompileError, compile_source
from emulator.conformance.cuda import Buffer, Driver

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from emulator.conformance.cuda import Argument, Handle
    from emulator.conformance.sources import Library
    from emulator.conformance.values import Array

UNTOUCHED = 0xCD  # what outputs hold before a kernel: a byte that was not written shows


class Bench:
    """A device and what was compiled for it."""

    def __init__(self, directory: Path, ordinal: int = 0) -> None:
        self.driver = Driver(ordinal)
        self._directory = directory
        self._kernels: dict[tuple[int, str], Handle | CompileError] = {}
        self._buffers: list[Buffer] = []

    # ---- kernels

    def image(self, library: Library, names: Sequence[str] | None = None) -> bytes:
        """A library (or the named kernels of it) as a module's bytes."""
        return compile_source(library.text(names), library.suffix, self._directory)

    def kernel(self, library: Library, name: str) -> Handle:
        """A kernel; the library is compiled at once, and in halves where a part of it does not compile.

        Raises:
            CompileError: This kernel does not.
        """
        if (id(library), name) not in self._kernels:
            self._compile(library, library.names)
        found = self._kernels[id(library), name]
        if isinstance(found, CompileError):
            raise found
        return found

    def _compile(self, library: Library, names: Sequence[str]) -> None:
        try:
            module = self.driver.load(self.image(library, names))
        except CompileError as error:
            if len(names) == 1:
                self._kernels[id(library), names[0]] = error
                return
            half = len(names) // 2
            self._compile(library, names[:half])
            self._compile(library, names[half:])
            return
        for name in names:
            self._kernels[id(library), name] = self.driver.function(module, name)

    def launch(
        self, library: Library, name: str, grid: Any, block: Any, arguments: Sequence[Argument], **how: Any
    ) -> None:
        """Launches a kernel and waits; more than 48 KiB of dynamic shared memory is asked for first."""
        function = self.kernel(library, name)
        if how.get("shared", 0) > 48 * 1024:
            self.driver.set_attribute(function, 8, how["shared"])
        self.driver.launch(function, grid, block, arguments, **how)
        self.driver.synchronize()

    # ---- buffers

    def upload(self, values: Array) -> Buffer:
        """A copy in the device's memory until the check is over."""
        buffer = self.driver.allocate(max(16, values.nbytes))
        self._buffers.append(buffer)
        if values.nbytes < 16:
            self.driver.fill(buffer, 0)
        self.driver.write(buffer, values)
        return buffer

    def output(self, count: int, dtype: Any = np.uint32) -> Buffer:
        """Memory for an output, filled with a pattern."""
        buffer = self.driver.allocate(count * np.dtype(dtype).itemsize)
        self._buffers.append(buffer)
        self.driver.fill(buffer, UNTOUCHED)
        return buffer

    def read(self, buffer: Buffer, dtype: Any = np.uint32) -> Array:
        """A buffer's contents."""
        return self.driver.read(buffer, dtype)

    def release(self) -> None:
        """Frees the buffers of a check."""
        while self._buffers:
            self.driver.free(self._buffers.pop())
