"""Arguments that several commands have: which net, and what its file does not say."""

from __future__ import annotations

import argparse
from pathlib import Path

from dnncore.dtypes import DType
from dnncore.importers.loading import load_model
from dnncore.importers.model_file import add_arguments
from dnncore.nn.model import Model

__all__ = ["PRECISIONS", "add_model", "model_of"]

PRECISIONS = {"fp32": DType.FLOAT32, "fp16": DType.FLOAT16, "bf16": DType.BFLOAT16}
"""What lies between a net's inputs and its outputs, by the names that people type."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """Any net: the model, and what its file does not say."""
    parser.add_argument("model", type=Path, help="a model package, an .onnx file, a .prototxt, or a name of the zoo")
    add_arguments(parser)


def model_of(options: argparse.Namespace) -> Model:
    """The net that arguments name.

    Raises:
        PackageError, ModelImportError, BackendUnavailableError: as `load_model`.
    """
    return load_model(options.model, options.weights, shapes=dict(options.shape or ()))
