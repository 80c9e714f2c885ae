"""What our modules share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

from dnncore.errors import BadParamError
from dnncore.torch.functions.link import Settings
from dnncore.torch.graph_breaks import breaks_graph, runs_untraced

__all__ = [
    "ANY_NDIM",
    "DRAWN",
    "Layer",
    "Link",
    "Linked",
    "TakesRelu",
    "all_are_watched",
    "is_traced",
    "is_watched",
    "is_watched_itself",
    "ours",
    "remembered",
    "weight_and_bias",
]

_PACKAGE = __name__.rpartition(".")[0]
_MOST_DESCRIPTORS = 256
"""That a kind of layer remembers: as many as its layers have settings, which users may change."""

_MODULE_CALL = nn.Module.__call__
"""PyTorch's own, which torch.fx replaces while it traces a model."""

_Descriptor = TypeVar("_Descriptor")


_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
"""PyTorch before 2.7 does not tell an export from `torch.compile`."""


_tracing_state = torch._C._get_tracing_state
_Module = nn.Module


def is_traced() -> bool:
    """Whether calls are recorded as operators of PyTorch's, for another place: by torch.export, torch.onnx or torch.jit.trace.

    Not by `torch.compile` (of PyTorch 2.7 or newer), which goes around what it cannot compile: our launches stay what they are.
    """
    return _tracing_state() is not None or _is_exporting()


def is_watched(module: nn.Module) -> bool:
    """Whether somebody takes part in a module's calls: a hook, a compiler, a tracer, a forward that is not what its class was made
    with.
    """
    return is_watched_itself(module) or all_are_watched()


def is_watched_itself(module: nn.Module) -> bool:
    """Whether somebody takes part in the calls of this module, be it in those of all or not."""
    kind: Any = type(module)
    made = getattr(kind, "made_forward", None)
    own = module.__dict__  # asked for by name, the module's classes would be searched for each of these first
    return bool(
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or ("_compiled_call_impl" in own and own["_compiled_call_impl"] is not None)
        or "forward" in own
        or (made is not None and kind.forward is not made)
    )


def all_are_watched() -> bool:
    """Whether somebody takes part in the calls of all modules."""
    return bool(
        _global_forward_hooks
        or _global_forward_pre_hooks
        or _global_backward_hooks
        or _global_backward_pre_hooks
        or _tracing_state() is not None
        or _is_exporting()
        or _Module.__call__ is not _MODULE_CALL
    )


class Layer:
    """Mixed into a class of PyTorch's.

    What computes is `compute`; `forward` is that, or PyTorch's while a model is traced, for a program has no operators that are our
    launches: so a converted model is exported and saved as the one that it was.
    """

    kernel_is_ours: ClassVar[bool] = True
    """Whether it computes with our kernels; else with PyTorch's, which ours does not beat, called with less around them."""
    made_forward: ClassVar[Callable[..., Any]]
    """The forward that `ours` gave the class; a subclass or an object may have another."""
    compute: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if cls.kernel_is_ours and "compute" in cls.__dict__:
            breaks_graph(cls.compute)

    @runs_untraced
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As nn.Module's, in one frame in place of three where nothing hangs on a call: half a microsecond of ten."""
        if is_watched(self):
            return nn.Module.__call__(self, *args, **kwargs)
        return self.compute(*args, **kwargs) if kwargs else self.compute(*args)

    @staticmethod
    def why_not(module: Any) -> str | None:  # noqa: ARG004 (for those that override it)
        """The setting of one of PyTorch's modules that this class does not compute, or None."""
        return None


Link = tuple[Settings, tuple[Any, ...], tuple[Any, ...], Any]
"""What a layer is as one of several in a row: its kind and what else that goes by, its parameters, what it reads or updates beside
them, or `DRAWN`, and the counter of its batches, or None.
"""


ANY_NDIM = 0
"""Dimensions of what a layer takes that minds only the last of them, or none."""

DRAWN = object()
"""In place of something that a layer reads: the state of a random generator, to be drawn once it is certain that it is read."""


class Linked(Layer):
    """A layer that can be one of several in a row that are one operation."""

    linked_ndim: ClassVar[int | None] = None
    """Dimensions of what it takes there; None for a class that never is one of them."""
    casts: ClassVar[bool] = False
    """Whether `torch.autocast` casts x and the parameters."""
    keeps_images: ClassVar[bool] = True
    """Whether its backward reads something of x's or y's size."""
    link: ClassVar[Callable[..., Link | None]]
    """link(relu, dtype): this layer as it is now, with or without the ReLU behind it, for x of a dtype of PyTorch's; None where it
    is to be called by itself.
    """


class TakesRelu(Layer):
    """A layer that computes the ReLU behind it in its own operation where it is asked to: `forward_relu(x)` is relu(forward(x))."""

    in_training_alone: ClassVar[bool] = False
    """Whether that saves nothing in evaluation."""
    takes_residual: ClassVar[bool] = False
    """Whether `forward_relu(x, residual)` is relu(forward(x) + residual)."""
    forward_relu: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "forward_relu" in cls.__dict__:
            breaks_graph(cls.forward_relu)


def weight_and_bias(module: Any) -> tuple[Any, Any]:
    """`module.weight` and `module.bias`, without the search of nn.Module for them, which takes five times as long."""
    parameters = module._parameters
    try:
        return parameters["weight"], parameters["bias"]
    except KeyError:  # one that is computed at each access, as PyTorch's parametrisations do, is not among them
        return module.weight, module.bias


def remembered(make: Callable[..., _Descriptor]) -> Callable[..., _Descriptor]:
    """A function from a layer's settings to a descriptor, called once for equal ones; lists, which can change, are read anew."""
    made = lru_cache(_MOST_DESCRIPTORS)(make)

    @wraps(make)
    def descriptor(*settings: Any) -> _Descriptor:
        try:
            return made(*settings)
        except TypeError:  # a list is not hashable
            return make(*settings)

    return descriptor


def ours(theirs: type[nn.Module], behaviour: type[Layer], **attributes: object) -> type[nn.Module]:
    """Our class for one of PyTorch's, a subclass of it under the same name, as `dnncore.torch.modules` has it.

    Args:
        theirs: PyTorch's.
        behaviour: What is mixed in.
        attributes: Of the class.
    """

    @wraps(theirs.__init__)
    def guarded(self: Any, *args: Any, **settings: Any) -> None:
        theirs.__init__(self, *args, **settings)
        reason = self.why_not(self)
        if reason is not None:
            raise BadParamError(f"{_PACKAGE}.{theirs.__name__} does not compute this: {reason}")

    their_forward: Callable[..., Any] = theirs.forward

    @runs_untraced
    @wraps(their_forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return their_forward(self, *args, **kwargs) if is_traced() else self.compute(*args, **kwargs)

    how = "on dnncore's kernels" if behaviour.kernel_is_ours else "by a shorter way to PyTorch's own kernel"
    attributes |= {
        "__module__": _PACKAGE,
        "__doc__": f"torch.nn.{theirs.__name__} {how}.",
        "__init__": guarded,
        "forward": forward,
        "made_forward": staticmethod(forward),
    }
    return type(theirs.__name__, (behaviour, theirs), attributes)
