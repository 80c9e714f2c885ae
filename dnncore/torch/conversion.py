"""Swapping a model's layers for ours in place, as cudnn.torch's `cudnn.convert` did."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dnncore.errors import BadParamError
from dnncore.torch.fusion import fuse as fuse_in
from dnncore.torch.modules import MODULES
from dnncore.torch.modules.layer import Layer

__all__ = ["Conversion", "convert"]

_WITHOUT_KERNELS = (
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict),
    *(nn.Identity, nn.Flatten, nn.Unflatten),
)
"""PyTorch's modules that compute nothing themselves."""

_PYTORCHS = "torch.nn.modules."


@dataclass(frozen=True)
class Conversion:
    """What `convert` did. Immutable.

    Args:
        model: The model that was given.
        converted: Names of the modules that compute with our kernels now.
        shortened: Names of those that still compute with PyTorch's, which ours do not beat, and cost the host less (`ReLU`).
        left: Names of the modules that compute as before, each with the reason: a setting, a kind of PyTorch's that we do not have,
            or a subclass of one that we do. And what could not be fused, where `fuse=True` asked for it. What modules of the
            model's own compute between these is not looked at.
        fused: Names of the layers that take the ReLU behind them into their own operation, batch normalisations in training alone.
    """

    model: nn.Module
    converted: tuple[str, ...]
    shortened: tuple[str, ...]
    left: tuple[tuple[str, str], ...]
    fused: tuple[str, ...] = ()


def convert(model: nn.Module, *, fuse: bool | None = None) -> Conversion:
    """Swap every module that we have for ours, in place: parameters, buffers, hooks and state_dict stay what they were.

    Exactly PyTorch's own classes are swapped; a subclass may do something else, and stays. In-place activations overwrite
    their argument where no gradient is wanted, and are computed out of place elsewhere, but for ReLU, which is PyTorch's.

    Args:
        model: The model.
        fuse: Whether convolutions and linear layers take the ReLU behind them into their own operation, and batch normalisations in
            training that and a residual that is added before it; in training, layers in a row are then one operation forward and
            one backward. Which they are is found with torch.fx in each module's own forward. None: in modules whose forward does
            the same at every call, as its source shows. True: in all that torch.fx can trace; such a forward must not branch on
            what it is given, nor on attributes that change later but for `training`. False: in none.

    Raises:
        BadParamError: it is no module of PyTorch's.
    """
    if not isinstance(model, nn.Module):
        raise BadParamError(f"a {type(model).__name__} cannot be converted; give a torch.nn.Module")
    converted: list[str] = []
    shortened: list[str] = []
    left: list[tuple[str, str]] = []
    for name, module in model.named_modules():
        ours = MODULES.get(type(module))
        reason = _why_unknown(module) if ours is None else ours.why_not(module)
        if reason is not None:
            left.append((name, reason))
        elif ours is not None:
            module.__class__ = ours
            (converted if ours.kernel_is_ours else shortened).append(name)
    fused: tuple[str, ...] = ()
    if fuse is not False:
        fused, not_fused = fuse_in(model, all_that_trace=bool(fuse))
        left += not_fused if fuse else ()
    return Conversion(model, tuple(converted), tuple(shortened), tuple(left), fused)


def _why_unknown(module: nn.Module) -> str | None:
    """Why a module of none of the kinds that we have is left; None where it is ours already, or computes nothing itself."""
    kind = type(module)
    if kind is nn.Module or isinstance(module, (Layer, *_WITHOUT_KERNELS)):
        return None
    if kind.__module__.startswith(_PYTORCHS):
        return f"there is no {kind.__name__} of ours"
    known = next((theirs for theirs in MODULES if isinstance(module, theirs)), None)
    return (
        None
        if known is None
        else f"{kind.__name__} is a subclass of {known.__name__}, which may compute something else"
    )
