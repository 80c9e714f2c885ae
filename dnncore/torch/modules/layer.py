"""What our modules share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ClassVar, TypeVar

from torch import nn

from dnncore.errors import BadParamError

__all__ = ["Layer", "ours", "remembered", "weight_and_bias"]

_PACKAGE = __name__.rpartition(".")[0]
_MOST_DESCRIPTORS = 256
"""That a kind of layer remembers: as many as its layers have settings, which users may change."""

_Descriptor = TypeVar("_Descriptor")


class Layer:
    """Mixed into a class of PyTorch's."""

    kernel_is_ours: ClassVar[bool] = True
    """Whether it computes with our kernels; else with PyTorch's, which ours does not beat, called with less around them."""

    @staticmethod
    def why_not(module: Any) -> str | None:  # noqa: ARG004 (for those that override it)
        """The setting of one of PyTorch's modules that this class does not compute, or None."""
        return None


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

    how = "on dnncore's kernels" if behaviour.kernel_is_ours else "by a shorter way to PyTorch's own kernel"
    attributes |= {
        "__module__": _PACKAGE,
        "__doc__": f"torch.nn.{theirs.__name__} {how}.",
        "__init__": guarded,
    }
    return type(theirs.__name__, (behaviour, theirs), attributes)
