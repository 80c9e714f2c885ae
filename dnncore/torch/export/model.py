"""A PyTorch model as a model of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dnncore.nn.model import Model
from dnncore.torch.export.program import Exported, as_inputs, export
from dnncore.torch.export.translation import translate

__all__ = ["Imported", "import_exported", "import_model", "to_model"]


@dataclass(frozen=True, eq=False)
class Imported:
    """A model and the way back from its outputs to what the PyTorch model returns. Immutable.

    Args:
        model: The net and its weights.
        assemble: assemble(a tensor for each of the net's outputs) -> a tensor, a tuple, a dictionary, ...
    """

    model: Model
    assemble: Callable[[Sequence[torch.Tensor]], Any]


def to_model(model: torch.nn.Module, example: torch.Tensor | Sequence[torch.Tensor], name: str | None = None) -> Model:
    """A PyTorch model as a net of ours with its weights, for any number of images.

    Nodes are called as the modules that they were, constants as in the model's `state_dict`. The model is exported in evaluation
    mode and left in the mode that it was in.

    Args:
        model: In float32, with a batch as the first dimension of everything that it is called with.
        example: What it is called with; several tensors as a tuple. Only dtypes and shapes count.
        name: What people call the net; None for the name of the class.

    Raises:
        ModelImportError: `torch.export` cannot trace the model, or some of its operators are not supported: all of them are listed.
    """
    return import_model(model, example, name).model


def import_model(
    model: torch.nn.Module, example: torch.Tensor | Sequence[torch.Tensor], name: str | None = None
) -> Imported:
    """`to_model`, and how the model's results are put together."""
    return import_exported(export(model, as_inputs(example)), name or type(model).__name__)


def import_exported(exported: Exported, name: str) -> Imported:
    """The same of what `export` gave."""
    net, results = translate(exported.program, name)

    def assemble(outputs: Sequence[torch.Tensor]) -> Any:
        found = dict(zip(net.graph.outputs, outputs, strict=True))
        return exported.assemble([result.value if result.name is None else found[result.name] for result in results])

    return Imported(net, assemble)
