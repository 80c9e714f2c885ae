"""Where variables lie: parameters of a kernel, static shared memory, and the bytes of initialised globals."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from emulator.ptx.errors import NotEmulatedError, PtxError
from emulator.ptx.syntax import (
    Address,
    Arguments,
    Block,
    Float,
    Function,
    Instruction,
    Integer,
    Module,
    Name,
    Negated,
    Operand,
    Pair,
    Sum,
    Variable,
    Vector,
)
from emulator.ptx.types import bytes_of

__all__ = [
    "InitialData",
    "SharedLayout",
    "SharedMemory",
    "alignment_of",
    "float_bits",
    "initial_data",
    "names_used",
    "place",
    "place_parameters",
    "size_of",
]

SHARED_RESERVED = 1024
"""kEmuSharedReserved of emulator/abi/emulator.h."""
PARAM_START = 0x210
"""kEmuParamStart of emulator/abi/emulator.h."""
_RED_ZONE = 32


def size_of(variable: Variable) -> int:
    """Bytes of a variable; none of an array without a length."""
    return bytes_of(variable.type) * (variable.count or 0)


def alignment_of(variable: Variable) -> int:
    """Bytes that a variable's address is a multiple of."""
    return variable.alignment or bytes_of(variable.type)


def place(variables: Iterable[Variable], start: int = 0, behind: int = 0) -> tuple[dict[str, int], int]:
    """Offsets by name, with `behind` bytes free after each, and the end."""
    offsets, end = {}, start
    for variable in variables:
        end = -(-end // alignment_of(variable)) * alignment_of(variable)
        offsets[variable.name] = end
        end += size_of(variable) + behind
    return offsets, end


def place_parameters(kernel: Function) -> tuple[dict[str, int], int]:
    """Offsets of a kernel's parameters by name, and the end, as cuFuncGetParamInfo tells them.

    What is aligned is the place in the constant bank, not the offset: behind 8 bytes a CUtensorMap is at offset 48.
    """
    offsets, end = place(kernel.parameters, PARAM_START)
    return {name: offset - PARAM_START for name, offset in offsets.items()}, end - PARAM_START


# ---- shared memory ----


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """A kernel's static shared memory. Immutable.

    Args:
        bytes: What the hardware needs, without red zones.
        end: Where dynamic memory may begin.
        dynamic_alignment: The largest alignment of extern arrays.
    """

    variables: tuple[Variable, ...]
    offsets: dict[str, int]
    bytes: int
    end: int
    dynamic_alignment: int


class SharedMemory:
    """Lays out what kernels, and the device functions that they reach, have in shared memory. Immutable.

    Variables that device functions use have the same place in all kernels, as their code is translated once.
    """

    def __init__(self, module: Module, checked: bool) -> None:
        self._checked = checked
        self._functions = {item.name: item for item in module.functions if item.body is not None}
        self._of_module = {item.name: item for item in module.variables if item.space == "shared"}
        self._names = {name: names_used(item) for name, item in self._functions.items()}
        self._common: dict[str, Variable] = {}
        for item in self._functions.values():
            if not item.entry:
                self._common |= self._variables_of(item)

    def layout(self, function: Function) -> SharedLayout:
        """The shared memory of a kernel, or what a device function may use of it."""
        own = {name: item for name, item in self._variables_of(function).items() if name not in self._common}
        shares = bool(self._common) and (not function.entry or len(self._reached(function)) > 1)
        every = [*(self._common.values() if shares else ()), *own.values()]
        static = [item for item in every if item.count is not None]
        dynamic = [alignment_of(item) for item in every if item.count is None]
        offsets, end = place(static, SHARED_RESERVED, _RED_ZONE if self._checked else 0)
        _, tight = place(static, SHARED_RESERVED)
        return SharedLayout(tuple(static), offsets, tight - SHARED_RESERVED, end, max(dynamic, default=16))

    def _reached(self, function: Function) -> set[str]:
        """Names of the functions that a function may call, itself included."""
        found, waiting = {function.name}, [function.name]
        while waiting:
            new = (self._names[waiting.pop()] & self._functions.keys()) - found
            found |= new
            waiting += new
        return found

    def _variables_of(self, function: Function) -> dict[str, Variable]:
        """Shared variables that a function declares or names."""
        assert function.body is not None
        own = {item.name: item for item in _variables(function.body) if item.space == "shared"}
        used = self._names[function.name]
        return {name: item for name, item in self._of_module.items() if name in used and name not in own} | own


def _variables(block: Block) -> Iterator[Variable]:
    for statement in block.statements:
        if isinstance(statement, Variable):
            yield statement
        elif isinstance(statement, Block):
            yield from _variables(statement)


def names_used(function: Function) -> set[str]:
    """Every name in the operands of a function's instructions."""
    return set(_names_of_block(function.body)) if function.body is not None else set()


def _names_of_block(block: Block) -> Iterator[str]:
    for statement in block.statements:
        if isinstance(statement, Block):
            yield from _names_of_block(statement)
        elif isinstance(statement, Instruction):
            for operand in statement.operands:
                yield from _names(operand)


def _names(operand: Operand) -> Iterator[str]:
    match operand:
        case Name(text):
            yield text
        case Sum(name, _):
            yield name
        case Negated(inner):
            yield inner.text
        case Pair(first, second):
            yield from _names(first)
            yield from _names(second)
        case Vector(items) | Arguments(items):
            for item in items:
                yield from _names(item)
        case Address(base, _, coordinates):
            yield from _names(base)
            for item in coordinates or ():
                yield from _names(item)
        case _:
            pass


# ---- initial values ----


@dataclass(frozen=True, slots=True)
class InitialData:
    """Bytes, and the addresses to fill in: (offset, index of the global, addend)."""

    bytes: bytes
    relocations: tuple[tuple[int, int, int], ...]


def initial_data(variable: Variable, globals_: Sequence[Variable]) -> InitialData:
    """What a variable begins with; missing elements are zero.

    Raises:
        NotEmulatedError: an initialiser names something that is not a global.
        PtxError: there are more initialisers than elements.
    """
    size, index_of = bytes_of(variable.type), {item.name: i for i, item in enumerate(globals_)}
    data, relocations = bytearray(), []
    for initial in variable.initial:
        value = initial.value
        if isinstance(value, Sum):
            if value.name not in index_of or size != 8:
                raise NotEmulatedError(f"the initialiser {value.name} of {variable.name}")
            relocations.append((len(data), index_of[value.name], value.addend))
            data += bytes(8)
        else:
            data += _encoded(value, variable.type, size)
    if len(data) > size_of(variable):
        raise PtxError(f"{variable.name}: {len(variable.initial)} initialisers")
    return InitialData(bytes(data) + bytes(size_of(variable) - len(data)), tuple(relocations))


def _encoded(value: Integer | Float, kind: str, size: int) -> bytes:
    bits = value.value if isinstance(value, Integer) else float_bits(value, double=kind in ("f64", "b64"))
    return (bits & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def float_bits(value: Float, double: bool) -> int:
    """Bits of a constant as f64 or f32, whichever it was written as."""
    if value.double == double:
        return value.bits
    if double:
        (number,) = struct.unpack("<f", value.bits.to_bytes(4, "little"))
        return int.from_bytes(struct.pack("<d", number), "little")
    (number,) = struct.unpack("<d", value.bits.to_bytes(8, "little"))
    try:
        return int.from_bytes(struct.pack("<f", number), "little")
    except OverflowError:
        return 0x7F800000 | (0x80000000 if number < 0 else 0)
