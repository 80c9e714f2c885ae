"""What every function here that has a gradient shares."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

__all__ = ["Function", "first_derivative"]


class Function(torch.autograd.Function):
    """A torch.autograd.Function whose `apply` is PyTorch's own in C++, without the Python around it, a third of the whole.

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

    @wraps(backward)
    def checked(ctx: Any, *dy: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "dnncore.torch has first derivatives only: call backward() or grad() with create_graph=False"
            )
        return backward(ctx, *dy)

    return checked
