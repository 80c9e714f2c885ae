"""From a trained PyTorch model to a package that dnnserve serves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from dnncore.dtypes import DType
from dnncore.nn.package import Package
from dnncore.preprocessing import Preprocessing
from dnncore.torch.export.model import to_model
from dnncore.version import __version__

__all__ = ["save_package"]


def save_package(
    model: torch.nn.Module,
    example: torch.Tensor | Sequence[torch.Tensor],
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    labels: Sequence[str] | None = None,
    preprocess: Preprocessing | None = None,
    precision: DType | str | None = None,
) -> Package:
    """Write a model as a package; with labels and preprocessing `dnnserve --model path` serves it.

    Args:
        model: In float32, with a batch as the first dimension of everything that it is called with.
        example: What it is called with; several tensors as a tuple. Only dtypes and shapes count.
        path: The package's folder. In a repository `NAME/VERSION`.
        name: What clients call it; None for the folder's name, without its version.
        labels: Of a classifier, whose result is logits or probabilities [N, K]: a name for each of the K.
        preprocess: How an image becomes the model's input; None where it is no image.
        precision: "float32", "float16" or "bfloat16", in which it is to be served; None leaves it to whoever serves it.

    Returns:
        What was written.

    Raises:
        ModelImportError: the model cannot be exported, or some of its operators are not supported: all of them are listed.
        PackageError: labels, preprocessing or precision do not fit the model, or the folder cannot be written.
    """
    folder = Path(path)
    called = name or (folder.parent.name if folder.name.isdecimal() else folder.name)
    made = to_model(model, example, called)
    provenance = {
        "framework": f"PyTorch {torch.__version__}",
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "dnncore": __version__,
    }
    package = Package(
        called,
        made.graph,
        made.weights,
        preprocess,
        None if labels is None else tuple(map(str, labels)),
        provenance,
        precision=None if precision is None else DType.of(precision),
    )
    package.save(folder)
    return package
