"""Layers that take the ReLU behind them, and a residual before that, into their own operation.

    conv -> relu               y = relu(conv(x))
    linear -> relu             y = relu(linear(x))
    bn -> relu                 y = relu(bn(x)), in training
    bn -> add -> relu          y = relu(bn(x) + residual), in training

Which of a module's calls follow each other is known from `torch.fx`, which runs its forward once with every submodule as one node:
module by module, so that the tree, the names in the state_dict and whatever a model's other modules do stay as they are. A module
in which something was found gets a subclass of its class, whose forward is what `torch.fx` made of the rewritten nodes: of those of
its forward in training, and of those in evaluation, where these have something for it; else it is the one that it had.

What a forward does at one call need not be what it does at the next. Where its source shows that it is (`straight`), the module is
fused without being asked for; any other is where it is asked for, by somebody who knows that.
"""

from __future__ import annotations

import inspect
import operator
import threading
from abc import ABCMeta
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any, Generic

import torch
from torch import Tensor, fx, nn

from dnncore.torch.chains import class_of, holds_layers, join
from dnncore.torch.graph_breaks import breaks_graph, runs_untraced, traced_from_within
from dnncore.torch.layer_relu import RELU_MODULES, layer_relu
from dnncore.torch.modules.layer import Layer, TakesRelu, is_traced, is_watched
from dnncore.torch.straight import NotStraightError, Settled, settled_by

__all__ = ["fuse"]

_RELU_FUNCTIONS = (torch.relu, torch.relu_, nn.functional.relu, nn.functional.relu_, "relu", "relu_")
_SUMS = (operator.add, torch.add, "add")
_SUMS_IN_PLACE = (operator.iadd, "add_")
"""Whose first operand is overwritten: it has to be the layer's result, which nobody else reads."""

_KEPT = "_dnncore_fused"
"""The attribute of a module that has its `_Forwards`."""

Left = tuple[str, str]
"""A module's name, and why it was left as it was."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Nodes that become one. Immutable."""

    layer: fx.Node
    sum: fx.Node | None
    relu: fx.Node

    @property
    def residual(self) -> fx.Node | None:
        """What is added; another pattern's rewriting may replace it."""
        return None if self.sum is None else next(node for node in self.sum.args if node is not self.layer)


@dataclass(frozen=True, slots=True)
class _Forward:
    """What a module does in training, or in evaluation. Immutable.

    Args:
        run: run(module, *arguments).
        fused: Names of the layers that are fused.
        left: Those that could be, but are not.
        num_chains: Of layers that are one operation.
    """

    run: Callable[..., Any]
    fused: tuple[str, ...]
    left: tuple[Left, ...]
    num_chains: int


@dataclass(frozen=True, slots=True)
class _Forwards:
    """What a module does. Immutable.

    Args:
        children: The names of those that the module had when it was traced; with others, it is traced again.
        settled: What its forward goes by beside what it is given, as it was then; with anything else, it is traced again.
        training: Its forward in training; None for the one that it had, as that of evaluation.
        evaluation: Its forward in evaluation.
        untraced: Why it keeps that though layers could be fused in it; None where there are none, or they are.
        times: That it has been traced again.
    """

    children: tuple[str, ...]
    settled: Settled
    training: _Forward | None
    evaluation: _Forward | None
    untraced: str | None
    times: int = 0

    @runs_untraced
    def still(self, module: nn.Module) -> bool:
        """Whether the module is what it was when it was traced."""
        return self.children == tuple(module._modules) and self.settled.still(module)


def fuse(model: nn.Module, *, all_that_trace: bool) -> tuple[tuple[str, ...], tuple[Left, ...]]:
    """Fuse what can be in a model whose layers are ours, in place; a model that is fused already is looked through again.

    A module's forward is traced now, and must not overwrite what a layer has read by way of a view of that. Traced are the forwards
    of modules that call layers which take a ReLU, or a `Sequential` of such: these last ones for chains alone, and they are left as
    they are where there is none, or they cannot be traced.

    Args:
        model: The model.
        all_that_trace: Whether a module's forward is taken for what it was when it was traced, whatever its source shows: then it
            must not branch on what it is given or on attributes that change later.

    Returns:
        Names of the layers that are fused, in training at least, and what was left: of these modules, or of whole modules around
        them.
    """
    fused: list[str] = []
    left: list[Left] = []
    for name, module in list(model.named_modules()):
        calls_layers = _calls_layers(module)
        if not calls_layers and not any(map(holds_layers, module.children())):
            continue
        theirs = class_of(module)
        trusts = all_that_trace or getattr(module, "_trusts", False)
        reason = _why_not(module, theirs)
        if reason is None:
            module.__class__ = _fused_class(theirs, theirs.forward, trusts)
            module.__dict__.pop(_KEPT, None)
            found = _read(module)
            reason = found.untraced
            training = found.training
            if training is not None:
                prefix = f"{name}." if name else ""
                fused += [prefix + each for each in training.fused]
                left += [(prefix + each, why) for each, why in training.left]
            if training is None or not (training.fused or training.num_chains):
                module.__class__ = theirs
                module.__dict__.pop(_KEPT, None)
        if reason is not None and calls_layers:
            left.append((name, reason))
    return tuple(fused), tuple(left)


def _calls_layers(module: nn.Module) -> bool:
    """Whether a module may have something to fuse itself; else it has chains alone, of what several of its children hold."""
    return any(isinstance(child, TakesRelu) for child in module.children())


def _why_untraced(what: str, error: Exception) -> str:
    message = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"its {what} cannot be traced: {message}"


def _why_not(module: nn.Module, theirs: type[nn.Module]) -> str | None:
    if isinstance(module, torch.jit.ScriptModule) or "forward" in module.__dict__:
        return "its forward is not its class's"
    if "__reduce_ex__" in {name for each in theirs.__mro__[:-1] for name in vars(each)}:
        return "its class says itself how it is pickled"
    if inspect.getattr_static(theirs, "__init_subclass__") not in _UNAWARE or type(theirs) not in (type, ABCMeta):
        return "its class takes notice of subclasses, and it would get one"
    for parameter in list(inspect.signature(theirs.forward).parameters.values())[1:]:
        if parameter.default is not parameter.empty or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            return f"its forward need not be given {parameter.name}, and may branch on that"
    return None


_UNAWARE = tuple(inspect.getattr_static(kind, "__init_subclass__") for kind in (object, Generic))
"""What classes have that do nothing of their own when there is a subclass of theirs."""

_IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
"""Operators that Python has in place too."""


_IN_PLACE_OPERATORS = tuple(getattr(operator, f"i{name}") for name in _IN_PLACE)


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, f"i{name}")
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


_Proxy: Any = type("_Proxy", (fx.Proxy,), {f"__i{name}__": _in_place(name) for name in _IN_PLACE})
"""One whose `x += y` overwrites x, as a tensor's does; PyTorch's own makes x = x + y of it."""


class _Tracer(fx.Tracer):
    """Records a module's own calls; the first forward that it had is `_unfused_forward`."""

    traced_func_name = "_unfused_forward"
    proxy_buffer_attributes = True
    """What is done to buffers is recorded, as what is done to parameters is."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for a node's value."""
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 (PyTorch's names)
        """Every submodule is one node."""
        return True

    def create_arg(self, a: Any) -> Any:
        """As PyTorch's, which would add a tensor to the module where the forward makes one of numbers."""
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and not any(a is b for b in self.root.buffers()):
            raise TypeError("it makes a tensor that depends on no input")
        return super().create_arg(a)


_MOST_TIMES = 8
"""That a module is traced again: one that is set another attribute before each call is left as it was."""

_tracing = threading.RLock()
"""torch.fx changes nn.Module for all threads while it traces."""


@breaks_graph
def _read(module: Any) -> _Forwards:
    """What a module of a fused class does as it is now: all that it did before where its forward cannot be read."""
    with _tracing:
        kept: _Forwards | None = module.__dict__.get(_KEPT)
        if kept is None or not kept.still(module):  # another thread has not read it meanwhile
            times = 0 if kept is None else kept.times + 1
            kept = module.__dict__[_KEPT] = replace(_forwards_of(module, times), times=times)
        return kept


def _forwards_of(module: Any, times: int) -> _Forwards:
    children = tuple(module._modules)
    settled = Settled()
    if times > _MOST_TIMES:
        return _Forwards(children, settled, None, None, "what it goes by is changed again and again")
    try:
        settled = settled_by(module, module._theirs)
    except NotStraightError as error:
        if not module._trusts:
            return _Forwards(children, settled, None, None, str(error))
    try:
        training = _trace_as(module, training=True)
    except Exception as error:  # noqa: BLE001 (whatever a forward raises that is not made for a tracer's arguments)
        return _Forwards(children, settled, None, None, _why_untraced("forward", error))
    evaluation: _Forward | None = None
    untraced: str | None = None
    fused: list[Any] = [module.get_submodule(name) for name in training.fused]
    if any(not layer.in_training_alone for layer in fused):
        try:
            evaluation = _trace_as(module, training=False)
        except Exception as error:  # noqa: BLE001 (as above)
            untraced = _why_untraced("forward in evaluation", error)
    return _Forwards(children, settled, training, evaluation, untraced)


def _trace_as(module: nn.Module, *, training: bool) -> _Forward:
    twin: nn.Module = object.__new__(type(module))  # the module itself may be called by other threads, in its own mode
    twin.__dict__.update(module.__dict__, training=training)
    graph = _Tracer().trace(twin)
    fused: list[str] = []
    left: list[Left] = []
    for pattern in list(_patterns(graph, module, training)):
        name = str(pattern.layer.target)
        reason = _why_not_fused(pattern, module)
        if reason is None:
            _rewrite(graph, pattern)
            fused.append(name)
        else:
            left.append((name, reason))
    num_chains = join(graph, module, 1 if _calls_layers(module) else 2) if training else 0
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(code.src, names)
    return _Forward(names["forward"], tuple(fused), tuple(left), num_chains)


def _patterns(graph: fx.Graph, module: nn.Module, training: bool) -> Iterator[_Pattern]:
    def layer_of(node: Any) -> TakesRelu | None:
        if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            return None
        layer = module.get_submodule(str(node.target))
        return layer if isinstance(layer, TakesRelu) and (training or not layer.in_training_alone) else None

    for relu in graph.nodes:
        if not _is_relu(relu, module) or not relu.args or not _is_read_once(relu.args[0]):
            continue
        source = relu.args[0]
        if layer_of(source) is not None:
            yield _Pattern(source, None, relu)
        elif source.target in (*_SUMS, *_SUMS_IN_PLACE) and len(source.args) == 2 and not source.kwargs:
            orders = [source.args] if source.target in _SUMS_IN_PLACE else [source.args, source.args[::-1]]
            for node, residual in orders:
                layer = layer_of(node)
                takes_it = layer is not None and layer.takes_residual and isinstance(residual, fx.Node)
                if takes_it and _is_read_once(node):
                    yield _Pattern(node, source, relu)
                    break


def _is_read_once(node: Any) -> bool:
    return isinstance(node, fx.Node) and len(node.users) == 1


def _is_relu(node: fx.Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))) in RELU_MODULES
    return node.target in _RELU_FUNCTIONS


def _why_not_fused(pattern: _Pattern, module: nn.Module) -> str | None:
    """The fused operation takes place where the ReLU did: what it reads must not have changed since."""
    called = [node for node in (pattern.layer, pattern.relu) if node.op == "call_module"]
    if any(is_watched(module.get_submodule(str(node.target))) for node in called):
        return "it, or the ReLU behind it, has a hook or a forward of its own"
    last = pattern.relu if pattern.sum is None else pattern.sum
    if pattern.sum is not None and pattern.sum.next is not pattern.relu:
        return "something is computed between the sum and the ReLU behind it"
    node = pattern.layer.next
    while node is not last:
        if pattern.layer.args[0] in node.all_input_nodes:
            return "its input is read again before the ReLU, by what may change it"
        if not getattr(module, "_trusts", False) and _may_write(node, module):
            return "something may be overwritten before the ReLU, a view of its input perhaps"
        node = node.next
    return None


def _may_write(node: fx.Node, module: nn.Module) -> bool:
    """Whether a node may overwrite what it is given."""
    if node.op == "call_module":
        return any(_is_in_place(each) for each in module.get_submodule(str(node.target)).modules())
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    says_so = "out" in node.kwargs or bool(node.kwargs.get("inplace"))
    return says_so or name.endswith("_") or node.target in _IN_PLACE_OPERATORS


def _is_in_place(module: nn.Module) -> bool:
    """Whether a module may overwrite what it is given: it says so, or is none of PyTorch's or ours."""
    is_known = isinstance(module, Layer) or class_of(module).__module__.startswith("torch.nn.modules.")
    return not is_known or bool(getattr(module, "inplace", False))


def _rewrite(graph: fx.Graph, pattern: _Pattern) -> None:
    layer, relu = pattern.layer, pattern.relu
    with graph.inserting_before(relu):
        modules = [graph.create_node("get_attr", layer.target)]
        modules.append(graph.create_node("get_attr", relu.target) if relu.op == "call_module" else None)
        residuals = () if pattern.sum is None else (pattern.residual,)
        fused = graph.call_function(layer_relu, (*modules, layer.args[0], *residuals))
    relu.replace_all_uses_with(fused)
    for node in (relu, pattern.sum, layer):
        if node is not None:
            graph.erase_node(node)


@cache
def _fused_class(theirs: Any, read: Any, trusts: bool) -> type[nn.Module]:
    """A subclass of a module's class that looks like it.

    Args:
        theirs: That class.
        read: The forward that it has.
        trusts: Whether its forward is taken for what it was when it was traced, whatever its source shows.
    """

    @traced_from_within
    @wraps(read)  # torch.export looks at its parameters
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced() or theirs.forward is not read:  # somebody has given the class another
            return theirs.forward(self, *args, **kwargs)
        kept = self.__dict__.get(_KEPT)
        if kept is None or not kept.still(self):  # a copy, or one that has been changed
            kept = _read(self)
        now = kept.training if self.training else kept.evaluation
        return theirs.forward(self, *args, **kwargs) if now is None else now.run(self, *args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        parts: Any = object.__reduce_ex__(self, protocol)
        _, _, state, *rest = parts
        return _new, (theirs, trusts), {name: value for name, value in state.items() if name != _KEPT}, *rest

    attributes = {
        "__module__": theirs.__module__,
        "__qualname__": theirs.__qualname__,
        "__doc__": theirs.__doc__,
        "_theirs": theirs,
        "_trusts": trusts,
        "_unfused_forward": read,
        "forward": forward,
        "__reduce_ex__": reduce,
    }
    return type(theirs.__name__, (theirs,), attributes)


def _new(theirs: Any, trusts: bool = True) -> nn.Module:
    """An empty module, for pickle and copy to fill; what was pickled when all were trusted does not say so."""
    module: nn.Module = object.__new__(_fused_class(theirs, theirs.forward, trusts))
    return module
