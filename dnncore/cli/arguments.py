"""Arguments that several commands have: which net, and what its file does not say."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from dnncore.dtypes import DType
from dnncore.errors import ConfigError
from dnncore.importers.loading import load_model
from dnncore.importers.model_file import add_arguments
from dnncore.nn.calibration import Calibration
from dnncore.nn.model import Model
from dnncore.nn.package import Package
from dnncore.preprocessing import Normalization

__all__ = [
    "PRECISIONS",
    "add_model",
    "add_precision_argument",
    "calibration_of",
    "model_of",
    "normalization_of",
    "with_precision",
]

PRECISIONS = {"fp32": DType.FLOAT32, "fp16": DType.FLOAT16, "bf16": DType.BFLOAT16, "int8": DType.INT8}
"""What lies between a net's inputs and its outputs, by the names that people type."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """Any net: the model, and what its file does not say."""
    parser.add_argument("model", type=Path, help="a model package, an .onnx file, a .prototxt, or a name of the zoo")
    add_arguments(parser)


def add_precision_argument(parser: argparse.ArgumentParser) -> None:
    """--precision, in which a package is to be served."""
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="in which the package is to be served; it keeps that, and dnnserve's --precision wins over it",
    )


def with_precision(package: Package, name: str | None) -> Package:
    """A package that says in what it is to be served; the same where the arguments do not say it.

    Raises:
        PackageError: it is to be served in int8, and has no calibration.
    """
    return package if name is None else replace(package, precision=PRECISIONS[name])


def model_of(options: argparse.Namespace) -> Model:
    """The net that arguments name.

    Raises:
        PackageError, ModelImportError, BackendUnavailableError: as `load_model`.
    """
    return load_model(options.model, options.weights, shapes=dict(options.shape or ()))


def calibration_of(options: argparse.Namespace) -> Calibration | None:
    """What int8 needs to know of the net that arguments name; None for other precisions, and where no package tells.

    Raises:
        PackageError: the package cannot be read.
    """
    is_package = PRECISIONS[options.precision] is DType.INT8 and options.model.is_dir()
    return Package.load(options.model).calibration if is_package else None


def normalization_of(options: argparse.Namespace) -> Normalization | None:
    """What the net that arguments name does to pixels, if it shall read them.

    Raises:
        ConfigError: it shall, and nothing says what it does.
        PackageError: the package cannot be read.
    """
    if not options.pixels:
        return None
    preprocessing = Package.load(options.model).preprocessing if options.model.is_dir() else None
    if preprocessing is None:
        raise ConfigError(f"--pixels needs a package that says how images become its input; {options.model} does not")
    return preprocessing.normalization
