"""`dnncore calibrate`: how large a net's values become on images of the kind that it will see, kept in its package for int8."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dnncore.cli.arguments import add_precision_argument, with_precision
from dnncore.dtypes import DType
from dnncore.errors import ConfigError
from dnncore.handle import Handle
from dnncore.importers.arrays import read_array
from dnncore.nn.calibration import METHODS, calibrate
from dnncore.nn.example import Example
from dnncore.nn.executors import Executors
from dnncore.nn.model import Model
from dnncore.nn.operators import QuantizedConvolution, QuantizedInnerProduct
from dnncore.nn.package import Package
from dnncore.nn.parameters import Parameters
from dnncore.nn.passes import for_inference
from dnncore.preprocessing import SUFFIXES

__all__ = ["add_command", "calibrated"]

_BATCH = 8
"""Images that are run at a time: of each, all values are kept until they are counted."""

_IMAGES = 256

_KEPT = 2
"""Images that become a package's example: the least number at which they can be mixed up."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Put the command beside the others."""
    parser = commands.add_parser("calibrate", help="look at a package's net with images, so that it can be run in int8")
    parser.add_argument("package", type=Path, help="a model package, which keeps what is found")
    parser.add_argument("folder", type=Path, help="of images, in subfolders too; or of .npy files, inputs of [n, ...]")
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=METHODS[0],
        help="ranges that make the least squared error, or those that hold the largest value (default: %(default)s)",
    )
    parser.add_argument(
        "--images", type=int, default=_IMAGES, help="how many are looked at, evenly spread (default: %(default)s)"
    )
    add_precision_argument(parser)
    parser.add_argument("--device", default="cpu", help='"cpu", "cuda:0", ... (default: cpu)')
    parser.set_defaults(run=_calibrate)


def _calibrate(options: argparse.Namespace) -> int:
    package = calibrated(Package.load(options.package), options.folder, options.method, options.images, options.device)
    with_precision(package, options.precision).save(options.package)
    return 0


def calibrated(
    package: Package, folder: Path, method: str = METHODS[0], images: int = _IMAGES, device: str = "cpu"
) -> Package:
    """A package that knows how large its net's values become; says how its answers in int8 compare.

    Where it has no example, it gets one of these images: random numbers, by which it would be verified, may be far out of range.

    Args:
        package: Of a net with one input.
        folder: Images, where the package has preprocessing, or .npy files with inputs [n, ...].
        method: One of `METHODS`.
        images: How many to look at, at most.
        device: Where to run the net.

    Raises:
        ConfigError: there is nothing to look at.
        PreprocessingError, ModelImportError: a file cannot be read.
        BadParamError: inputs do not fit the net.
    """
    model = Model(package.graph, package.weights)
    if len(model.graph.inputs) != 1:
        names = ", ".join(value.name for value in model.graph.inputs)
        raise ConfigError(f"net {model.graph.name} reads {names}; a folder of images is for nets of one input")
    if images < 1:
        raise ConfigError(f"--images {images} must be 1 or more")
    name = model.graph.inputs[0].name
    batches = [{name: rows} for rows in _inputs(package, folder, images)]
    with Handle(device) as handle:
        found = calibrate(for_inference(model), batches, handle, method)
        changed = for_inference(model, DType.INT8, calibration=found)
        expected, answers = (_answers(one, batches, handle) for one in (for_inference(model), changed))
        example = package.example or _example(model, batches[0], handle)
    layers = sum(
        isinstance(node.operator, QuantizedConvolution | QuantizedInnerProduct) for node in changed.graph.nodes
    )
    print(f"{package.name}: calibrated with {found.images} images ({method}); {layers} layers are computed in int8")
    error = np.linalg.norm(answers - expected) / max(np.linalg.norm(expected), np.finfo(np.float32).tiny)
    print(f"  beside fp32 on these images: relative error {error:.3g}{_agreement(expected, answers)}")
    return replace(package, calibration=found, example=example)


def _agreement(expected: np.ndarray, answers: np.ndarray) -> str:
    """How often a classifier names the same class first; nothing of other nets."""
    if expected.ndim != 2 or expected.shape[1] < 2:
        return ""
    same = np.mean(expected.argmax(1) == answers.argmax(1))
    return f", the same class first for {same:.1%}"


def _answers(model: Model, batches: Sequence[Mapping[str, np.ndarray]], handle: Handle) -> np.ndarray:
    """The first output for all images, one behind the other."""
    output = model.graph.outputs[0]
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executors(model.graph, handle, parameters) as executors,
    ):
        return np.concatenate([executors.run(feeds)[output].copy() for feeds in batches])


def _example(model: Model, feeds: Mapping[str, np.ndarray], handle: Handle) -> Example:
    """The first images, and all that the net gives for them in float32."""
    few = {name: array[:_KEPT] for name, array in feeds.items()}
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executors(model.graph, handle, parameters) as executors,
    ):
        return Example(few, {name: array.copy() for name, array in executors.run(few).items()})


def _inputs(package: Package, folder: Path, images: int) -> Iterator[np.ndarray]:
    """What a net reads, a few images at a time."""
    preprocessing = package.preprocessing
    endings = (".npy",) if preprocessing is None else SUFFIXES
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in endings)
    if not files:
        why = "" if preprocessing else "; the package has no preprocessing, so it takes inputs and not images"
        raise ConfigError(f"{folder} has no files that end in {', '.join(endings)}{why}")
    chosen = [files[index] for index in np.linspace(0, len(files) - 1, min(images, len(files))).astype(int)]
    if preprocessing is None:
        rows = np.concatenate([read_array(path) for path in chosen])[:images]
        yield from (rows[begin : begin + _BATCH] for begin in range(0, len(rows), _BATCH))
        return
    for begin in range(0, len(chosen), _BATCH):
        some = chosen[begin : begin + _BATCH]
        yield np.stack([preprocessing.from_bytes(path.read_bytes()) for path in some])
