"""Arguments that several commands have: which net, and what its file does not say."""

from __future__ import annotations

import argparse
from pathlib import Path

from dnncore.dtypes import DType
from dnncore.importers.loading import load_model
from dnncore.nn.graph import BATCH, Extent
from dnncore.nn.model import Model

__all__ = ["PRECISIONS", "add_model", "add_weights_and_shapes", "model_of"]

PRECISIONS = {"fp32": DType.FLOAT32, "fp16": DType.FLOAT16, "bf16": DType.BFLOAT16}
"""What lies between a net's inputs and its outputs, by the names that people type."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """Any net: the model, and what its file does not say."""
    parser.add_argument("model", type=Path, help="a model package, an .onnx file, a .prototxt, or a name of the zoo")
    add_weights_and_shapes(parser)


def add_weights_and_shapes(parser: argparse.ArgumentParser) -> None:
    """What a file does not say."""
    parser.add_argument("--weights", type=Path, help="the .caffemodel of a .prototxt")
    parser.add_argument(
        "--shape",
        type=_shape,
        action="append",
        default=[],
        metavar="NAME=N,3,224,224",
        help=f"of an input that the file leaves open, or another; {BATCH} is the batch",
    )


def model_of(options: argparse.Namespace) -> Model:
    """The net that arguments name.

    Raises:
        PackageError, ModelImportError, BackendUnavailableError: as `load_model`.
    """
    return load_model(options.model, options.weights, shapes=dict(options.shape))


def _shape(text: str) -> tuple[str, tuple[Extent, ...]]:
    """An input's name and its extents, from "data=N,3,224,224"."""
    name, _, extents = text.partition("=")
    if not name or not extents:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=N,3,224,224")
    try:
        return name, tuple(BATCH if extent == BATCH else int(extent) for extent in extents.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: extents are numbers, or {BATCH} for the batch") from error
