"""A graph in graphviz's language, dot: a box for each node in the color of its family, an edge for each value that it reads.

Nodes whose names begin alike, as exporters name what belongs together ("layer1.0.conv1", "/layer1/layer1.0/conv1/Conv"), are drawn
in frames, where a net is large enough to need them.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from dnncore.dtypes import DType
from dnncore.nn.graph import Graph, Node, Value

__all__ = ["to_dot"]

_FAMILIES = {
    "convolution": "#cfe2ff",
    "transposed_convolution": "#cfe2ff",
    "inner_product": "#ded4fb",
    "matrix_product": "#ded4fb",
    "batch_norm": "#d3efd9",
    "local_response_norm": "#d3efd9",
    "moments": "#d3efd9",
    "activation": "#ffe3c7",
    "softmax": "#ffe3c7",
    "cross_entropy": "#ffe3c7",
    "pooling": "#fbd5d8",
    "reduction": "#fbd5d8",
    "arg_max": "#fbd5d8",
    "top_k": "#fbd5d8",
    "pointwise": "#fff3bf",
}
"""Fill colors by the module of an operator, which is its family."""

_OTHERS = "#e9ecef"
_GIVEN = "#ffffff"

_TIMES = "\N{MULTIPLICATION SIGN}"

_MIN_FRAMED = 24
"""Nodes of a net that has frames; a smaller one is read at a glance."""

_WEIGHT = 8
"""How much straighter the first edge of a value is than the second, which is a shortcut mostly."""

_MAX_DEPTH = 2
"""Frames within one another."""

_STYLE = """\
  graph [rankdir=TB, bgcolor=white, pad=0.3, nodesep=0.3, ranksep=0.35, fontname="Helvetica", fontsize=11, fontcolor="#6c757d",
         style="rounded,filled", fillcolor="#f8f9fa", color="#ced4da", labeljust=l, tooltip=" "]
  node [shape=box, style="rounded,filled", color="#868e96", penwidth=0.8, fontname="Helvetica", fontsize=11, margin="0.14,0.06"]
  edge [color="#868e96", penwidth=0.9, arrowsize=0.6, fontname="Helvetica", fontsize=9, fontcolor="#6c757d"]"""


def to_dot(graph: Graph) -> str:
    """The graph in dot. Inputs are at the top, outputs at the bottom; constants are given by their extents in the boxes."""
    ids = {node.name: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = [f"digraph {_quoted(graph.name)} {{", _STYLE]
    for number, value in enumerate(graph.inputs):
        lines.append(
            f"  i{number} [{_label([_bold(value.name), _shape(value)])}, shape=ellipse, fillcolor={_quoted(_GIVEN)}]"
        )
    lines += _framed(graph, _Frame.of(graph.nodes), ids, "  ")
    for number, name in enumerate(graph.outputs):
        lines.append(f"  o{number} [{_label([_bold(name)])}, shape=ellipse, fillcolor={_quoted(_GIVEN)}]")
    lines += _edges(graph, ids)
    return "\n".join([*lines, "}", ""])


def _edges(graph: Graph, ids: dict[str, str]) -> Iterator[str]:
    sources = {value.name: f"i{number}" for number, value in enumerate(graph.inputs)}
    sources |= {name: ids[node.name] for name, node in graph.producer.items()}
    readers = [(name, ids[node.name]) for node in graph.nodes for name in node.reads]
    readers += [(name, f"o{number}") for number, name in enumerate(graph.outputs)]
    labeled: set[str] = set()
    for name, reader in readers:
        if name not in sources:  # a constant
            continue
        settings = f"tooltip={_quoted(name)}"
        if name not in labeled:
            settings += f", label={_quoted(f' {_shape(graph.values[name])}')}"
            if (
                len(graph.consumers[name]) <= 2
            ):  # with more of them the net branches, and the first is none but the first
                settings += f", weight={_WEIGHT}"
            labeled.add(name)
        yield f"  {sources[name]} -> {reader} [{settings}]"


@dataclass
class _Frame:
    """What names begin with, the nodes that have nothing more in common, and the frames of those that have."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    frames: dict[str, _Frame] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> _Frame:
        """The tree of all names; without frames where the nodes are few."""
        root = cls("")
        for node in nodes:
            _, *prefixes = _prefixes(node.name) if len(nodes) >= _MIN_FRAMED else ("",)
            frame = root
            for prefix in prefixes:
                frame = frame.frames.setdefault(prefix, cls(prefix))
            frame.nodes.append(node)
        return root

    def __len__(self) -> int:
        return len(self.nodes) + sum(map(len, self.frames.values()))


_MAX_PREFIXES = 32
"""Of a name that are looked at: frames lie in one another as often."""


def _prefixes(name: str) -> Iterator[str]:
    """What a name begins with, from nothing to all but its last part."""
    yield ""
    ends = (found.start() for found in re.finditer(r"[./]", name) if found.start() > 0)
    yield from (name[:end] for end in itertools.islice(ends, _MAX_PREFIXES))


def _framed(graph: Graph, frame: _Frame, ids: dict[str, str], indent: str, depth: int = 0) -> Iterator[str]:
    """The nodes of a frame, and the frames in it. One that has a single node, or all that is there, is not drawn."""
    for node in frame.nodes:
        yield f"{indent}{ids[node.name]} [{_node(graph, node)}]"
    for inner in frame.frames.values():
        if depth == _MAX_DEPTH or len(inner) < 2 or len(inner) == len(frame):
            yield from _framed(graph, inner, ids, indent, depth)
            continue
        yield f"{indent}subgraph {_quoted(f'cluster {inner.name}')} {{"
        yield f"{indent}  label={_quoted(inner.name)}"
        yield from _framed(graph, inner, ids, indent + "  ", depth + 1)
        yield f"{indent}}}"


def _node(graph: Graph, node: Node) -> str:
    family = type(node.operator).__module__.rpartition(".")[2]
    details = [_times(graph.constant[name].shape) for name in node.reads if _is_matrix(graph, name)]
    details += [_setting(name, value) for name, value in _settings(node)]
    lines = [_bold(node.operator.kind.replace("_", " "))]
    if details:
        lines.append(html.escape(_printable(", ".join(details))))
    lines.append(f'<FONT POINT-SIZE="9" COLOR="#6c757d">{html.escape(_printable(node.name))}</FONT>')
    fill = _quoted(_FAMILIES.get(family, _OTHERS))
    return f"{_label(lines)}, fillcolor={fill}, tooltip={_quoted(f'{node.name}: {node.operator}')}"


def _is_matrix(graph: Graph, name: str) -> bool:
    return name in graph.constant and len(graph.constant[name].shape) > 1


def _settings(node: Node) -> Iterator[tuple[str, object]]:
    """The attributes of an operator that are not what they are by default; one number where all dimensions have the same."""
    for one in fields(node.operator):  # type: ignore[arg-type]  # every operator is a dataclass
        value = getattr(node.operator, one.name)
        if isinstance(one.default, int) and len(numbers := set(_numbers(value))) == 1:
            (value,) = numbers
        if value != one.default:
            yield one.name, value


def _numbers(value: object) -> Iterator[object]:
    """What tuples in tuples hold."""
    if isinstance(value, tuple):
        for one in value:
            yield from _numbers(one)
    else:
        yield value


def _setting(name: str, value: object) -> str:
    if value is True:
        return name.replace("_", " ")
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{name} {value:g}"
    if isinstance(value, tuple) and value and all(isinstance(one, int) for one in value):
        return f"{name} {_times(value)}"
    return f"{name} {value}".replace("_", " ")


def _times(extents: Sequence[int | str]) -> str:
    return _TIMES.join(map(str, extents))


def _shape(value: Value) -> str:
    shape = _times(value.shape) or "scalar"
    return shape if value.dtype is DType.FLOAT32 else f"{shape} {value.dtype.value}"


def _bold(text: str) -> str:
    return f"<B>{html.escape(_printable(text))}</B>"


def _label(lines: Sequence[str]) -> str:
    return f"label=<{'<BR/>'.join(lines)}>"


def _printable(text: str) -> str:
    """Names come from files of others: what cannot be printed is a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _quoted(text: str) -> str:
    escaped = _printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
