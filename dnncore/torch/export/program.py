"""A model as `torch.export` sees it: ATen operators on tensors whose first extent is any number of images."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from dnncore.errors import ModelImportError
from dnncore.torch.bridge import operate

__all__ = ["Exported", "as_inputs", "export"]

_aten = torch.ops.aten

_TAKEN_APART = (
    _aten.addcdiv.default,
    _aten.addcmul.default,
    _aten.channel_shuffle.default,
    _aten.einsum.default,
    _aten.pixel_shuffle.default,
    _aten.pixel_unshuffle.default,
    _aten.square.default,
    _aten.stack.default,
)
"""Operators that PyTorch replaces by others for which there are rules. All others stay what the model called: convolutions,
normalisations and activations for their operations, and what has no rule for its name in the message."""


@dataclass(frozen=True)
class Exported:
    """A model's operators, and how its results are put together. Immutable.

    Args:
        program: What `torch.export` gives, without operators that write their operands.
        assemble: From the results, one after the other, to what the model returns: a tensor, a tuple, a dictionary, ...
    """

    program: ExportedProgram
    assemble: Callable[[Sequence[Any]], Any]


def as_inputs(example: torch.Tensor | Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """An example, which is one tensor or several, as the tensors that a model is called with.

    Raises:
        ModelImportError: something else is among them, or they have no common number of images.
    """
    inputs = (example,) if isinstance(example, torch.Tensor) else tuple(example)
    if not inputs or not all(isinstance(each, torch.Tensor) for each in inputs):
        kinds = ", ".join(type(each).__name__ for each in inputs)
        raise ModelImportError(
            "the example", [f"one tensor, or a tuple of tensors, is needed; it has: {kinds or 'nothing'}"]
        )
    shapes = [tuple(each.shape) for each in inputs]
    if not all(shapes) or len({shape[0] for shape in shapes}) != 1 or not shapes[0][0]:
        raise ModelImportError("the example", [f"shapes {shapes} must begin with one number of images, 1 or more"])
    return inputs


_MOST_TRACED = 65535
"""Images that cuDNN's batch normalisation takes: on CUDA PyTorch traces a model for no more. The net takes any number."""

_CALLS_OURS = (
    "torch.export cannot trace functions of dnncore.torch: use PyTorch's functions and PyTorch's modules, which "
    "`dnncore.torch.convert` swaps for ours"
)


def export(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Exported:
    """Export a model in evaluation mode, in which it is only during this call; layers of ours are exported as PyTorch's.

    Args:
        model: Any that `torch.export` can trace.
        inputs: What it is called with; of their elements nothing is kept, of their first extents that they are equal.

    Raises:
        ModelImportError: `torch.export` cannot trace it, or it does not take any number of images.
    """
    # torch.export takes an extent of 1 for a constant, so it sees every image twice.
    seen = tuple(each.detach().repeat_interleave(2, 0) for each in inputs)
    batch = Dim("batch", max=_MOST_TRACED)
    try:
        with _in_evaluation(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch about itself
            program = torch.export.export(model, seen, dynamic_shapes=tuple({0: batch} for _ in seen))
            known = torch.export.default_decompositions()
            program = program.run_decompositions({operator: known[operator] for operator in _TAKEN_APART})
    except Exception as error:  # torch.export raises of all kinds, its own and those of the model
        reason = "\n  ".join(str(error).strip().splitlines()[:12])
        reason = f"torch.export cannot trace it for any number of images: {type(error).__name__}: {reason}"
        raise ModelImportError(type(model).__name__, [_CALLS_OURS if _calls_ours(error) else reason]) from error
    spec = program.call_spec.out_spec
    assert spec is not None
    return Exported(program, lambda results: pytree.tree_unflatten(list(results), spec))


def _calls_ours(error: Exception) -> bool:
    """Whether it was raised on the way to a launch of ours, which needs memory where a tracer has none."""
    return any(frame.f_code is operate.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))


@contextmanager
def _in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """With every module in evaluation mode, and afterwards as it was."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was
