"""What every function here that has a gradient shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from operator import itemgetter
from typing import Any

import torch

from dnncore.torch.graph_breaks import breaks_graph

_grad_is_enabled = torch.is_grad_enabled

__all__ = ["Function", "first_derivative", "gradients_of"]


class _WithoutFrames(type(torch.autograd.Function)):  # type: ignore[misc]
    """Makes a class of a Function's, and of its node: autograd calls `apply` of that, which is the `backward` itself, in place of a
    method of PyTorch's that looks for it at every call.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> None:
        super().__init__(name, bases, attributes)
        if "backward" in attributes:
            cls._backward_cls.apply = cls.backward


class Function(torch.autograd.Function, metaclass=_WithoutFrames):
    """A torch.autograd.Function whose `apply` is PyTorch's own in C++, without the Python around it, a third of the whole; its
    `backward` too is called from C++.

    What is left out looks for tensors that outlived a transform of `torch.func`, and refuses to run under one; here
    `formats.wants_gradient` does.
    """

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls.apply = super(torch.autograd.Function, cls).apply


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A `backward` of a torch.autograd.Function that refuses to become part of a graph.

    PyTorch's `once_differentiable` refuses only where dy needs a gradient. But the gradient depends on the saved tensors too, and
    with a dy that is constant that part of a second derivative would be left out in silence. Autograd calls a backward with
    gradients enabled exactly for `create_graph=True`, and only for a function one of whose inputs needs a gradient.

    Raises:
        RuntimeError: by the returned function, under `create_graph=True`.
    """

    @breaks_graph
    @wraps(backward)
    def checked(ctx: Any, dy: torch.Tensor) -> Any:
        if _grad_is_enabled():
            raise RuntimeError(
                "dnncore.torch has first derivatives only: call backward() or grad() with create_graph=False"
            )
        return backward(ctx, dy)

    return checked


@cache
def gradients_of(
    wanted: tuple[bool, ...],
) -> Callable[[Sequence[torch.Tensor | None]], tuple[torch.Tensor | None, ...]]:
    """What puts gradients in their places among the arguments of a function.

    Args:
        wanted: For each argument, whether a gradient of it was computed.

    Returns:
        place(found): `found` are those gradients, in order, and behind them and whatever else None.
    """
    found = iter(range(len(wanted)))
    places = [next(found) if is_wanted else -1 for is_wanted in wanted]
    place: Callable[[Sequence[torch.Tensor | None]], tuple[torch.Tensor | None, ...]] = itemgetter(*places)
    return place
