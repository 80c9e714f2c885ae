"""A PTX module as C++: functions, tables, and the symbol `emu_module` (emulator/abi/emulator.h)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from emulator.ptx.errors import NotEmulatedError, PtxError
from emulator.ptx.functions import FunctionWriter, Surroundings, arguments_of, quoted
from emulator.ptx.layout import SharedMemory, alignment_of, initial_data, place_parameters, size_of
from emulator.ptx.names import identifier
from emulator.ptx.parser import parse
from emulator.ptx.syntax import Function, Location, Module

__all__ = ["Translation", "translate"]


@dataclass(frozen=True, slots=True)
class Translation:
    """C++, and a line for each function that fails when it is run: what is not emulated in it. Immutable."""

    source: str
    warnings: tuple[str, ...]


def translate(text: str, file: str = "", checked: bool = True) -> Translation:
    """Translate a module.

    Args:
        text: PTX.
        file: Name for messages of instructions without a source line.
        checked: Leaves red zones between shared variables; compile the result with EMU_CHECK=1.

    Raises:
        PtxError: the text cannot be read, or a variable has no meaning here.
    """
    return _ModuleWriter(parse(text, file), checked).translate()


class _ModuleWriter:
    """Writes one module. Owned by one call of `translate`."""

    def __init__(self, module: Module, checked: bool) -> None:
        self._module = module
        self._shared = SharedMemory(module, checked)
        self._globals = [item for item in module.variables if item.space in ("global", "const") and not item.external]
        self._functions = {item.name: item for item in module.functions if item.body is not None}
        self._surroundings = Surroundings(
            {item.name: i for i, item in enumerate(self._globals)},
            {item.name: item for item in module.variables if item.space == "shared"},
            {name: item for name, item in self._functions.items() if not item.entry},
        )
        self._warnings: list[str] = []

    def translate(self) -> Translation:
        kernels = [item for item in self._functions.values() if item.entry]
        parts = [
            '#include "scalar/module.h"',
            "namespace {",
            "using namespace emu;",
            *(f"void {self._signature(item)};" for item in self._functions.values()),
            *(self._definition(item) for item in self._functions.values()),
            *self._location_table(),
            *self._global_tables(),
            *(line for kernel in kernels for line in self._kernel_tables(kernel)),
            *_table("EmuKernel", "kernels", (self._kernel(kernel) for kernel in kernels)),
            "}  // namespace",
            self._export(len(kernels)),
        ]
        return Translation("\n".join(parts) + "\n", tuple(self._warnings))

    # ---- functions ----

    def _signature(self, function: Function) -> str:
        name = identifier(function.name)
        return (
            f"k_{name}(EmuThread* T, const char* P)"
            if function.entry
            else f"f_{name}(EmuThread* T{arguments_of(function)})"
        )

    def _definition(self, function: Function) -> str:
        try:
            layout = self._shared.layout(function)
            body = FunctionWriter(function, layout, self._surroundings).body()
        except PtxError as error:
            message = f"{function.name} is not emulated: {error}"
            self._warnings.append(message)
            body = f'  emu_fail(T, 0, "%s", {quoted(message)});'
        return f"\nvoid {self._signature(function)} {{\n{body}\n}}"

    # ---- tables ----

    def _location_table(self) -> Iterator[str]:
        def row(location: Location) -> str:
            return f"{{{quoted(location.file)}, {location.line}, {location.caller}}}"

        yield from _table("EmuLocation", "locations", (row(item) for item in self._module.locations))

    def _global_tables(self) -> Iterator[str]:
        rows = []
        for i, variable in enumerate(self._globals):
            if variable.count is None:
                raise NotEmulatedError(f"the size of {variable.name}")
            initial, relocations, number = "nullptr", "nullptr", 0
            if variable.initial:
                data = initial_data(variable, self._globals)
                initial, number = f"initial_{i}", len(data.relocations)
                yield f"const unsigned char initial_{i}[] = {{{','.join(map(str, data.bytes))}}};"
                if number:
                    relocations = f"relocations_{i}"
                    entries = (f"{{{offset}, {target}, {addend}}}" for offset, target, addend in data.relocations)
                    yield from _table("EmuRelocation", relocations, entries)
            rows.append(
                f"{{{quoted(variable.name)}, {size_of(variable)}, {alignment_of(variable)}, "
                f"{'true' if variable.space == 'const' else 'false'}, {initial}, {relocations}, {number}}}"
            )
        yield from _table("EmuGlobal", "globals", rows)

    def _kernel_tables(self, kernel: Function) -> Iterator[str]:
        offsets, _ = place_parameters(kernel)
        name = identifier(kernel.name)
        rows = (f"{{{offsets[item.name]}, {size_of(item)}}}" for item in kernel.parameters)
        yield from _table("EmuParam", f"params_{name}", rows)
        layout = self._shared.layout(kernel)
        variables = (
            f"{{{quoted(item.name)}, {layout.offsets[item.name]}, {size_of(item)}}}" for item in layout.variables
        )
        yield from _table("EmuSharedVariable", f"shared_{name}", variables)

    def _kernel(self, kernel: Function) -> str:
        name, directives = identifier(kernel.name), kernel.directives
        layout = self._shared.layout(kernel)
        _, param_bytes = place_parameters(kernel)
        required = _three(directives.get("reqntid"))
        most = _three(directives.get("maxntid")) if "maxntid" in directives else required
        cluster = _three(directives.get("reqnctapercluster"))
        return (
            f"{{{quoted(kernel.name)}, k_{name}, params_{name}, {len(kernel.parameters)}, {param_bytes}, shared_{name}, "
            f"{len(layout.variables)}, {layout.bytes}, {layout.end}, {layout.dynamic_alignment}, {most[0] * most[1] * most[2]}, "
            f"{{{_listed(required)}}}, {{{_listed(cluster)}}}, {directives.get('maxclusterrank', (0,))[0]}}}"
        )

    def _export(self, num_kernels: int) -> str:
        target = quoted(self._module.target)
        return (
            'extern "C" {\n'
            '__attribute__((visibility("default"))) extern const EmuModule emu_module;\n'
            f"const EmuModule emu_module = {{kEmuAbi, emu::kChecked, {target}, kernels, {num_kernels}, globals, "
            f"{len(self._globals)}, locations, {len(self._module.locations)}}};\n"
            "}"
        )


def _three(numbers: tuple[int, ...] | None) -> tuple[int, int, int]:
    """Three numbers of a directive; missing ones are 1, and 0 where there is no directive."""
    if not numbers:
        return (0, 0, 0)
    x, y, z = (*numbers, 1, 1)[:3]
    return (x, y, z)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _table(kind: str, name: str, rows: Iterable[str]) -> Iterator[str]:
    """A C++ array; C++ has no empty ones, so that such a table gets a row that nobody counts."""
    yield f"const {kind} {name}[] = {{"
    lines = [f"  {row}," for row in rows]
    yield from lines or ["  {},"]
    yield "};"
