"""From an ONNX model to a graph and its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, defs

from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ModelImportError, NotSupportedError
from dnncore.importers.onnx.attributes import Attributes
from dnncore.importers.onnx.conversion import Call, Net
from dnncore.importers.onnx.folding import FOLDS, Folding
from dnncore.importers.onnx.limits import Budget, Limits
from dnncore.importers.onnx.reading import ONNX_DOMAINS, Opened, nodes_of, open_model
from dnncore.importers.onnx.rules import RULES
from dnncore.importers.onnx.tensors import TensorReader, dtype_of
from dnncore.importers.onnx.values import FEW, MANY, Computed, Imported, Known
from dnncore.importers.onnx.versions import NEWEST_VERSION, OLDEST_VERSIONS
from dnncore.nn.graph import BATCH, Extent, Graph, Role, Value
from dnncore.nn.model import Model
from dnncore.nn.operators import Identity

__all__ = ["Imports", "import_nodes", "import_onnx"]

_REFUSED = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, MemoryError)
"""What Python and NumPy raise where a file makes no sense that was not foreseen. BadParamError is among them."""

_NO_LIMITS = Limits()
_MOST_LETTERS = 1000
"""Of what is said of one node."""

_ONLY_CONSTANT = "this operator is supported only where its operands are constant"


def import_onnx(
    source: str | Path | bytes | ModelProto,
    *,
    shapes: Mapping[str, Sequence[Extent]] | None = None,
    limits: Limits = _NO_LIMITS,
) -> Model:
    """Import an ONNX model.

    A first extent without a number is the batch, "N". What is computed from shapes and constants alone is folded.

    Args:
        source: A path, with external data beside it; or what such a file holds.
        shapes: Of inputs, by name, where they are to differ from what the file says: extents that it leaves open, or "N" in place
            of a fixed number of images.
        limits: Bounds; files are not trusted.

    Returns:
        Values, nodes and constants have the names of the file where it has some.

    Raises:
        ModelImportError: it cannot be imported; the message lists every node that is in the way, by name, and why.
    """
    opened = _opened(source, limits)
    imports = import_nodes(opened, shapes or {}, {}, limits)
    return imports.model(tuple(imports.outputs))


def _opened(source: str | Path | bytes | ModelProto, limits: Limits) -> Opened:
    try:
        return open_model(source, limits)
    except BadParamError as error:
        raise ModelImportError(
            "model" if isinstance(source, bytes | ModelProto) else str(source), [str(error)]
        ) from error


@dataclass(frozen=True)
class Imports:
    """What became of a model's nodes. Immutable.

    Args:
        what: The model, for messages.
        name: Of the net.
        net: Nodes and constants.
        inputs: What is given at every run.
        outputs: What each of the model's outputs stands for.
    """

    what: str
    name: str
    net: Net
    inputs: tuple[Value, ...]
    outputs: Mapping[str, Imported]

    def model(self, wanted: Sequence[str]) -> Model:
        """The graph that gives some of the outputs.

        Raises:
            ModelImportError: it makes no sense.
        """
        try:
            return self._model(wanted)
        except (NotSupportedError, *_REFUSED) as error:
            raise ModelImportError(self.what, [_text(error)]) from error

    def _model(self, wanted: Sequence[str]) -> Model:
        net = self.net
        for name in wanted:
            found = self.outputs[name]
            if isinstance(found, Known):
                found = net.constant_of(Known(f"{name}.value", found.few, found.many), Role.FIXED)
            if found.name != name:
                (copy,) = net.emit(name, Identity(), (found,))
                net.rename(len(net.nodes) - 1, copy, name)
        read = {name for node in net.nodes for name in node.reads}
        constants = tuple(one for one in net.constants.values() if one.name in read)
        graph = Graph(self.name, self.inputs, tuple(wanted), tuple(net.nodes), constants)
        return Model(graph, {one.name: net.weights[one.name] for one in constants})


def import_nodes(
    opened: Opened, shapes: Mapping[str, Sequence[Extent]], given: Mapping[str, np.ndarray], limits: Limits
) -> Imports:
    """Turn the nodes that the outputs depend on into nodes of a net.

    Args:
        opened: The model.
        shapes: As for `import_onnx`.
        given: Elements of inputs, by name, that are taken as constants.
        limits: Bounds.

    Raises:
        ModelImportError: as `import_onnx`.
    """
    try:
        return _Importer(opened, shapes, given, limits).run()
    except (NotSupportedError, *_REFUSED) as error:
        raise ModelImportError(opened.what, [_text(error)]) from error


def _text(error: BaseException) -> str:
    """What a message says of an error; cut off where the file makes it long, as lists of numbers in it may."""
    known = isinstance(error, BadParamError | NotSupportedError)
    text = str(error) if known else f"is malformed: {type(error).__name__}: {error}"
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} ..."


class _Importer:
    """One import: what each name stands for, and what is in the way. A name that could not be imported stands for None."""

    def __init__(
        self, opened: Opened, shapes: Mapping[str, Sequence[Extent]], given: Mapping[str, np.ndarray], limits: Limits
    ) -> None:
        self._what = opened.what
        self._model = opened.model
        self._shapes = shapes
        self._given = given
        self._limits = limits
        self._read = TensorReader(Budget("initialisers", limits.tensor_bytes), opened.folder).read
        self._budget = Budget("what is folded", limits.folded_bytes(0))
        self._values: dict[str, Imported | None] = {}
        self._problems: list[str] = []
        self._fixed_batch: int | None = None
        self._opset = self._checked_opset()
        self._initializers = {one.name for one in self._model.graph.initializer}
        self._nodes = self._needed(nodes_of(self._model, limits))
        self._wanted = {name for node in self._nodes for name in node.input} | {
            one.name for one in opened.model.graph.output
        }
        names = {name for node in self._nodes for name in (*node.input, *node.output)}
        self._net = Net(
            names | {one.name for one in self._model.graph.input} | self._initializers, limits.nodes, self._budget
        )

    def _checked_opset(self) -> int:
        versions = {one.domain: one.version for one in self._model.opset_import}
        opset = max(versions.get(domain, 0) for domain in ONNX_DOMAINS)
        newest = defs.onnx_opset_version()
        if not 1 <= opset <= newest:
            raise NotSupportedError(f"opset {opset} is unknown; the installed onnx knows 1 to {newest}")
        return opset

    def _needed(self, nodes: Sequence[NodeProto]) -> list[NodeProto]:
        """Those nodes that an output depends on."""
        needed = {one.name for one in self._model.graph.output}
        found = []
        for node in reversed(nodes):
            if needed.intersection(filter(None, node.output)):
                needed.update(node.input)
                found.append(node)
        return found[::-1]

    def run(self) -> Imports:
        """Import everything.

        Raises:
            ModelImportError: something cannot be.
        """
        graph = self._model.graph
        read = [one for one in graph.input if one.name not in self._initializers]
        if unknown := self._shapes.keys() - {one.name for one in graph.input}:
            named, there = (", ".join(map(repr, names)) for names in (sorted(unknown), [one.name for one in read]))
            self._problems.append(f"shapes are given for {named}, and the inputs are {there}")
        inputs = self._inputs(read)
        self._read_initializers()
        for number, node in enumerate(self._nodes):
            self._import_node(node, number)
        for one in graph.output:
            if one.name not in self._values:
                self._problems.append(f"output {one.name!r} is written by no node")
        if not graph.output:
            self._problems.append("it has no outputs")
        if self._problems:
            raise ModelImportError(self._what, self._problems)
        outputs = {one.name: found for one in graph.output if (found := self._values[one.name]) is not None}
        return Imports(self._what, graph.name or "onnx", self._net, tuple(inputs), outputs)

    def _inputs(self, declared: Sequence[ValueInfoProto]) -> Iterable[Value]:
        inputs: list[Value] = []
        batch: str | None = None
        for one in declared:
            self._values[one.name] = None
            if one.name in self._given:
                array = self._given[one.name]
                self._values[one.name] = Known(one.name, array, array)
                continue
            try:
                value, batch = self._input(one, batch)
            except (NotSupportedError, *_REFUSED) as error:
                self._problems.append(f"input {one.name!r}: {_text(error)}")
                continue
            inputs.append(value)
            found = Computed(one.name, value.spec(FEW), value.spec(MANY))
            self._values[one.name] = found
            if value.shape[:1] == (BATCH,) and self._net.images is None:
                self._net.images = found
        return inputs

    def _input(self, declared: ValueInfoProto, batch: str | None) -> tuple[Value, str | None]:
        """An input, and what the file calls the batch."""
        if not declared.type.HasField("tensor_type"):
            raise NotSupportedError("only tensors are supported")
        kind = declared.type.tensor_type
        dtype = DType.of(dtype_of(kind.elem_type))
        stated = self._shapes.get(declared.name)
        if stated is None:
            if not kind.HasField("shape"):
                raise NotSupportedError(
                    f"the file states no shape; give it, as shapes={{{declared.name!r}: ({BATCH!r}, ...)}}"
                )
            shape, batch = _extents(declared.name, kind, batch)
        else:
            shape = tuple(stated)
            first = kind.shape.dim[0].dim_value if kind.shape.dim else 0
            if shape[:1] == (BATCH,) and first > 0:
                self._fixed_batch = first
        if not all(extent == BATCH or (isinstance(extent, int) and extent >= 0) for extent in shape):
            raise NotSupportedError(f"extents {list(shape)} must be 0 or more, or {BATCH!r} for the batch")
        return Value(declared.name, dtype, shape), batch

    def _read_initializers(self) -> None:
        graph = self._model.graph
        for tensor in graph.initializer:
            if tensor.name not in self._wanted:
                continue
            self._values[tensor.name] = None
            try:
                array = self._read(tensor)
            except (NotSupportedError, *_REFUSED) as error:
                self._problems.append(f"tensor {tensor.name!r}: {_text(error)}")
            else:
                self._values[tensor.name] = Known(tensor.name, array, array, of_file=True)
        nbytes = sum(known.few.nbytes for known in self._values.values() if isinstance(known, Known))
        self._budget.grant(self._limits.folded_bytes(nbytes) - self._limits.folded_bytes(0))
        for sparse in graph.sparse_initializer:
            self._problems.append(f"tensor {sparse.values.name!r}: sparse tensors are not supported")

    def _import_node(self, node: NodeProto, number: int) -> None:
        name = node.name or next(filter(None, node.output), f"{node.op_type}.{number}")
        results: Sequence[Imported | None] = ()
        try:
            with np.errstate(all="ignore"):
                results = self._results(node, name)
        except (NotSupportedError, *_REFUSED) as error:
            where = f"{node.domain}." if node.domain not in ONNX_DOMAINS else ""
            self._problems.append(f"node {name!r} ({where}{node.op_type}, opset {self._opset}): {_text(error)}")
        for index, output in enumerate(node.output):
            if output:
                self._values[output] = results[index] if index < len(results) else None

    def _results(self, node: NodeProto, name: str) -> Sequence[Imported | None]:
        """What a node's outputs stand for; nothing where that of an input is not known.

        Raises:
            NotSupportedError, BadParamError: it cannot be imported.
        """
        if node.domain not in ONNX_DOMAINS:
            raise NotSupportedError(f"operators of domain {node.domain!r} are not supported")
        version = self._version(node.op_type)
        for output in filter(None, node.output):
            if output in self._values:
                raise BadParamError(f"its output {output!r} is written twice")
        operands: list[Imported | None] = []
        for one in node.input:
            if one and one not in self._values:
                raise BadParamError(f"it reads {one!r}, which nothing before it writes")
            found = self._values[one] if one else None
            operands.append(found)
        if any(one and found is None for one, found in zip(node.input, operands, strict=True)):
            if node.op_type not in RULES:
                raise NotSupportedError(_ONLY_CONSTANT)
            return ()  # what is in the way there has been said
        while operands and operands[-1] is None:
            operands.pop()
        known = [one for one in operands if isinstance(one, Known)]
        if node.op_type in FOLDS and operands and len(known) == sum(one is not None for one in operands):
            return self._folded(node, version, operands)
        if node.op_type not in RULES:
            raise NotSupportedError(_ONLY_CONSTANT)
        return self._ruled(node, name, version, operands)

    def _version(self, kind: str) -> int:
        """The opset that last changed an operator, as far as this model is concerned."""
        if kind not in RULES and kind not in FOLDS:
            raise NotSupportedError("this operator is not supported")
        if not defs.has(kind, self._opset):
            raise BadParamError(f"opset {self._opset} has no such operator")
        version: int = defs.get_schema(kind, self._opset).since_version
        if version > NEWEST_VERSION[kind]:
            raise NotSupportedError(
                f"its version of opset {version} is not supported; that of {NEWEST_VERSION[kind]} is"
            )
        if version < OLDEST_VERSIONS and version != defs.get_schema(kind, OLDEST_VERSIONS).since_version:
            raise NotSupportedError(
                f"its version of opset {version} is not supported; those since {OLDEST_VERSIONS} are"
            )
        return version

    def _folded(self, node: NodeProto, version: int, operands: Sequence[Imported | None]) -> Sequence[Known]:
        pairs = [(one.few, one.many) if isinstance(one, Known) else (None, None) for one in operands]

        def fold(arrays: Sequence[np.ndarray | None]) -> Sequence[np.ndarray]:
            attributes = Attributes(node.attribute, self._read)
            return FOLDS[node.op_type](Folding(version, attributes, arrays, len(node.output), self._budget))

        few = fold([a for a, _ in pairs])
        many = few if all(a is b for a, b in pairs) else fold([b for _, b in pairs])
        of_file = any(isinstance(one, Known) and one.of_file for one in operands)
        return [Known(name, a, b, of_file) for name, a, b in zip(node.output, few, many, strict=False)]

    def _ruled(
        self, node: NodeProto, name: str, version: int, operands: Sequence[Imported | None]
    ) -> Sequence[Imported]:
        attributes = Attributes(node.attribute, self._read)
        outputs = [one if one in self._wanted else "" for one in node.output]
        call = Call(self._net, name, version, self._opset, attributes, operands, outputs, self._fixed_batch)
        start = len(self._net.nodes)
        results = list(RULES[node.op_type](call))
        attributes.refuse_others()
        if any(call.wants(index) for index in range(len(results), len(node.output))):
            raise NotSupportedError(f"more than {len(results)} of its results are not supported")
        made = {output for one in self._net.nodes[start:] for output in one.outputs}
        for index, output in enumerate(outputs[: len(results)]):
            found = results[index]
            if output and isinstance(found, Computed) and found.name in made:
                made.discard(found.name)
                results[index] = self._net.rename(start, found, output)
        return results


def _extents(name: str, kind: TypeProto.Tensor, batch: str | None) -> tuple[tuple[Extent, ...], str | None]:
    """An input's extents as the file has them, and what it calls the batch.

    Raises:
        NotSupportedError: an extent is left open that is not the batch.
    """
    shape: list[Extent] = []
    for axis, dim in enumerate(kind.shape.dim):
        if dim.dim_value > 0:
            shape.append(dim.dim_value)
        elif dim.HasField("dim_value") and dim.dim_value == 0:
            shape.append(0)
        elif axis == 0 and (batch is None or dim.dim_param in ("", batch)):
            batch = dim.dim_param or batch or ""
            shape.append(BATCH)
        elif dim.dim_param and dim.dim_param == batch:
            shape.append(BATCH)
        else:
            stated = ", ".join(
                repr(BATCH) if d == 0 else str(e.dim_value) if e.dim_value > 0 else "..."
                for d, e in enumerate(kind.shape.dim)
            )
            raise NotSupportedError(
                f"dimension {axis} ({dim.dim_param or 'without a name'}) is left open; give it, as shapes={{{name!r}: ({stated})}}"
            )
    return tuple(shape), batch
