"""PTX as data: a module, its variables and functions, and their statements. Immutable; made by `parser`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "Address",
    "Arguments",
    "Block",
    "BranchTargets",
    "Float",
    "Function",
    "Initial",
    "Instruction",
    "Integer",
    "Label",
    "Location",
    "Module",
    "Name",
    "Negated",
    "Operand",
    "Pair",
    "Prototype",
    "Registers",
    "Statement",
    "Sum",
    "Variable",
    "Vector",
]


# ---- operands (PTX ISA 6) ----


@dataclass(frozen=True, slots=True)
class Name:
    """A register, special register, variable, function, label, or `_`."""

    text: str


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer constant."""

    value: int


@dataclass(frozen=True, slots=True)
class Float:
    """A floating constant as bits of f32 (`0f...`) or of f64 (all others)."""

    bits: int
    double: bool


@dataclass(frozen=True, slots=True)
class Sum:
    """A variable's address plus a constant, as a value."""

    name: str
    addend: int


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`."""

    operand: Name


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(a, b)`: results or arguments of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, or `[map, {coordinates}]` of a tensor."""

    base: Name | Integer
    offset: int = 0
    coordinates: tuple[Operand, ...] | None = None


Operand: TypeAlias = Name | Integer | Float | Sum | Negated | Pair | Vector | Arguments | Address


# ---- declarations and statements (PTX ISA 4, 5, 7, 11) ----


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the source; `caller` is the index of the place it was inlined at, 0 for none."""

    file: str
    line: int
    caller: int = 0


@dataclass(frozen=True, slots=True)
class Initial:
    """An initialiser's element: a number, or the address of a variable plus a constant."""

    value: Integer | Float | Sum


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or parameter.

    Args:
        count: Number of elements, vectors' included; None for an array without a length.
        initial: The leading elements; the rest is zero.
    """

    space: str
    type: str
    name: str
    count: int | None = 1
    alignment: int | None = None
    initial: tuple[Initial, ...] = ()
    external: bool = False


@dataclass(frozen=True, slots=True)
class Registers:
    """Registers of one type, ranges such as `%r<8>` written out."""

    type: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A place to branch to."""

    name: str


@dataclass(frozen=True, slots=True)
class BranchTargets:
    """`.branchtargets`: what brx.idx chooses from."""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prototype:
    """`.callprototype`, or `.calltargets`: the shape of an indirect call."""

    name: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction.

    Args:
        opcode: With all modifiers, "ld.global.v4.f32".
        guard: The predicate it depends on.
        location: Index in the module's locations.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: Name | Negated | None = None
    location: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """`{ ... }`: a scope for registers and labels."""

    statements: tuple[Statement, ...]


Statement: TypeAlias = Instruction | Label | Registers | Variable | Block | BranchTargets | Prototype


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel or a device function; the body is None in a declaration.

    Args:
        directives: Performance-tuning and cluster directives with their numbers: "maxntid" -> (128, 1, 1).
    """

    name: str
    entry: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]
    directives: dict[str, tuple[int, ...]]
    body: Block | None


@dataclass(slots=True)
class Module:
    """A PTX file. Locations begin with the unknown one."""

    target: str = ""
    variables: list[Variable] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    locations: list[Location] = field(default_factory=lambda: [Location("", 0)])
