"""A row of the instruction table: which opcodes it covers, which operands they take, and what they mean in C++.

Modifiers are written as in the ISA, in its order, between blanks:

    .wide                 must be there
    .ftz?                 may be there; the template's {ftz} is true or false
    .type=u32|s32         one of these; {type} is its text and {TYPE} that in capitals
    .round?rn=rz|rm|rp    may be there; {round} is rn where it is not
                          {round:rz} is true where it is rz, else false

`::` in a modifier's name is `_` in the template. Operands are written in order, too:

    a                     an input of the type that the modifier .type says; results are called d, p and q
    a:u32  a:from         ... of another type, or of the type that the modifier .from says
    a:unsigned            ... of the unsigned type of the modifier .type's size
    d|p?                  a pair of results, of which the second may be missing
    [m:global]  [m:space] an address in a state space, as a host pointer; the space may be a modifier, empty for generic
    [m:space#]            an address in shared memory, as a number in the cluster's window
    c?=0                  may be missing at the end, and is then what stands behind `=`
    c?hint=0              is there if and only if the modifier .hint is

A row's `value` is a C++ expression for d, or for p with q its contrary; an `effect` is statements that assign results to the
variables d, p, q; `build` is a Python function for what needs more. In templates T is the thread and L the index of the place in
the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from emulator.ptx.errors import PtxError
from emulator.ptx.syntax import Instruction, Operand, Pair

__all__ = ["Builder", "Rule", "Writer"]

_ELEMENT = re.compile(r"\.([\w:]+)(\?(\w*))?(?:=(\S+))?$")
_OPERAND = re.compile(r"(\[?)(\w+)(?::([\w:]*))?(#?)\]?(\?(\w*)(?:=(\S+))?)?$")
_RESULTS = ("d", "p", "q")


class _Choice(str):
    """A modifier's text; formatted with another text it says whether it is that one."""

    __slots__ = ()

    def __format__(self, specification: str) -> str:
        if not specification:
            return str(self)
        return "true" if self == specification else "false"


class Writer(Protocol):
    """What rows may ask of the function that is being written."""

    def read(self, operand: Operand, kind: str) -> str:
        """A C++ expression for an operand's value as a type."""

    def write(self, operand: Operand, kind: str, expression: str) -> str:
        """A C++ statement that assigns to a register; to `_` it only evaluates."""

    def pointer(self, operand: Operand, space: str) -> str:
        """A C++ expression, char*, for an address."""

    def shared(self, operand: Operand, space: str) -> str:
        """A C++ expression, u32, for an address in shared memory."""

    def kind_of(self, operand: Operand) -> str | None:
        """The type that a register was declared with; None for anything else."""

    def reference(self, operand: Operand) -> str:
        """A C++ expression for the memory of a 32-bit register."""

    def label(self, operand: Operand) -> str:
        """The C++ label of a branch's target."""

    def targets(self, operand: Operand) -> tuple[str, ...]:
        """The C++ labels of a .branchtargets list."""

    def call(self, instruction: Instruction) -> str:
        """The C++ of a call."""

    def leave(self) -> str:
        """The C++ that ends the thread."""


Builder = Callable[[Writer, Instruction, dict[str, str]], str]


@dataclass(frozen=True)
class Rule:
    """A row. Immutable.

    Args:
        opcode: What the opcodes begin with, "cp.async.bulk".
        section: Of the PTX ISA 9.0.
        title: What it does, in a few words.
    """

    opcode: str
    section: str
    title: str
    modifiers: str = ""
    operands: str = ""
    value: str | None = None
    effect: str | None = None
    build: Builder | None = field(default=None, repr=False)
    _fields: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def _pattern(self) -> tuple[re.Pattern[str], dict[str, str], frozenset[str]]:
        """The expression that matches whole opcodes; group -> modifier's default; modifiers that are flags."""
        text, defaults, flags = re.escape(self.opcode), {}, set()
        for element in self.modifiers.split():
            match = _ELEMENT.match(element)
            if match is None:
                raise PtxError(f"{self.opcode}: a row has the modifier {element!r}")
            name, optional, default, choices = match[1], match[2] is not None, match[3] or "", match[4]
            key = name.replace("::", "_")
            body = choices if choices else name
            if choices:
                defaults[key] = default
            else:
                flags.add(key)
            alternatives = "|".join(re.escape(choice) for choice in body.split("|"))
            # A group's name may not begin with a digit, as .2d does.
            text += rf"(?:\.(?P<m_{key}>{alternatives}))" + ("?" if optional else "")
        return re.compile(text + "$"), defaults, frozenset(flags)

    @cached_property
    def _specifications(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The operands as they are written, each with what stands in it; of a pair of results that is nothing yet."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for specification in self.operands.split():
            match = _OPERAND.match(specification) if "|" not in specification else None
            if match is None and "|" not in specification:
                raise PtxError(f"{self.opcode}: a row has the operand {specification!r}")
            found.append((specification, match.groups() if match is not None else ()))
        return tuple(found)

    def match(self, opcode: str) -> dict[str, str] | None:
        """The values of the modifiers, or None where the row does not cover the opcode."""
        pattern, defaults, flags = self._pattern
        match = pattern.match(opcode)
        if match is None:
            return None
        values = {}
        for group, text in match.groupdict().items():
            key = group[2:]
            if key in flags:
                values[key] = "true" if text else "false"
            else:
                values[key] = text or defaults[key]
        return values

    def translate(self, writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
        """The C++ statements of an instruction that `match` accepted.

        Raises:
            PtxError: the operands are not those of the opcode.
        """
        if self.build is not None:
            return self.build(writer, instruction, modifiers)
        fields = self._fields_of(instruction.opcode, modifiers) | {"L": str(instruction.location)}
        results: list[tuple[str, str, Operand | None]] = []
        waiting = list(instruction.operands)
        for index, (specification, parts) in enumerate(self._specifications):
            if not parts:
                results += (
                    self._pair(specification, waiting.pop(0), modifiers) if waiting else self._missing(instruction)
                )
                continue
            bracket, name, kind, number, optional, flag, default = parts
            if optional is not None:
                rest = len(self._specifications) - index
                present = modifiers[flag] == "true" if flag else len(waiting) >= rest
                if not present:
                    fields[name] = default if default is not None else ""
                    continue
            if not waiting:
                self._missing(instruction)
            operand = waiting.pop(0)
            if bracket:
                space = self._named(kind or "", modifiers)
                fields[name] = writer.shared(operand, space) if number else writer.pointer(operand, space)
            elif name in _RESULTS:
                results.append((name, self._type(name, kind, modifiers), operand))
            else:
                fields[name] = writer.read(operand, self._type(name, kind, modifiers))
        if waiting:
            raise PtxError(f"{instruction.opcode}: {len(waiting)} operands too many")
        return self._render(writer, fields, results)

    def _fields_of(self, opcode: str, modifiers: dict[str, str]) -> dict[str, str]:
        """What stands for an opcode's modifiers in a template."""
        fields = self._fields.get(opcode)
        if fields is None:
            fields = {key: _Choice(value) for key, value in modifiers.items()}
            fields |= {key.upper(): value.upper() for key, value in modifiers.items()}
            fields["T"] = "T"
            self._fields[opcode] = fields
        return fields

    def _missing(self, instruction: Instruction) -> list[tuple[str, str, Operand | None]]:
        raise PtxError(f"{instruction.opcode}: operands are missing")

    def _pair(
        self, specification: str, operand: Operand, modifiers: dict[str, str]
    ) -> list[tuple[str, str, Operand | None]]:
        first, second = specification.rstrip("?").split("|")
        names = [part.partition(":") for part in (first, second)]
        kinds = [self._type(name, kind, modifiers) for name, _, kind in names]
        if isinstance(operand, Pair):
            return [(names[0][0], kinds[0], operand.first), (names[1][0], kinds[1], operand.second)]
        if not specification.endswith("?"):
            raise PtxError(f"{self.opcode}: a result is missing")
        return [(names[0][0], kinds[0], operand), (names[1][0], kinds[1], None)]

    def _type(self, name: str, kind: str | None, modifiers: dict[str, str]) -> str:
        if kind:
            return self._named(kind, modifiers)
        return "pred" if name in ("p", "q") else modifiers["type"]

    def _named(self, kind: str, modifiers: dict[str, str]) -> str:
        """A type or space that an operand names: the choice of a modifier of that name, or itself."""
        if kind == "unsigned":
            return f"u{modifiers['type'][1:]}"
        _, choices, _ = self._pattern
        return modifiers[kind] if kind in choices else kind

    def _render(self, writer: Writer, fields: dict[str, str], results: list[tuple[str, str, Operand | None]]) -> str:
        if self.value is not None:
            value = self.value.format_map(fields)
            (_, kind, operand), *contrary = results
            assert operand is not None
            if not contrary or contrary[0][2] is None:
                return writer.write(operand, kind, value)
            both = (writer.write(operand, kind, "holds"), writer.write(contrary[0][2], kind, "!holds"))
            return f"{{ const pred holds = {value}; {' '.join(both)} }}"
        assert self.effect is not None, self.opcode
        code = self.effect.format_map(fields)
        if not results:
            return code if code.endswith(";") or not code else code + ";"
        declarations = " ".join(f"{kind} {name}{{}};" for name, kind, _ in results)
        writes = " ".join(writer.write(to, kind, name) for name, kind, to in results if to is not None)
        return f"{{ {declarations} {code}; {writes} }}"
