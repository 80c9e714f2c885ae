"""Forwards whose source shows that they do the same at every call, but for what can be looked up at each.

`torch.fx` runs a forward once and writes down what it did; whatever the forward decided then is decided for good. That is right
of a forward that computes with what it is given and decides nothing by anything else:

    out = self.relu(self.bn1(self.conv1(x)))          calls of submodules, PyTorch's functions, a tensor's methods, arithmetic
    if self.downsample is not None:                   decides by a submodule's being there ...
        x = self.downsample(x)
    return self.relu(out + x) if self.adds else out   ... or by a plain attribute: both are looked up again at each call

and wrong of one that draws a number, reads a global or asks a tensor for its values. This module reads the source and takes what it
knows; anything else is refused by the line that has it.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.overrides import get_testing_overrides

__all__ = ["NotStraightError", "Settled", "settled_by"]

_PLAIN = (bool, int, float, str, type(None))
"""Attributes that cannot change but by being set."""

_IN_PLACE = (torch.relu_, nn.functional.relu_)
"""Functions of PyTorch's that are recorded, and are not in its list of those."""

_LOOKED_UP = ("__call__", "_call_impl", "__getattr__", "__getattribute__")
"""How a module's attributes and calls are found; a class that has its own may find others the next time."""


class NotStraightError(Exception):
    """A forward may do something else at the next call; the message says what does not show."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a forward goes by that is not what it is given. Immutable.

    Args:
        attributes: Plain attributes of the module, and what they are.
        children: Submodules that it asks for or calls, and whether they are there.
        methods: Of the module that were read: the class that has them, the name, the function and its code.
        names: From outside: where each is looked up, the name, and what is found.
    """

    attributes: tuple[tuple[str, object], ...] = ()
    children: tuple[tuple[str, bool], ...] = ()
    methods: tuple[tuple[type, str, types.FunctionType, types.CodeType], ...] = ()
    names: tuple[tuple[Mapping[str, object], str, object], ...] = ()

    def still(self, module: nn.Module) -> bool:
        """Whether it is what it was."""
        own = module.__dict__
        modules = own["_modules"]
        for name, value in self.attributes:
            if own.get(name, Settled) is not value:
                return False
        for name, is_there in self.children:
            if (modules.get(name) is not None) is not is_there:
                return False
        for kind, name, function, code in self.methods:
            if name in own or getattr(kind, name, None) is not function or function.__code__ is not code:
                return False
        return all(namespace.get(name) is found for namespace, name, found in self.names)


def settled_by(module: nn.Module, theirs: type[nn.Module]) -> Settled:
    """What the forward that a module's class has goes by, beside its arguments and `training`.

    Args:
        module: The module.
        theirs: The class whose forward it is.

    Raises:
        NotStraightError: the source does not show that it does the same at every call.
    """
    for name in _LOOKED_UP:
        if getattr(theirs, name, None) is not getattr(nn.Module, name, None):
            raise NotStraightError(f"its class has a {name} of its own")
    reading = _Reading(module, theirs)
    if theirs.forward is nn.Sequential.forward and getattr(theirs, "__iter__", None) is nn.Sequential.__iter__:
        for name in module._modules:  # it has a loop, over these
            reading.is_there(name)
    else:
        reading.method("forward")
    return Settled(
        tuple(reading.attributes.items()),
        tuple(reading.children.items()),
        tuple(reading.methods),
        tuple(reading.names),
    )


class _Reading:
    """What has been read of a module's forward so far. Owned by one thread."""

    def __init__(self, module: nn.Module, theirs: type[nn.Module]) -> None:
        self.attributes: dict[str, object] = {}
        self.children: dict[str, bool] = {}
        self.methods: list[tuple[type, str, types.FunctionType, types.CodeType]] = []
        self.names: list[tuple[Mapping[str, object], str, object]] = []
        self._module, self._theirs = module, theirs
        self._open: list[str] = []
        # A trace knows whatever has two names by the first of them alone.
        named: list[tuple[str, object]] = [
            *module.named_modules(remove_duplicate=False),
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
        self._first = {id(each): name for name, each in reversed(named)}

    def method(self, name: str) -> None:
        """Read a method, which is taken to be given nothing but what a forward is given."""
        function = inspect.getattr_static(self._theirs, name, None)
        if not isinstance(function, types.FunctionType):
            raise NotStraightError(f"its {name} is no plain method")
        if name in self._open:
            raise NotStraightError(f"its {name} calls itself")
        self._open.append(name)
        self.methods.append((self._theirs, name, function, function.__code__))
        definition = _definition(function)
        self_name, *given = _parameters(definition)
        _Lines(self, self_name, given, function.__globals__).block(definition.body)
        self._open.pop()

    def attribute(self, name: str) -> bool:
        """Read an attribute of the module: whether it is a tensor."""
        own = self._module.__dict__
        if name == "training":  # each mode has a forward of its own
            return False
        self._is_instances(name)
        if name in own and type(own[name]) in _PLAIN:
            self.attributes[name] = own[name]
            return False
        tensor = own["_parameters"].get(name, own["_buffers"].get(name))
        if tensor is not None:
            self._is_first(name, tensor)
            return True
        raise NotStraightError(f"self.{name} is no number, text, tensor or submodule of its own")

    def is_child(self, name: str) -> bool:
        """Whether an attribute is a submodule, or the place of one that is not there."""
        return name in self._module._modules

    def is_there(self, name: str) -> None:
        """Read whether there is a submodule."""
        self._is_instances(name)
        child = self._module._modules[name]
        if child is not None:
            self._is_first(name, child)
        self.children[name] = child is not None

    def called(self, name: str) -> None:
        """Read a call of a submodule or of a method."""
        own = self._module.__dict__
        if name in own["_modules"]:
            self.is_there(name)  # if it is not, the forward has asked before
        elif name in own and own[name] is None:  # likewise
            self.attribute(name)
        elif name in own:
            raise NotStraightError(f"self.{name} is called, and is no submodule")
        else:
            self.method(name)

    def _is_instances(self, name: str) -> None:
        if inspect.getattr_static(self._theirs, name, _Reading) is not _Reading:
            raise NotStraightError(f"its class has something of its own under self.{name}")

    def _is_first(self, name: str, found: object) -> None:
        if self._first[id(found)] != name:
            raise NotStraightError(f"self.{name} has another name, too")


class _Lines:
    """A function's lines, in their order: which of its names hold what depends on what it is given. Owned by one thread."""

    def __init__(self, reading: _Reading, self_name: str, given: Sequence[str], names: dict[str, Any]) -> None:
        self._reading, self._self, self._globals = reading, self_name, names
        self._given = set(given)
        self._settled: set[str] = set()

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Read statements."""
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(ast.Constant()) | ast.Pass() | ast.Return(None):
                pass
            case ast.Expr(value) | ast.Return(ast.expr() as value):
                self._is_given(value)
            case ast.Assign(targets, value):
                is_given = self._is_given(value)
                for target in targets:
                    self._assign(target, is_given)
            case ast.AnnAssign(target, _, ast.expr() as value):
                self._assign(target, self._is_given(value))
            case ast.AugAssign(ast.Name(name) as target, _, value):
                self._assign(target, self._local(name, target) | self._is_given(value))
            case ast.If(test, then, otherwise):
                self._decides_by(test)
                self.block(then)
                self.block(otherwise)
            case _:
                raise _refused(statement)

    def _assign(self, target: ast.expr, is_given: bool) -> None:
        match target:
            case ast.Name(name) if name != self._self:
                (self._given if is_given else self._settled).add(name)
            case ast.Tuple(targets) | ast.List(targets):
                for each in targets:
                    self._assign(each, is_given)
            case _:
                raise _refused(target)

    def _decides_by(self, test: ast.expr) -> None:
        if self._is_given(test):
            raise _refused(test, "what it is given decides")

    def _any_is_given(self, expressions: Sequence[ast.expr | None]) -> bool:
        found = [self._is_given(each) for each in expressions if each is not None]  # all of them are read
        return any(found)

    def _is_given(self, expression: ast.expr) -> bool:
        """Read an expression: whether its value depends on what the forward is given; else it is the same at each call."""
        match expression:
            case ast.Constant():
                return False
            case ast.Name(name):
                return self._local(name, expression)
            case ast.Attribute(ast.Name(self._self), name):
                return self._reading.attribute(name)
            case ast.Attribute(value) if self._is_tensor(value):
                return True
            case ast.Call(function, arguments, keywords):
                return self._call(expression, function, [*arguments, *(each.value for each in keywords)])
            case ast.Compare(
                ast.Attribute(ast.Name(self._self), name), [ast.Is() | ast.IsNot()], [ast.Constant(None)]
            ) if self._reading.is_child(name):
                self._reading.is_there(name)
                return False
            case ast.Compare(left, operators, others):
                is_given = self._any_is_given([left, *others])
                if is_given and any(isinstance(each, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for each in operators):
                    raise _refused(expression, "what it is given decides")
                return is_given
            case ast.BoolOp(_, values):
                for each in values:
                    self._decides_by(each)
                return False
            case ast.UnaryOp(ast.Not(), operand):
                self._decides_by(operand)
                return False
            case ast.UnaryOp(_, operand):
                return self._is_given(operand)
            case ast.BinOp(left, _, right):
                return self._any_is_given([left, right])
            case ast.IfExp(test, then, otherwise):
                self._decides_by(test)
                return self._any_is_given([then, otherwise])
            case ast.Subscript(value, index):
                return self._any_is_given([value, index])
            case ast.Slice(first, last, step):
                return self._any_is_given([first, last, step])
            case ast.Tuple(values) | ast.List(values):
                return self._any_is_given(values)
            case _:
                raise _refused(expression)

    def _local(self, name: str, expression: ast.expr) -> bool:
        if name in self._given:
            return True
        if name in self._settled:
            return False
        raise _refused(expression, "a name from outside")

    def _is_tensor(self, expression: ast.expr) -> bool:
        """Whether an expression, of which an attribute or a method is asked for, depends on what the forward is given."""
        return not self._is_from_outside(expression) and self._is_given(expression)

    def _is_from_outside(self, expression: ast.expr) -> bool:
        while isinstance(expression, ast.Attribute):
            expression = expression.value
        return isinstance(expression, ast.Name) and expression.id not in {self._self, *self._given, *self._settled}

    def _call(self, call: ast.Call, function: ast.expr, arguments: Sequence[ast.expr]) -> bool:
        if any(keyword.arg is None for keyword in call.keywords):
            raise _refused(call)
        match function:
            case ast.Attribute(ast.Name(self._self), name):
                self._reading.called(name)
                self._any_is_given(arguments)
                return True
            case ast.Attribute(value) if self._is_tensor(value):
                self._any_is_given(arguments)
                return True
            case _ if self._is_pytorchs(function) and self._any_is_given(arguments):
                return True
            case _:
                raise _refused(call)

    def _is_pytorchs(self, function: ast.expr) -> bool:
        """Whether a name from outside is one of PyTorch's functions, calls of which are recorded."""
        names: list[str] = []
        while isinstance(function, ast.Attribute):
            names.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name) or not self._is_from_outside(function):
            return False
        namespace: Mapping[str, object] = self._globals
        found: object = None
        looked_up = []
        for name in (function.id, *reversed(names)):
            found = namespace.get(name)
            looked_up.append((namespace, name, found))
            namespace = vars(found) if isinstance(found, types.ModuleType) else {}
        if not _is_recorded(found):
            return False
        self._reading.names += looked_up
        return True


def _is_recorded(function: Any) -> bool:
    try:
        return function in get_testing_overrides() or function in _IN_PLACE
    except TypeError:  # it is not hashable
        return False


def _refused(node: ast.expr | ast.stmt, why: str = "not understood") -> NotStraightError:
    line = ast.unparse(node).splitlines()[0]
    return NotStraightError(f"its source does not show that it does the same at every call: `{line}`, {why}")


def _parameters(definition: ast.FunctionDef) -> list[str]:
    those = definition.args
    if (
        those.vararg
        or those.kwarg
        or those.kwonlyargs
        or those.defaults
        or not (names := [each.arg for each in (*those.posonlyargs, *those.args)])
    ):
        raise NotStraightError(f"what its {definition.name} is given is not written out at each call")
    return names


def _definition(function: types.FunctionType) -> ast.FunctionDef:
    """A function's source, if that is what its code was made of."""
    if hasattr(function, "__wrapped__") or function.__code__.co_freevars:
        raise NotStraightError(f"its {function.__name__} is wrapped, or is a closure")
    return _definition_of(function.__code__)


@lru_cache(maxsize=256)
def _definition_of(code: types.CodeType) -> ast.FunctionDef:
    name = code.co_name
    try:
        definitions, codes = _parsed("".join(inspect.findsource(code)[0]))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError) as error:
        raise NotStraightError(f"there is no source of its {name}") from error
    definition, made = definitions.get(code.co_firstlineno), codes.get(code.co_firstlineno)
    if definition is None or made is None or definition.decorator_list or not _is_same(made, code):
        raise NotStraightError(f"the source of its {name} is not that of its code")
    return definition


@lru_cache(maxsize=4)
def _parsed(source: str) -> tuple[dict[int, ast.FunctionDef], dict[int, types.CodeType]]:
    """The functions of a file, and the code that its source makes of each, by their first lines.

    The whole of it is compiled: what a call of `F.relu` is made into goes by whether the file imports `F`.
    """
    tree = ast.parse(source)
    codes: dict[int, types.CodeType] = {}
    inside = [compile(tree, "<source>", "exec", dont_inherit=True)]
    while inside:
        own = [const for const in inside.pop().co_consts if isinstance(const, types.CodeType)]
        codes |= {code.co_firstlineno: code for code in own if code.co_name != "<lambda>"}
        inside += own
    return {node.lineno: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, codes


def _is_same(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether two functions do the same; a file may have been changed since it was imported."""
    return all(
        getattr(one, name) == getattr(other, name) for name in ("co_code", "co_names", "co_varnames", "co_consts")
    )
