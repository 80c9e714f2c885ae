"""`dnncore import`: from another framework's file to a package that dnnserve serves, checked by an example where there is one."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from dnncore.cli.arguments import add_precision_argument, with_precision
from dnncore.cli.calibrating import calibrated
from dnncore.cli.describing import add_memory_arguments, summary
from dnncore.dtypes import DType
from dnncore.errors import ConfigError
from dnncore.handle import Handle
from dnncore.importers.arrays import data_set, read_array
from dnncore.importers.model_file import ModelFile, add_arguments, add_package_arguments, shapes_for_any_batch
from dnncore.nn.example import TOLERANCES, Example
from dnncore.nn.graph import Graph
from dnncore.nn.model import Model
from dnncore.nn.passes import for_inference

__all__ = ["add_command"]


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Put the command beside the others."""
    parser = commands.add_parser("import", help="make a model package of an .onnx file, or of a .prototxt")
    parser.add_argument("model", type=Path, help="an .onnx file, or a .prototxt")
    add_arguments(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="of the package, NAME/VERSION say")
    add_package_arguments(parser)
    parser.add_argument(
        "--calibrate", type=Path, metavar="FOLDER", help="of images, as dnncore calibrate takes them: for int8"
    )
    add_memory_arguments(parser)
    add_precision_argument(parser)
    check = parser.add_argument_group(
        "check",
        "Run the net on inputs whose outputs are known; the package is written if they are right, and keeps both.",
    )
    for what in ("input", "output"):
        check.add_argument(
            f"--check-{what}",
            action="append",
            default=[],
            metavar="[NAME=]FILE",
            help=f"an {what} as .npy, or as .pb of ONNX; those without a name in the order of the net's",
        )
    check.add_argument("--check", type=Path, metavar="FOLDER", help="with input_0.pb, ..., output_0.pb, ..., as ONNX's")
    check.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCES[DType.FLOAT32],
        help="of outputs, relative to the largest element (default: %(default)g)",
    )
    check.add_argument("--check-only", action="store_true", help="the package does not keep inputs and outputs")
    parser.set_defaults(run=_import)


def _import(options: argparse.Namespace) -> int:
    shape = tuple(options.shape or ())
    file = ModelFile(options.model, options.weights, shape, options.name, options.labels, options.preprocess)
    package = file.package("dnncore import")
    model = Model(package.graph, package.weights)
    example = _example(options, model.graph)
    if example is not None:
        if not _agrees(model, example):
            return 1
        if not options.check_only:
            package = replace(package, example=example)
    if options.calibrate is not None:
        package = calibrated(package, options.calibrate)
    package = with_precision(package, options.precision)
    text = summary(model, options.device)  # before anything is written: the device may not be there
    package.save(options.out)
    print(f"{options.out}: {package.name}")
    print(text)
    remedy = shapes_for_any_batch(model.graph)
    if remedy is not None:
        print(f"  for this number of rows alone, which dnnserve and dnntrain do not take; for any number: {remedy}")
    return 0


def _agrees(model: Model, example: Example) -> bool:
    """Run it as it will be run, on the CPU in float32, and say what came of it."""
    with Handle("cpu") as handle:
        differences = example.differences(for_inference(model), handle, example.tolerance)
    for difference in differences:
        print(f"  check {difference}")
    return all(difference.is_allowed for difference in differences)


def _example(options: argparse.Namespace, graph: Graph) -> Example | None:
    """The inputs and outputs that arguments name; None where they name none.

    Raises:
        ModelImportError: a file cannot be read.
        ConfigError: there are inputs without outputs, too many of them, or one of a name that the net does not have.
    """
    inputs, outputs = options.check_input, options.check_output
    if options.check is not None:
        if inputs or outputs:
            raise ConfigError("--check FOLDER takes the place of --check-input and --check-output")
        inputs, outputs = (list(map(str, paths)) for paths in data_set(options.check))
    if not inputs and not outputs:
        return None
    if not inputs or not outputs:
        raise ConfigError("a check needs inputs and outputs: --check-input and --check-output")
    given = _named(inputs, [value.name for value in graph.inputs], "input")
    wanted = {
        name: _without_ones(array, len(graph.values[name].shape))
        for name, array in _named(outputs, graph.outputs, "output").items()
    }
    return Example(given, wanted, options.tolerance)


def _named(texts: list[str], names: tuple[str, ...] | list[str], what: str) -> dict[str, np.ndarray]:
    """Arrays by name, from "NAME=FILE" and "FILE"."""
    found: dict[str, np.ndarray] = {}
    left = iter(names)
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or name not in names:  # a file's name may have an = in it
            path, name = text, next(left, "")
        if not name or name in found:
            raise ConfigError(f"{what} {text}: the net has the {what}s {', '.join(names)}, and each is given once")
        found[name] = read_array(Path(path))
    return found


def _without_ones(array: np.ndarray, ndim: int) -> np.ndarray:
    """[N, K, 1, 1], as a convolutional classifier gives it, as [N, K], which its package gives."""
    while array.ndim > ndim and array.shape[-1] == 1:
        array = array[..., 0]
    return array
