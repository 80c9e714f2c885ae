"""One function of a module as C++: its registers, its addresses, its calls, and its instructions by way of the table."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

from emulator.ptx.errors import NotEmulatedError, PtxError
from emulator.ptx.instructions import find
from emulator.ptx.layout import SharedLayout, float_bits, place_parameters, size_of
from emulator.ptx.memory import bare_space
from emulator.ptx.names import Names, Register, Scope, identifier
from emulator.ptx.special import PREDICATES, SPECIAL_REGISTERS
from emulator.ptx.syntax import (
    Address,
    Arguments,
    Block,
    BranchTargets,
    Float,
    Function,
    Instruction,
    Integer,
    Label,
    Name,
    Negated,
    Operand,
    Registers,
    Sum,
    Variable,
)
from emulator.ptx.types import bytes_of, storage
from emulator.ptx.zeros import Zeros

__all__ = ["FunctionWriter", "Surroundings", "arguments_of", "quoted"]

_Found = TypeVar("_Found")


def quoted(text: str) -> str:
    """A C++ string literal."""
    return json.dumps(text, ensure_ascii=False)


def arguments_of(function: Function) -> str:
    """The C++ parameters of a device function: the memory of its results, then of its parameters."""
    return "".join(f", char* {identifier(item.name)}memory" for item in (*function.results, *function.parameters))


class Surroundings:
    """What a function can name of its module. Immutable.

    Args:
        globals_: Index in the module's table by name.
        shared: Module-scope variables in shared memory by name.
        functions: Functions with a body by name.
    """

    def __init__(self, globals_: dict[str, int], shared: dict[str, Variable], functions: dict[str, Function]) -> None:
        self.globals = globals_
        self.shared = shared
        self.functions = functions


class FunctionWriter:
    """Translates one function; the `Writer` that rows of the table see. Owned by one thread, used once."""

    def __init__(self, function: Function, layout: SharedLayout, surroundings: Surroundings) -> None:
        self._function = function
        self._layout = layout
        self._surroundings = surroundings
        self._names = Names()
        self._scopes = [Scope()]
        self._declarations: list[str] = []
        self._used: dict[str, list[str]] = {}  # C++ type -> registers that are named at all
        self._declared: set[str] = set()
        self._zeros = Zeros()
        self._parameters = self._take_parameters()

    # ---- the whole ----

    def body(self) -> str:
        """The statements of the C++ function.

        Raises:
            PtxError: something in it is not emulated or not understood; the message names it.
        """
        assert self._function.body is not None
        lines = list(self._block(self._function.body))
        registers = [
            f"{kind} {', '.join(f'{name}{{}}' if name in self._zeros else name for name in names)};"
            for kind, names in self._used.items()
        ]
        start = ["bool carry = false;", f"static constexpr u32 kSharedBytes = {self._layout.bytes};"]
        return "\n".join(f"  {line}" for line in (*start, *self._declarations, *registers, *lines))

    def _take_parameters(self) -> dict[str, str]:
        """Kernels find parameters behind `P`, device functions in the memory of their arguments."""
        if self._function.entry:
            offsets, _ = place_parameters(self._function)
            return {name: f"(P + {offset})" for name, offset in offsets.items()}
        pointers = {}
        for variable in (*self._function.results, *self._function.parameters):
            memory = f"{identifier(variable.name)}memory"
            if variable.space == "reg":
                self._take_register(variable, memory)
            else:
                pointers[variable.name] = memory
        return pointers

    def _take_register(self, variable: Variable, memory: str) -> None:
        name, kind = self._names.new(variable.name), storage(variable.type)
        reference = "&" if variable in self._function.results else ""
        self._declarations.append(f"{kind}{reference} {name} = *reinterpret_cast<{kind}*>({memory});")
        self._declared.add(name)
        self._scopes[0].registers[variable.name] = Register(name, variable.type)

    # ---- statements ----

    def _block(self, block: Block) -> Iterator[str]:
        scope = Scope()
        for statement in block.statements:
            if isinstance(statement, Label):
                scope.labels[statement.name] = self._names.new(f"{statement.name}_label")
            elif isinstance(statement, BranchTargets):
                scope.targets[statement.name] = statement.labels
        self._scopes.append(scope)
        for statement in block.statements:
            if isinstance(statement, Instruction):
                yield self._instruction(statement)
            elif isinstance(statement, Label):
                self._zeros.end_stretch()
                yield f"{scope.labels[statement.name]}:;"
            elif isinstance(statement, Block):
                yield from self._block(statement)
            elif isinstance(statement, Registers):
                for name in statement.names:
                    scope.registers[name] = Register(self._names.new(name), statement.type)
            elif isinstance(statement, Variable):
                self._declare(statement, scope)
        self._scopes.pop()

    def _declare(self, variable: Variable, scope: Scope) -> None:
        name = self._names.new(variable.name)
        scope.variables[variable.name] = (variable, name)
        if variable.space == "reg":
            raise NotEmulatedError(".reg of vectors")
        if variable.space in ("local", "param"):
            alignment = max(variable.alignment or 1, bytes_of(variable.type), 8)
            self._declarations.append(f"alignas({alignment}) char {name}[{max(size_of(variable), 1)}];")

    def _instruction(self, instruction: Instruction) -> str:
        rule, modifiers = find(instruction.opcode)
        code = rule.translate(self, instruction, modifiers)
        if instruction.guard is not None:
            code = f"if ({self.read(instruction.guard, 'pred')}) {{ {code} }}"
        self._zeros.end_instruction(guarded=instruction.guard is not None)
        return code

    # ---- names ----

    def _find(self, look: Callable[[Scope], _Found | None]) -> _Found | None:
        return next((found for scope in reversed(self._scopes) if (found := look(scope)) is not None), None)

    def _register(self, name: str, *, written: bool = False) -> Register | None:
        for scope in reversed(self._scopes):
            register = scope.registers.get(name)
            if register is not None:
                break
        else:
            return None
        if register.variable not in self._declared:
            self._declared.add(register.variable)
            self._used.setdefault(storage(register.type), []).append(register.variable)
        if written:
            self._zeros.write(register.variable)
        else:
            self._zeros.read(register.variable)
        return register

    def _symbol(self, name: str) -> tuple[str, bool]:
        """The address of a variable or function as a C++ expression, and whether it is a number in shared memory's window."""
        found = self._find(lambda scope: scope.variables.get(name))
        variable = found[0] if found else self._surroundings.shared.get(name)
        if variable is not None and variable.space == "shared":
            if variable.count is None:
                return "T->dynamic_shared", True
            return f"(T->shared_base + {self._layout.offsets[name]})", True
        if found:
            return found[1], False
        if name in self._parameters:
            return self._parameters[name], False
        if name in self._surroundings.globals:
            return f"T->globals[{self._surroundings.globals[name]}]", False
        if name in self._surroundings.functions:
            return f"&f_{identifier(name)}", False
        raise NotEmulatedError(f"{'special register' if name.startswith('%') else 'the name'} {name}")

    def _special(self, name: str) -> str | None:
        expression = SPECIAL_REGISTERS.get(name)
        if expression is not None and "kSharedBytes" in expression and not self._function.entry:
            raise NotEmulatedError(f"{name} in a device function")
        return expression

    def kind_of(self, operand: Operand) -> str | None:
        """The type that a register was declared with; None for anything else."""
        register = self._register(operand.text) if isinstance(operand, Name) else None
        return register.type if register else None

    # ---- operands ----

    def read(self, operand: Operand, kind: str) -> str:
        """A C++ expression for an operand's value as a type."""
        match operand:
            case Name(name):
                return self._read_name(name, kind)
            case Negated(inner):
                return f"!{self.read(inner, kind)}"
            case Sum(name, addend):
                return f"{kind}({self._value_of(name)} + {addend})"
            case Integer(value):
                return _integer(value, kind)
            case Float():
                return _floating(operand, kind)
        raise PtxError(f"{type(operand).__name__.lower()} where a value of type .{kind} is expected")

    def _read_name(self, name: str, kind: str) -> str:
        register = self._register(name)
        if register is not None:
            if _holds(register.type, kind) and kind[0] != "s":  # a signed value needs its type in arithmetic
                return register.variable
            return f"{kind if _holds(register.type, kind) else f'get<{kind}>'}({register.variable})"
        if name in PREDICATES:
            return PREDICATES[name]
        special = self._special(name)
        return f"{kind}({special})" if special is not None else f"{kind}({self._value_of(name)})"

    def _value_of(self, name: str) -> str:
        register = self._register(name)
        if register is not None:
            return f"get<u64>({register.variable})"
        expression, shared = self._symbol(name)
        return expression if shared else f"u64({expression})"

    def write(self, operand: Operand, kind: str, expression: str) -> str:
        """A C++ statement that assigns to a register; to `_` it only evaluates."""
        if not isinstance(operand, Name):
            raise PtxError(f"{type(operand).__name__.lower()} where a result of type .{kind} is expected")
        if operand.text == "_":
            return f"(void)({expression});"
        register = self._register(operand.text, written=True)
        if register is None:
            raise PtxError(f"{operand.text} is not a register")
        if _holds(register.type, kind):
            return f"{register.variable} = {expression};"
        return f"put<{kind}>({register.variable}, {expression});"

    def reference(self, operand: Operand) -> str:
        """A C++ expression for the memory of a 32-bit register."""
        register = self._register(operand.text) if isinstance(operand, Name) else None
        if register is None or bytes_of(register.type) != 4:
            raise PtxError("an accumulator is not a register of 32 bits")
        return f"reinterpret_cast<u32*>(&{register.variable})"

    def pointer(self, operand: Operand, space: str) -> str:
        """A C++ expression, char*, for an address."""
        address = _address(operand)
        if isinstance(address.base, Name) and self._register(address.base.text) is None:
            expression, shared = self._symbol(address.base.text)
            if not shared:
                return f"({expression} + {address.offset})"
            return f"shared_pointer(T, {expression} + {address.offset})"
        if bare_space(space) in ("shared", "cluster"):
            return f"shared_pointer(T, {self.shared(operand, space)})"
        if isinstance(address.base, Integer):
            return f"(char*)({address.base.value + address.offset}ull)"
        offset = f" + {address.offset}" if address.offset else ""
        return f"(char*)({self.read(address.base, 'u64')}{offset})"

    def shared(self, operand: Operand, space: str) -> str:
        """A C++ expression, u32, for an address in shared memory."""
        address = _address(operand)
        if isinstance(address.base, Integer):
            return f"{address.base.value + address.offset}u"
        if self._register(address.base.text) is None:
            expression, shared = self._symbol(address.base.text)
            if not shared:
                raise PtxError(f"{address.base.text} is not in shared memory")
            return f"({expression} + {address.offset})"
        if bare_space(space) not in ("shared", "cluster"):
            return f"shared_address(T, {self.pointer(operand, space)})"
        offset = f" + {address.offset}" if address.offset else ""
        return f"({self.read(address.base, 'u32')}{offset})"

    # ---- control ----

    def label(self, operand: Operand) -> str:
        """The C++ label of a branch's target."""
        if not isinstance(operand, Name):
            raise PtxError("a branch without a label")
        return self._label(operand.text)

    def _label(self, name: str) -> str:
        label = self._find(lambda scope: scope.labels.get(name))
        if label is None:
            raise PtxError(f"there is no label {name}")
        return label

    def targets(self, operand: Operand) -> tuple[str, ...]:
        """The C++ labels of a .branchtargets list."""
        labels = self._find(lambda scope: scope.targets.get(operand.text)) if isinstance(operand, Name) else None
        if labels is None:
            raise PtxError("there is no such list of branch targets")
        return tuple(self._label(name) for name in labels)

    def leave(self) -> str:
        """The C++ that ends the thread."""
        if not self._function.entry:
            raise NotEmulatedError("exit in a device function")
        return "return;"

    def call(self, instruction: Instruction) -> str:
        """The C++ of a call (PTX ISA 9.7.12.5)."""
        operands = list(instruction.operands)
        results = operands.pop(0) if operands and isinstance(operands[0], Arguments) else Arguments(())
        target = operands.pop(0) if operands else None
        arguments = operands.pop(0) if operands and isinstance(operands[0], Arguments) else Arguments(())
        if not isinstance(target, Name) or not isinstance(results, Arguments) or not isinstance(arguments, Arguments):
            raise PtxError("a call that is not understood")
        memory = [self._argument(item) for item in (*results.items, *arguments.items)]
        name = target.text
        if name in self._surroundings.functions:
            return f"f_{identifier(name)}({', '.join(['T', *memory])});"
        if name == "vprintf":
            to, text, values = memory
            return f"store<s32>({to}, emu_vprintf(pointer(load<u64>({text})), pointer(load<u64>({values}))));"
        if name == "__assertfail":
            text, file, line, function, _ = memory
            return (
                f'emu_fail(T, {instruction.location}, "%s:%u: %s: Assertion `%s\' failed", pointer(load<u64>({file})), '
                f"load<u32>({line}), pointer(load<u64>({function})), pointer(load<u64>({text})));"
            )
        register = self._register(name)
        if register is None:
            raise NotEmulatedError(f"call of {name}")
        kinds = ", ".join(["EmuThread*", *("char*" for _ in memory)])
        return f"reinterpret_cast<void (*)({kinds})>({register.variable})({', '.join(['T', *memory])});"

    def _argument(self, operand: Operand) -> str:
        """The memory of an argument or a result."""
        if not isinstance(operand, Name):
            raise NotEmulatedError("a constant as an argument of a call")
        register = self._register(operand.text)
        if register is not None:
            return f"reinterpret_cast<char*>(&{register.variable})"
        return self._symbol(operand.text)[0]


@cache
def _holds(register_type: str, kind: str) -> bool:
    """Whether the C++ variable of a register converts from and to a type as its bits do."""
    held = storage(register_type)
    return held == kind or (held[0] == "u" and kind[0] in "usb" and held[1:] == kind[1:])


def _address(operand: Operand) -> Address:
    if not isinstance(operand, Address) or operand.coordinates is not None:
        raise PtxError(f"{type(operand).__name__.lower()} where an address is expected")
    return operand


def _integer(value: int, kind: str) -> str:
    """An integer constant as a type; of a floating type it is the bits."""
    if kind == "pred":
        return "true" if value else "false"
    size = bytes_of(kind)
    bits = value & ((1 << 8 * size) - 1)
    if kind[0] in "usb" and kind[1:].isdigit():
        signed = bits - (1 << 8 * size) if kind[0] == "s" and bits >> (8 * size - 1) else bits
        # The most negative numbers have no literal.
        return f"{kind}({bits:#x}ull)" if signed < -(1 << 31) or size > 4 else f"{kind}({signed})"
    return f"get<{kind}>(u{8 * size}({bits:#x}ull))"


def _floating(value: Float, kind: str) -> str:
    if bytes_of(kind) not in (4, 8):
        raise PtxError(f"a floating constant where a value of type .{kind} is expected")
    double = bytes_of(kind) == 8
    bits = float_bits(value, double)
    if kind not in ("f32", "f64"):
        return _integer(bits, kind)
    (number,) = struct.unpack("<d" if double else "<f", bits.to_bytes(8 if double else 4, "little"))
    if math.isfinite(number):
        return f"{number.hex()}{'' if double else 'f'}"
    return f"double_of({bits:#x}ull)" if double else f"float_of({bits:#x}u)"
