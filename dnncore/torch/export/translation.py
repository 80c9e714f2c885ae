"""From the operators of an exported program to the nodes of a graph: one walk, by the rules in `rules`.

What depends on no input is computed on the way, by PyTorch: tables of position biases, masks, transposed weights. Shapes are
PyTorch's own; a node whose operator infers another one is an error, as is whatever has no rule: the walk goes on, and the error
lists all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ModelImportError, NotSupportedError
from dnncore.nn.graph import BATCH, Constant, Extent, Graph, Node, Role, Value
from dnncore.nn.model import Model
from dnncore.nn.operator import Operator, Spec
from dnncore.nn.operators import Identity
from dnncore.torch.dtypes import DTYPES
from dnncore.torch.export.call import Call
from dnncore.torch.export.rules import RULES, Rule

__all__ = ["Result", "Translation", "translate"]

_aten = torch.ops.aten

_FILLED = {
    _aten.new_ones.default: 1.0,
    _aten.new_zeros.default: 0.0,
    _aten.ones_like.default: 1.0,
    _aten.zeros_like.default: 0.0,
}
"""Operators that only look at the shape of what they read."""

_ROLES = {
    InputKind.PARAMETER: Role.TRAINABLE,
    InputKind.BUFFER: Role.BUFFER,
    InputKind.CONSTANT_TENSOR: Role.FIXED,
}

_PARAMETERS = {"self": "x", "input": "x", "tensors": "x"}
"""What rules call an operator's first argument."""

_IMAGES = 2
"""Number of images for which shapes are compared."""


class Result(NamedTuple):
    """Something that a program gives. Immutable.

    Args:
        name: Of the net's output; None where it is no tensor.
        value: What is given then.
    """

    name: str | None
    value: Any = None


def translate(program: ExportedProgram, name: str) -> tuple[Model, tuple[Result, ...]]:
    """The net that an exported program computes.

    Args:
        program: With one symbolic extent, the number of images.
        name: What people call it.

    Returns:
        The net, and the program's results in their order.

    Raises:
        ModelImportError: something has no rule; the message lists all of it.
    """
    return Translation(program, name).run()


class Translation:
    """A walk through a program. Owned by one thread.

    Args:
        program: What is translated.
        name: Of the net.
    """

    def __init__(self, program: ExportedProgram, name: str) -> None:
        self._program = program
        self._name = name
        self._known: dict[fx.Node, Any] = {}  # what depends on no input: tensors, and lists of them
        self._found: dict[
            fx.Node, Any
        ] = {}  # what does: values, and tuples of them, None for those that nobody computes
        self._role: dict[fx.Node, tuple[str, Role]] = {}  # of known tensors that the model has names for
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[str, Constant] = {}
        self._weights: dict[str, np.ndarray] = {}
        self._specs: dict[str, Spec] = {}
        self._taken: set[str] = set()
        self._problems: list[str] = []

    def run(self) -> tuple[Model, tuple[Result, ...]]:
        """The net and the program's results, as `translate` gives them."""
        results: tuple[Result, ...] = ()
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                results = self._results(node)
            else:
                self._problems.append(f"{node.op} {node.target!r} (node {node.name!r}): part of no rule")
        if self._problems:
            raise ModelImportError(self._name, self._problems)
        outputs = tuple(dict.fromkeys(result.name for result in results if result.name is not None))
        read = {name for node in self._nodes for name in node.reads}
        constants = tuple(constant for name, constant in self._constants.items() if name in read)
        graph = Graph(self._name, tuple(self._inputs), outputs, tuple(self._nodes), constants)
        return Model(graph, {constant.name: self._weights[constant.name] for constant in constants}), results

    # What goes in and comes out.

    def _place(self, node: fx.Node) -> None:
        (spec,) = (spec for spec in self._program.graph_signature.input_specs if spec.arg.name == node.name)
        if spec.kind is InputKind.USER_INPUT and isinstance(node.meta.get("val"), torch.Tensor):
            try:
                value = self._described(self._free(node.name), node.meta["val"])
            except NotSupportedError as error:
                self._problems.append(f"input {node.name!r}: {error}")
                return
            self._inputs.append(value)
            self._specs[value.name] = value.spec(_IMAGES)
            self._found[node] = value
        elif spec.kind in _ROLES:
            assert spec.target is not None
            store = self._program.state_dict
            self._known[node] = (store if spec.target in store else self._program.constants)[spec.target].detach()
            self._role[node] = spec.target, _ROLES[spec.kind]
        else:
            self._problems.append(
                f"input {node.name!r}: {spec.kind.name.lower().replace('_', ' ')} instead of a tensor"
            )

    def _results(self, node: fx.Node) -> tuple[Result, ...]:
        (given,) = node.args
        assert isinstance(given, tuple)
        found: list[Result] = []
        for result, spec in zip(given, self._program.graph_signature.output_specs, strict=True):
            if spec.kind is not OutputKind.USER_OUTPUT:
                self._problems.append(f"the model writes {spec.target!r} while it runs ({spec.kind.name.lower()})")
            elif isinstance(result, fx.Node):
                found.append(self._output(result))
            else:
                found.append(Result(None, result))
        return tuple(found)

    def _output(self, node: fx.Node) -> Result:
        """The name under which a value is handed out; what the net reads itself gets one."""
        try:
            value = self._operand(node)
        except NotSupportedError as error:
            self._problems.append(f"result {node.name!r}: {error}")
            return Result(None)
        if isinstance(value, int | float):
            return Result(None, value)
        if value is None:
            return Result(None)  # why it is not computed is among the problems
        if not isinstance(value, Value):
            self._problems.append(f"result {node.name!r}: a number of images, not a tensor")
            return Result(None)
        is_given = value.name in self._constants or value in self._inputs
        return Result(self.add(f"{value.name}.output", Identity(), [value.name])[0] if is_given else value.name)

    # Operators.

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self._pick(node)
            return
        result = node.meta.get("val")
        tensors = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if not tensors or not all(isinstance(each, torch.Tensor) for each in tensors):
            return  # arithmetic on extents, whose results stand in the shapes; or an assertion
        if self._is_known(node):
            self._known[node] = self._computed(node)
            return
        made = self._translated(node, tensors)
        self._found[node] = made if isinstance(result, (tuple, list)) else made[0]

    def _translated(self, node: fx.Node, tensors: Sequence[torch.Tensor]) -> tuple[Value | None, ...]:
        """What stands for a node's results: what its rule makes, or something of the same shape where it cannot."""
        rule: Rule = RULES.get(node.target, _refuse)
        what = f"{node.target} (node {node.name!r}{_module_of(node)})"
        try:
            first = self._described(node.name, tensors[0])
        except NotSupportedError as error:
            self._problems.append(f"{what}: {error}")
            return (None,) * len(tensors)
        values = (first, *map(self._described_if_possible, tensors[1:]))
        try:
            names = rule(Call(self, _name_of(node), first, values), **self._arguments(node))
            return self._checked(names if isinstance(names, tuple) else (names,), values)
        except (NotSupportedError, BadParamError) as error:
            operands = [self._found.get(each) for each in node.all_input_nodes]
            read = ", ".join(_text(each) for each in operands if isinstance(each, Value))
            self._problems.append(f"{what}: {error}; {read} -> {_text(first)}")
        return tuple(None if value is None else self._stand_in(value) for value in values)

    def _checked(self, names: Sequence[str | None], expected: Sequence[Value | None]) -> tuple[Value | None, ...]:
        """What a rule has made, with the shapes that PyTorch gives it."""
        made: list[Value | None] = []
        for name, value in zip(names, expected, strict=True):
            if name is not None and value is not None and self._specs[name] != value.spec(_IMAGES):
                raise BadParamError(f"it would give {self._specs[name]} for {_IMAGES} images")
            made.append(None if name is None or value is None else value._replace(name=name))
        return tuple(made)

    def _stand_in(self, value: Value) -> Value:
        name = self._free(value.name)
        self._specs[name] = value.spec(_IMAGES)
        return value._replace(name=name)

    def _pick(self, node: fx.Node) -> None:
        """One of several results."""
        source, index = node.args
        assert isinstance(source, fx.Node)
        if source in self._known:
            self._known[node] = self._known[source][index]
            return
        self._found[node] = picked = self._found[source][index]
        if picked is None and node.users and self._found[source][0] is not None:
            what = f"{source.target} (node {source.name!r}{_module_of(source)})"
            self._problems.append(f"{what}: its result {index} is not computed")

    # Arguments.

    def _is_known(self, node: fx.Node) -> bool:
        """Whether a node depends on no input, and so can be computed now."""
        if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in node.target.tags:
            return False
        if node.target in _FILLED:
            return all(isinstance(extent, int) for extent in node.meta["val"].shape)
        return all(each in self._known for each in node.all_input_nodes)

    def _computed(self, node: fx.Node) -> Any:
        if node.target in _FILLED:
            shape, device = tuple(node.meta["val"].shape), node.meta["val"].device
            return torch.full(shape, _FILLED[node.target], dtype=node.meta["val"].dtype, device=device)
        args, kwargs = (fx.node.map_arg(part, self._known.__getitem__) for part in (node.args, node.kwargs))
        with torch.no_grad():
            return node.target(*args, **kwargs)

    def _arguments(self, node: fx.Node) -> dict[str, Any]:
        """By the names of the operator's declaration, but for the first, which rules call x; defaults filled in."""
        assert isinstance(node.target, torch._ops.OpOverload)
        found: dict[str, Any] = {}
        for place, declared in enumerate(node.target._schema.arguments):
            given = (
                node.args[place] if place < len(node.args) else node.kwargs.get(declared.name, declared.default_value)
            )
            found[_PARAMETERS.get(declared.name, declared.name)] = self._argument(given)
        return found

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return tuple(self._argument(each) for each in argument)
        return self._operand(argument) if isinstance(argument, fx.Node) else argument

    def _operand(self, node: fx.Node) -> Any:
        """A value; a number for a tensor of one that is known, or for an extent; its symbol for one that is the batch's."""
        if node in self._found:
            return self._found[node]
        if node not in self._known:
            value = node.meta.get("val")
            return _extent(value) if isinstance(value, (int, torch.SymInt)) else value
        known = self._known[node]
        if not isinstance(known, torch.Tensor) or known.dim() == 0:
            return known.item() if isinstance(known, torch.Tensor) else known
        name, role = self._role.get(node, (_name_of(node), Role.FIXED))
        return self._found.setdefault(node, self._loaded(name, role, known))

    def _loaded(self, base: str, role: Role, tensor: torch.Tensor) -> Value:
        name = self._free(base)
        value = self._described(name, tensor)
        self._keep(name, role, tensor.cpu().contiguous().numpy().copy())
        return value

    def _keep(self, name: str, role: Role, array: np.ndarray) -> None:
        constant = Constant(name, array.shape, DType.of(array.dtype), role)
        self._constants[name], self._weights[name], self._specs[name] = constant, array, constant.spec

    def _described_if_possible(self, tensor: torch.Tensor) -> Value | None:
        return self._described("", tensor) if tensor.dtype in (torch.float32, torch.bool) else None

    def _described(self, name: str, tensor: torch.Tensor) -> Value:
        if tensor.dtype not in (torch.float32, torch.bool):
            raise NotSupportedError(
                f"{tensor.dtype}; a model is imported in torch.float32 (`model.float()`), and computes in 16 bits when it is run"
            )
        return Value(name, DTYPES[tensor.dtype], tuple(map(_extent, tensor.shape)))

    # What rules ask for (`Net`).

    def add(self, base: str, kind: Operator, inputs: Sequence[str | None]) -> tuple[str, ...]:
        """Add a node, named as near to `base` as possible; the names of its outputs."""
        name = self._free(base)
        specs = kind.infer_checked([None if each is None else self._specs[each] for each in inputs])
        outputs = tuple(name if number == 0 else self._free(f"{name}.{number}") for number in range(len(specs)))
        self._specs.update(zip(outputs, specs, strict=True))
        self._nodes.append(Node(name, kind, tuple(inputs), outputs))
        return outputs

    def constant(self, base: str, array: np.ndarray) -> str:
        """Add a constant, named as near to `base` as possible."""
        name = self._free(base)
        self._keep(name, Role.FIXED, array)
        return name

    @property
    def images(self) -> str | None:
        """An input of the net that begins with the number of images."""
        return next((value.name for value in self._inputs if value.shape[:1] == (BATCH,)), None)

    def _free(self, wanted: str) -> str:
        number, name = 1, wanted
        while name in self._taken:
            number += 1
            name = f"{wanted}.{number}"
        self._taken.add(name)
        return name


def _refuse(_call: Call, **_arguments: Any) -> str:
    """The rule of everything that has none."""
    raise NotSupportedError("not supported")


def _extent(extent: int | torch.SymInt) -> Extent:
    """A number, or a multiple of the batch."""
    if isinstance(extent, int):
        return extent
    expression = extent.node.expr
    if expression.is_number:
        return int(expression)
    symbols = expression.free_symbols
    multiple = expression.subs(dict.fromkeys(symbols, 1))
    if len(symbols) != 1 or expression != multiple * next(iter(symbols)):
        raise NotSupportedError(f"an extent is {expression}, no multiple of the number of images")
    return BATCH if multiple == 1 else f"{multiple}{BATCH}"


def _text(value: Value) -> str:
    return f"{value.dtype.value}[{', '.join(map(str, value.shape))}]"


def _modules(node: fx.Node) -> list[tuple[str, str]]:
    """Path and class of the modules that a node is in, from the model inwards."""
    return [(path, str(kind)) for path, kind in node.meta.get("nn_module_stack", {}).values()]


def _module_of(node: fx.Node) -> str:
    modules = _modules(node)
    return f" in {modules[-1][0]!r}" if modules and modules[-1][0] else ""


_LAYERS = ("torch.nn.modules.", "dnncore.torch.modules.")
"""Where the classes of layers are, those of a converted model included."""


def _name_of(node: fx.Node) -> str:
    """What a node is called: as the layer that it is, or as the module that it is in, and the operator."""
    path, kind = (_modules(node) or [("", "")])[-1]
    if path and kind.startswith(_LAYERS):
        return path
    called = str(node.target).removeprefix("aten.").partition(".")[0].strip("_")
    return f"{path}.{called}" if path else called
