"""Layers that a module calls one behind the other, made one operation in training: which they are, and whether they still are that.

    conv -> bn -> relu -> conv -> bn -> add -> relu     one operation forward and one backward, one node of autograd's graph

They are found in what `torch.fx` recorded of the module's forward: runs of calls of `Linked` layers, with their ReLUs and sums, and
of `torch.flatten`, of whose results none but the last is read by others. What is there at a call decides how it is made:
layer by layer wherever a hook has come, a module been replaced, no gradient is wanted or a batch normalisation is in evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from dnncore.torch.dtypes import DTYPES
from dnncore.torch.functions.cast import CAST_LINK
from dnncore.torch.functions.chain import Chain, Wiring
from dnncore.torch.functions.elementwise import drawn_state
from dnncore.torch.functions.flatten import FLATTEN_LINK
from dnncore.torch.functions.formats import autocast_for, maybe_autocast, wants_gradient
from dnncore.torch.functions.link import NotLinkedError, Settings
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.layer_relu import RELU_MODULES, layer_relu
from dnncore.torch.modules.layer import ANY_NDIM, DRAWN, Linked, TakesRelu, all_are_watched, is_watched_itself

__all__ = ["class_of", "holds_layers", "join"]

_Path = tuple[str, ...]
"""Of a module among another's: the name of a child, and perhaps of that one's."""

_grad_is_enabled = torch.is_grad_enabled
_add_to_each = torch._foreach_add_

_CAST = (torch.float16, torch.bfloat16, torch.float32)
"""What `torch.autocast` casts."""

_FLATTENS, _NOTHING = (FLATTEN_LINK,), (0, 0)
"""The settings of `torch.flatten` among layers, and its parameters and what is beside them."""


@dataclass(frozen=True, slots=True)
class _Called:
    """A layer of a chain, or a module that holds some, as it is called. Immutable.

    Args:
        module: Which of the chain's modules; None for `torch.flatten`.
        relu: Whether a ReLU follows.
        relu_module: Which of the modules that is; None for a function.
        reads: Values, by their numbers: x, and a residual. The chain's inputs come first, then what each call gives.
    """

    module: int | None
    relu: bool
    relu_module: int | None
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """A module of a chain as it was when its forward was read. Immutable.

    Args:
        path: Among the children of the module whose forward that is.
        kind: Its class, without what fusing made of that.
        children: The names of those that it had, in their order.
    """

    path: _Path
    kind: Any
    children: tuple[str, ...]

    def among(self, children: Mapping[str, nn.Module]) -> nn.Module | None:
        """The module that is there now, if there is one."""
        module = children.get(self.path[0])
        return module._modules.get(self.path[1]) if len(self.path) > 1 and module is not None else module


class _Joined:
    """A chain of a module's. Thread-safe.

    Args:
        modules: What is called, and what holds some of that.
        layers: In their order.
        calls: The calls that there were: one for all that a module holds.
        num_inputs: Of the chain.
        ndim: Of what it is given; ANY_NDIM for any.
    """

    def __init__(
        self,
        modules: Sequence[_Known],
        layers: Sequence[_Called],
        calls: Sequence[_Called],
        num_inputs: int,
        ndim: int,
    ) -> None:
        self._modules, self._layers, self._calls = modules, layers, calls
        self._wiring = Wiring(num_inputs, tuple(layer.reads for layer in layers))
        # A cast of the input takes place in front of all layers, which read what that gives.
        self._casting: Wiring | None = None
        if num_inputs == 1:
            behind = (tuple(value + 1 for value in layer.reads) for layer in layers)
            self._casting = Wiring(1, ((0,), *behind))
        self._ndim = ndim
        self._is_apart = False  # written once, by whoever finds out
        not_cast = {
            value
            for layer in layers
            for place, value in enumerate(layer.reads)
            if place or layer.module is None or not modules[layer.module].kind.casts
        }
        self._may_be_cast = [value not in not_cast for value in range(num_inputs)]

    def __call__(self, children: Mapping[str, nn.Module], *inputs: Tensor) -> Tensor:
        """The last layer's result, of a module's children and of what the chain reads."""
        found = None if self._is_apart else self._found(children)
        if found is not None:
            try:
                y = self._run(found, inputs)
            except NotLinkedError:
                self._is_apart = True
            else:
                if y is not None:
                    return y
        return self._one_by_one(children, inputs)

    def _found(self, children: Mapping[str, nn.Module]) -> list[Any] | None:
        """The modules; None where one is not what it was, or somebody takes part in its calls."""
        if not _grad_is_enabled() or all_are_watched():
            return None
        found: list[Any] = []
        for known in self._modules:
            module = known.among(children)
            if module is None or (type(module) is not known.kind and class_of(module) is not known.kind):
                return None
            if tuple(module._modules) != known.children or is_watched_itself(module):
                return None
            found.append(module)
        return found

    def _run(self, modules: Sequence[Any], inputs: Sequence[Any]) -> Tensor | None:
        given = self._as_one_dtype(inputs)
        if given is None:
            return None
        tensors, casts, dtype = given
        settings: list[Settings] = []
        parameters, beside, counts, counters = [], [], [], []
        wiring = self._wiring
        if tensors[0].dtype is not dtype:
            assert self._casting is not None
            wiring = self._casting
            settings.append((CAST_LINK, DTYPES[dtype]))
            counts.append(_NOTHING)
        for layer in self._layers:
            if layer.module is None:
                settings.append(_FLATTENS)
                counts.append(_NOTHING)
                continue
            link = modules[layer.module].link(layer.relu, dtype)
            if link is None:
                return None
            its, own, others, counter = link
            settings.append(its)
            parameters += own
            beside += others
            counts.append((len(own), len(others)))
            if counter is not None:
                counters.append(counter)
        tensors += parameters
        if not wants_gradient(*tensors):
            return None
        state = tuple([drawn_state(tensors[0].device) if each is DRAWN else each for each in beside])
        call = (wiring, tuple(counts), casts, tuple(settings)), state, id(parameters[0])
        y: Tensor = Chain.apply(call, *tensors)
        if counters:
            _add_to_each(counters, 1)
        return y

    def _as_one_dtype(self, inputs: Sequence[Any]) -> tuple[list[Tensor], bool, torch.dtype] | None:
        """The inputs in one dtype, as `torch.autocast` has them where it is on, but for a single one, which the chain casts itself;
        whether it casts parameters, and the dtype.
        """
        dtype: torch.dtype | None = None
        tensors = list(inputs)
        if maybe_autocast() and isinstance(tensors[0], Tensor):
            dtype = autocast_for(tensors[0])
        casts = dtype is not None
        for number, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                return None
            ndim = tensor.dim()
            if not ndim or ndim != (self._ndim or ndim):
                return None
            if dtype is None:
                dtype = tensor.dtype
            if tensor.dtype is not dtype:
                if not casts or not self._may_be_cast[number] or tensor.dtype not in _CAST:
                    return None
                if self._casting is None:
                    tensors[number] = tensor.to(dtype)
        assert dtype is not None
        return tensors, casts, dtype

    def _one_by_one(self, children: Mapping[str, nn.Module], inputs: Sequence[Tensor]) -> Tensor:
        values = list(inputs)

        def module(number: int) -> Any:
            return self._modules[number].among(children)

        for call in self._calls:
            x, *residuals = (values[value] for value in call.reads)
            if call.module is None:
                values.append(torch.flatten(x, 1))
                continue
            called = module(call.module)
            relu = None if call.relu_module is None else module(call.relu_module)
            values.append(layer_relu(called, relu, x, *residuals) if call.relu else called(x))
        return values[-1]


def join(graph: fx.Graph, module: nn.Module, least_calls: int = 1) -> int:
    """Replace the runs of calls in a module's forward that are chains, each by one call.

    Args:
        graph: The forward.
        module: Whose that is.
        least_calls: That a chain takes the place of.

    Returns:
        How many there are.
    """
    run: list[fx.Node] = []
    num_chains = 0
    for node in (*graph.nodes, None):
        if node is not None and node.op == "get_attr":
            continue
        if node is not None and _Call.of(node, module) is not None:
            run.append(node)
            continue
        while run:
            looked_at, is_chain = _replace_first(graph, module, run, least_calls)
            num_chains += is_chain
            run = run[looked_at:]
    return num_chains


_Relu = tuple[bool, _Path | None]
"""Whether a ReLU follows, and the path of its module if it has one."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A node that calls a layer, several that one module holds, or `torch.flatten`. Immutable.

    Args:
        module: Path of what is called; None for a function.
        layers: Paths of its layers, and the ReLU behind each.
        relu: That behind the call.
        reads: x, and a residual.
    """

    module: _Path | None
    layers: tuple[tuple[_Path, _Relu], ...]
    relu: _Relu
    reads: tuple[fx.Node, ...]

    @classmethod
    def of(cls, node: fx.Node, module: nn.Module) -> _Call | None:
        """What a node calls; None for anything else."""
        if node.kwargs or not node.args:
            return None
        target: Any = node.target
        relu: _Relu = False, None
        reads: tuple[Any, ...] = node.args
        if (node.op, target) in _FLATTENING:
            is_of_images = reads[1:] == (1,) and isinstance(reads[0], fx.Node) and len(reads[0].users) == 1
            return cls(None, (), relu, reads[:1]) if is_of_images else None
        if target is layer_relu:
            layer, behind, *reads_of_both = reads
            target, reads = layer.target, tuple(reads_of_both)
            relu = True, None if behind is None else _path(behind.target)
        elif node.op != "call_module" or len(reads) != 1:
            return None
        if not all(isinstance(each, fx.Node) for each in reads):
            return None
        path, called = _path(target), module.get_submodule(str(target))
        layers: list[tuple[_Path, _Relu]] = [(path, relu)]
        if _is_plain_sequential(called) and len(called._modules):
            found = _layers_in_a_row(path, called)
            if found is None:
                return None
            layers = found
        elif not _is_linked(called):
            return None
        if any(len(each) > _DEEPEST for of, (_, relu_at) in layers for each in (of, relu_at or ())):
            return None
        return cls(path, tuple(layers), relu, reads)


_FLATTENING = (("call_function", torch.flatten), ("call_method", "flatten"))


def _is_plain_sequential(module: nn.Module) -> bool:
    return class_of(module).forward is nn.Sequential.forward


def _layers_in_a_row(path: _Path, sequential: nn.Module) -> list[tuple[_Path, _Relu]] | None:
    """What a `Sequential` holds at a path; None unless it holds nothing but layers, with ReLUs behind those that take one."""
    layers: list[tuple[_Path, _Relu]] = []
    takes_relu = False
    for name, child in sequential._modules.items():
        own = *path, name
        if takes_relu and type(child) in RELU_MODULES:
            layers[-1] = layers[-1][0], (True, own)
            takes_relu = False
        elif child is not None and _is_linked(child):
            layers.append((own, (False, None)))
            takes_relu = isinstance(child, TakesRelu)
        else:
            return None
    return layers


def holds_layers(module: nn.Module) -> bool:
    """Whether a chain in the forward of what calls this module may hold the layers in it."""
    return _is_plain_sequential(module) and bool(_layers_in_a_row((), module))


_DEEPEST = 2
"""Names in a path."""

_MOST_LAYERS = 8
"""Of a chain, whose activations are kept until the backward of all of them is over: as many as a residual block with a projection
has. VGG's features are one forward: what the first of them keep would else be there beside gradients and what the last keep.
Not counted are layers that keep no images: averages, and all behind a `flatten`.
"""

_MOST_WITH_ROWS = 16
"""Of a chain, counted or not."""


def class_of(module: nn.Module) -> Any:
    """A module's class, or the one that fusing made another of: in training they do the same."""
    return getattr(type(module), "_theirs", type(module))


def _is_linked(module: nn.Module) -> bool:
    return isinstance(module, Linked) and module.linked_ndim is not None


def _path(target: Any) -> _Path:
    return tuple(str(target).split("."))


def _replace_first(graph: fx.Graph, module: nn.Module, run: Sequence[fx.Node], least_calls: int) -> tuple[int, bool]:
    """Replace the longest chain that a run begins with, if that is one.

    Returns:
        How many nodes of the run have been looked at, and whether they were one.
    """
    calls = [call for node in run if (call := _Call.of(node, module)) is not None]
    layers: list[Any] = []
    longest = num_counted = 0
    are_rows = False
    for length, call in enumerate(calls, start=1):
        own = [_at(module, path) for path, _ in call.layers]
        layers += own
        are_rows = are_rows or call.module is None
        num_counted += 0 if are_rows else sum(layer.keeps_images for layer in own)
        ndims = {layer.linked_ndim for layer in layers} - {ANY_NDIM}
        is_too_long = num_counted > _MOST_LAYERS or len(layers) > _MOST_WITH_ROWS
        if not layers or len(ndims) > 1 or is_too_long or _has_one_twice(layers):
            break
        inside = set(run[:length])
        # A result that nobody reads has no gradient, which its layer's backward would be given: it is none of a chain's.
        are_read = all(node.users and all(user in inside for user in node.users) for node in run[: length - 1])
        if are_read and call.module is not None:
            longest = length
    if not longest:  # the first one makes rows, or what it holds is no chain itself, but too long
        return 1, False
    chosen = calls[:longest]
    paths = [path for call in chosen for path, _ in call.layers]
    has_parameters = any(list(_at(module, path).parameters()) for path in paths)
    if len(chosen) < least_calls or len(paths) < 2 or not has_parameters:
        return longest, False
    last = run[longest - 1]
    inputs = list(dict.fromkeys(read for call in chosen for read in call.reads if read not in run[:longest]))
    joined = _joined(module, run[:longest], chosen, inputs)

    @breaks_graph
    def chain(children: Any, *tensors: Tensor) -> Tensor:
        return joined(children, *tensors)

    with graph.inserting_before(last):
        children = graph.create_node("get_attr", "_modules")
        replaced = graph.call_function(chain, (children, *inputs))
    last.replace_all_uses_with(replaced)
    for node in reversed(run[:longest]):
        graph.erase_node(node)
    for node in reversed(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    return longest, True


def _has_one_twice(layers: Sequence[nn.Module]) -> bool:
    """Whether a layer with parameters is called again.

    Its counter would be twice among those that one launch adds to, and so be raised once on a GPU; and what compares tensors with
    those of the call before (`operate`) takes none that is given twice.
    """
    own = [layer for layer in layers if list(layer.parameters())]
    return len(set(own)) < len(own)


def _at(module: nn.Module, path: _Path) -> Any:
    return module.get_submodule(".".join(path))


def _joined(module: nn.Module, nodes: Sequence[fx.Node], calls: Sequence[_Call], inputs: Sequence[fx.Node]) -> _Joined:
    known: dict[_Path, int] = {}

    def number(path: _Path) -> int:
        return known.setdefault(path, len(known))

    as_calls = {node: place for place, node in enumerate((*inputs, *nodes))}
    as_layers = {node: place for place, node in enumerate(inputs)}
    plain: list[_Called] = []
    layers: list[_Called] = []

    def called(path: _Path | None, relu: _Relu, reads: tuple[int, ...]) -> _Called:
        return _Called(
            None if path is None else number(path), relu[0], None if relu[1] is None else number(relu[1]), reads
        )

    for node, call in zip(nodes, calls, strict=True):
        plain.append(called(call.module, call.relu, tuple(as_calls[read] for read in call.reads)))
        reads = tuple(as_layers[read] for read in call.reads)
        for path, relu in call.layers or [(None, call.relu)]:
            layers.append(called(path, relu, reads))
            reads = (len(inputs) + len(layers) - 1,)
        as_layers[node] = reads[0]
    modules = [_at(module, path) for path in known]
    return _Joined(
        [_Known(path, class_of(each), tuple(each._modules)) for path, each in zip(known, modules, strict=True)],
        layers,
        plain,
        len(inputs),
        # ANY_NDIM, or the one that there is beside it
        max(modules[layer.module].linked_ndim for layer in layers if layer.module is not None),
    )
