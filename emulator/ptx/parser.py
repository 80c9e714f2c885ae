"""Tokens to a module: declarations, functions and statements. Opcodes are kept as words; `instructions` knows what they mean."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from emulator.ptx.errors import NotEmulatedError, PtxSyntaxError
from emulator.ptx.lexer import Lexer
from emulator.ptx.syntax import (
    Address,
    Arguments,
    Block,
    BranchTargets,
    Float,
    Function,
    Initial,
    Instruction,
    Integer,
    Label,
    Location,
    Module,
    Name,
    Negated,
    Operand,
    Pair,
    Prototype,
    Registers,
    Statement,
    Sum,
    Variable,
    Vector,
)

__all__ = ["parse"]

_Item = TypeVar("_Item")
_LINKAGE = {".visible", ".weak", ".extern", ".common"}
_SPACES = {".reg", ".global", ".const", ".shared", ".local", ".param"}
_FUNCTION_DIRECTIVES = {
    "maxntid", "reqntid", "minnctapersm", "maxnctapersm", "maxnreg", "maxclusterrank", "reqnctapercluster",
    "explicitcluster", "blocksareclusters", "noreturn", "unified", "abi_preserve", "abi_preserve_control",
}  # fmt: skip


def parse(text: str, file: str = "") -> Module:
    """Read a PTX module. Instructions without a .loc before them are located in `file`.

    Raises:
        PtxSyntaxError: the text is not PTX; the message names the line.
        NotEmulatedError: it has a directive that has no meaning here.
    """
    return _Parser(Lexer(text), file).module()


class _Parser:
    """Recursive descent over the tokens. Owned by one call of `parse`."""

    def __init__(self, lexer: Lexer, file: str) -> None:
        self._lexer = lexer
        self._tokens, self._kinds = lexer.tokens, lexer.kinds
        self._at = 0
        self._file = file
        self._files = self._numbered_files()
        self._module = Module()
        self._location_index: dict[Location, int] = {}
        self._placed: dict[tuple[int, int, int], int] = {}  # (file, line, column) of a .loc -> its location
        self._location: int | None = None  # of the last .loc; None before the function's first

    # ---- tokens ----

    def _peek(self) -> str:
        return self._tokens[self._at]

    def _peek_kind(self) -> str:
        return self._kinds[self._tokens[self._at]]

    def _next(self) -> str:
        token = self._tokens[self._at]
        if not token:
            raise self._error("unexpected end of the text")
        self._at += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._tokens[self._at] != text:
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._error(f"expected {text!r} instead of {self._peek()!r}")

    def _word(self) -> str:
        token = self._tokens[self._at]
        if self._kinds[token] != "word":
            raise self._error(f"expected a name instead of {token!r}")
        self._at += 1
        return token

    def _integer(self) -> int:
        negative = self._accept("-")
        token = self._next()
        if self._kinds[token] != "integer":
            raise self._error(f"expected an integer instead of {token!r}")
        value = _integer(token)
        return -value if negative else value

    def _error(self, message: str) -> PtxSyntaxError:
        return PtxSyntaxError(f"line {self._lexer.line(self._at)}: {message}")

    def _listed(self, item: Callable[[], _Item], close: str) -> tuple[_Item, ...]:
        """Items between commas up to a closing sign."""
        items: list[_Item] = []
        while not self._accept(close):
            if items:
                self._expect(",")
            items.append(item())
        return tuple(items)

    def _skip_to(self, text: str) -> None:
        while self._next() != text:
            pass

    # ---- locations (PTX ISA 11.5.1, 11.5.4) ----

    def _intern(self, location: Location) -> int:
        index = self._location_index.get(location)
        if index is None:
            index = self._location_index[location] = len(self._module.locations)
            self._module.locations.append(location)
        return index

    def _numbered_files(self) -> dict[int, str]:
        """Names by the numbers that .loc uses; nvcc writes the .file directives behind the code."""
        return {
            int(self._tokens[i + 1]): self._tokens[i + 2][1:-1]
            for i, token in enumerate(self._tokens)
            if token == ".file"
        }

    def _file_directive(self) -> None:
        self._integer()
        self._next()
        while self._accept(","):  # time of the last change, size
            self._integer()

    def _loc_directive(self) -> None:
        file, line, column = self._integer(), self._integer(), self._integer()
        caller = 0
        while self._accept(","):
            if self._accept("function_name"):
                self._word()
                if self._accept("+"):
                    self._integer()
            else:
                self._expect("inlined_at")
                place = (self._integer(), self._integer(), self._integer())
                caller = self._placed.get(place) or self._intern(Location(self._files.get(place[0], ""), place[1]))
        self._location = self._intern(Location(self._files.get(file, ""), line, caller))
        self._placed[file, line, column] = self._location

    def _here(self, index: int) -> int:
        """The location of an instruction whose opcode is the token of that index."""
        if self._location is not None:
            return self._location
        return self._intern(Location(self._file, self._lexer.line(index))) if self._file else 0

    # ---- module ----

    def module(self) -> Module:
        """The whole text."""
        while self._peek():
            self._top_level()
        return self._module

    def _top_level(self) -> None:
        word = self._next()
        external = False
        while word in _LINKAGE:
            external = external or word == ".extern"
            word = self._next()
        if word == ".version":
            self._next()
        elif word == ".target":
            self._module.target = self._word()
            while self._accept(","):
                self._word()
        elif word == ".address_size":
            if self._integer() != 64:
                raise NotEmulatedError(".address_size other than 64")
        elif word == ".file":
            self._file_directive()
        elif word == ".section":
            self._skip_to("{")
            self._skip_to("}")
        elif word in (".pragma", ".alias"):
            self._skip_to(";")
        elif word in (".entry", ".func"):
            self._module.functions.append(self._function(entry=word == ".entry"))
        elif word in _SPACES and word != ".reg":
            self._module.variables += self._variables(word[1:], external)
            self._expect(";")
        elif word != ";":
            self._at -= 1
            raise self._error(f"unknown directive {word!r}")

    def _function(self, entry: bool) -> Function:
        self._location = None
        self._placed.clear()
        results = self._listed(self._parameter, ")") if not entry and self._accept("(") else ()
        name = self._word()
        parameters = self._listed(self._parameter, ")") if self._accept("(") else ()
        directives = self._directives()
        body = None
        if not self._accept(";"):
            self._expect("{")
            body = self._block()
        return Function(name, entry, parameters, results, directives, body)

    def _directives(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        while self._peek() not in ("{", ";"):
            word = self._word()
            if word == ".pragma":
                self._skip_to(";")
                continue
            if word[1:] not in _FUNCTION_DIRECTIVES:
                raise self._error(f"unknown directive {word!r}")
            numbers = []
            while self._peek_kind() == "integer":
                numbers.append(self._integer())
                self._accept(",")
            found[word[1:]] = tuple(numbers)
        return found

    # ---- variables (PTX ISA 5.4) ----

    def _parameter(self) -> Variable:
        (variable,) = self._variables(self._word()[1:], external=False, parameter=True)
        return variable

    def _variables(self, space: str, external: bool, parameter: bool = False) -> list[Variable]:
        alignment, width, kind = None, 1, None
        while self._peek().startswith("."):
            word = self._word()
            if word == ".align":
                alignment = self._integer()
            elif word in (".v2", ".v4", ".v8"):
                width = int(word[2:])
            elif word == ".ptr":
                self._pointer_attributes()
            elif word == ".attribute":
                self._skip_to(")")
            elif word not in (".managed", ".unified"):
                kind = word[1:]
        if kind is None:
            raise self._error("a variable without a type")
        variables = []
        while True:
            variables.append(self._variable(space, kind, width, alignment, external))
            if parameter or not self._accept(","):
                return variables

    def _pointer_attributes(self) -> None:
        """What `.ptr` says of a parameter: a space and an alignment, for optimisers."""
        while self._peek() in (".global", ".const", ".shared", ".local", ".align"):
            if self._word() == ".align":
                self._integer()

    def _variable(self, space: str, kind: str, width: int, alignment: int | None, external: bool) -> Variable:
        name = self._word()
        count: int | None = width
        while self._accept("["):
            length = None if self._peek() == "]" else self._integer()
            self._expect("]")
            count = None if length is None or count is None else count * length
        initial = self._initialiser() if self._accept("=") else ()
        if count is None and initial:
            count = len(initial)
        return Variable(space, kind, name, count, alignment, initial, external)

    def _initialiser(self) -> tuple[Initial, ...]:
        if not self._accept("{"):
            return (self._initial(),)
        return tuple(item for part in self._listed(self._initialiser, "}") for item in part)

    def _initial(self) -> Initial:
        if self._peek_kind() != "word":
            number = self._number()
            return Initial(number)
        name = self._word()
        if name == "generic":
            self._expect("(")
            name = self._word()
            self._expect(")")
        elif self._peek() == "(":
            raise NotEmulatedError(f"{name}() in an initialiser")
        return Initial(Sum(name, self._addend()))

    def _addend(self) -> int:
        total = 0
        while self._peek() in ("+", "-"):
            sign = -1 if self._next() == "-" else 1
            total += sign * self._integer()
        return total

    # ---- statements ----

    def _block(self) -> Block:
        statements: list[Statement] = []
        while not self._accept("}"):
            statements += self._statement()
        return Block(tuple(statements))

    def _statement(self) -> list[Statement]:
        word = self._next()
        if word == ";":
            return []
        if word == "{":
            return [self._block()]
        if word == "@":
            negated = self._accept("!")
            name = _name(self._word())
            guard = Negated(name) if negated else name
            return [self._instruction(self._next(), guard)]
        if self._kinds[word] != "word":
            self._at -= 1
            raise self._error(f"expected a statement instead of {word!r}")
        if word.startswith("."):
            return self._directive(word)
        if self._accept(":"):
            return [self._labelled(word)]
        return [self._instruction(word, None)]

    def _directive(self, word: str) -> list[Statement]:
        if word == ".loc":
            self._loc_directive()
            return []
        if word == ".file":
            self._file_directive()
            return []
        if word == ".pragma":
            self._skip_to(";")
            return []
        if word == ".reg":
            return [self._registers()]
        if word in _SPACES:
            variables = self._variables(word[1:], external=False)
            self._expect(";")
            return list(variables)
        self._at -= 1
        raise self._error(f"unknown directive {word!r}")

    def _registers(self) -> Registers:
        kind = self._word()[1:]
        if kind in ("v2", "v4", "v8"):
            raise NotEmulatedError(f".reg .{kind}")
        names: list[str] = []
        while True:
            name = self._word()
            if self._accept("<"):
                names += (f"{name}{i}" for i in range(self._integer()))
                self._expect(">")
            else:
                names.append(name)
            if self._accept(";"):
                return Registers(kind, tuple(names))
            self._expect(",")

    def _labelled(self, name: str) -> Statement:
        if self._accept(".branchtargets"):
            return BranchTargets(name, self._listed(self._word, ";"))
        if self._peek() in (".callprototype", ".calltargets"):
            self._skip_to(";")
            return Prototype(name)
        return Label(name)

    def _instruction(self, opcode: str, guard: Name | Negated | None) -> Instruction:
        index = self._at - 1
        operands = self._listed(self._operand, ";") if not self._accept(";") else ()
        return Instruction(opcode, operands, guard, self._here(index))

    # ---- operands (PTX ISA 6) ----

    def _operand(self) -> Operand:
        token = self._tokens[self._at]
        if self._kinds[token] == "word":  # as most are
            self._at += 1
            follows = self._tokens[self._at]
            if follows in ("+", "-"):
                return Sum(token, self._addend())
            return Pair(_name(token), self._operand()) if self._accept("|") else _name(token)
        if self._accept("["):
            return self._address()
        if self._accept("{"):
            return Vector(self._listed(self._operand, "}"))
        if self._accept("("):
            return Arguments(self._listed(self._operand, ")"))
        if self._accept("!"):
            return Negated(_name(self._word()))
        return self._number()

    def _address(self) -> Address:
        base: Name | Integer = _name(self._word()) if self._peek_kind() == "word" else Integer(self._integer())
        offset = self._addend()
        coordinates = None
        if self._accept(","):
            self._expect("{")
            coordinates = self._listed(self._operand, "}")
        self._expect("]")
        return Address(base, offset, coordinates)

    def _number(self) -> Integer | Float:
        negative = self._accept("-")
        token = self._next()
        kind = self._kinds[token]
        if kind == "integer":
            value = _integer(token)
            return Integer(-value if negative else value)
        if kind != "float":
            self._at -= 1
            raise self._error(f"expected an operand instead of {token!r}")
        if token[1] in "fF":
            bits, double = int(token[2:], 16), False
        elif token[1] in "dD":
            bits, double = int(token[2:], 16), True
        else:
            bits, double = struct.unpack("<Q", struct.pack("<d", float(token)))[0], True
        return Float(bits ^ (1 << (63 if double else 31)) if negative else bits, double)


@cache
def _name(text: str) -> Name:
    """Registers of all functions have the same names, and are named many times."""
    return Name(text)


@cache
def _integer(text: str) -> int:
    digits = text.rstrip("U")
    if digits.startswith("0") and digits.isdigit():
        return int(digits, 8)
    return int(digits, 0)
