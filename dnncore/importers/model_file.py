"""From a file of another framework, and what it does not say, to a package; and the command-line arguments for that."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from dnncore.errors import ConfigError, ModelImportError, PreprocessingError
from dnncore.importers.loading import caffemodel_beside, load_model, load_preprocessing
from dnncore.nn.graph import BATCH, Extent, Graph, Node
from dnncore.nn.model import Model
from dnncore.nn.operators import Flatten
from dnncore.nn.package import Package
from dnncore.preprocessing import PRESETS, Preprocessing, preset
from dnncore.version import __version__

__all__ = ["ModelFile", "add_arguments", "add_package_arguments", "shapes_for_any_batch"]

_MAX_TEXT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file that holds a net, and what there is to say of it that the file does not. Immutable.

    Args:
        path: An .onnx file, or a .prototxt.
        weights: The .caffemodel of a .prototxt; None for the one of the same stem beside it.
        shape: Inputs' names and extents, where the file leaves them open or others are wanted.
        name: Of the model; None for the stem of the file that holds the weights.
        labels: A text file, a line for each output of a classifier.
        preprocess: How images become inputs: one of `PRESETS`, or the path of a JSON file with what `Preprocessing.to_dict` gives,
            or of the .prototxt by which a net of Caffe was trained.
    """

    path: Path
    weights: Path | None = None
    shape: tuple[tuple[str, tuple[Extent, ...]], ...] = ()
    name: str | None = None
    labels: Path | None = None
    preprocess: str | None = None

    def package(self, tool: str, *, served: bool = False) -> Package:
        """Import it.

        Args:
            tool: What imports it, for the package's provenance.
            served: Whether it is to be served at once: a net of one output gives rows where it can, and one that has preprocessing
                but no labels calls its classes by their numbers, "0", "1", ...

        Raises:
            ModelImportError: the net cannot be imported, and the message lists all that is in the way; or it is to be served, and
                takes a fixed number of rows.
            ConfigError: labels are given to a net of several outputs, or a text file is too large.
            PackageError: labels or preprocessing do not fit the net.
            PreprocessingError: there is no such preprocessing, or its file is malformed.
            OSError: a text file cannot be read.
        """
        model = load_model(self.path, self.weights, shapes=dict(self.shape))
        remedy = shapes_for_any_batch(model.graph) if served else None
        if remedy is not None:
            reads = "; ".join(map(str, model.graph.inputs))
            raise ModelImportError(
                str(self.path),
                [
                    f"it reads {reads}, a fixed number of rows, and requests are served together; for any number: {remedy}"
                ],
            )
        labels = None if self.labels is None else tuple(_text(self.labels).splitlines())
        preprocessing = None if self.preprocess is None else _preprocessing(self.preprocess, model)
        if labels is not None or (served and len(model.graph.outputs) == 1):
            model = _with_flat_output(model)
        if served and labels is None and preprocessing is not None:
            labels = _numbers(model)
        provenance = {"tool": tool, "version": __version__, "file": self.path.name}
        return Package(self.name or self._stem(), model.graph, model.weights, preprocessing, labels, provenance)

    def _stem(self) -> str:
        return (self.weights or caffemodel_beside(self.path) or self.path).stem


def shapes_for_any_batch(graph: Graph) -> str | None:
    """The arguments by which a file's net takes any number of rows, where it is for one number, as exporters write it unasked.

    Returns:
        "--shape x=N,3,224,224" for each input; None where one begins with the batch already, or has other extents without a number.
    """
    if not all(value.shape and all(isinstance(extent, int) for extent in value.shape) for value in graph.inputs):
        return None
    extents = ((value.name, (BATCH, *map(str, value.shape[1:]))) for value in graph.inputs)
    return " ".join(f"--shape {name}={','.join(shape)}" for name, shape in extents) or None


def add_arguments(parser: argparse._ActionsContainer) -> None:
    """Let a command line say what a model's file does not say of its net: --weights and --shape."""
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="a .prototxt's .caffemodel, if not NAME.caffemodel"
    )
    parser.add_argument(
        "--shape",
        type=_shape,
        action="append",
        metavar="INPUT=N,3,224,224",
        help=f"of an input that the file leaves open, or another; {BATCH} is the batch",
    )


def add_package_arguments(parser: argparse._ActionsContainer) -> None:
    """And what a package needs besides: --name, --labels and --preprocess."""
    parser.add_argument("--name", help="of the model; without it, the stem of the file with the weights")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="a line for each output of a classifier")
    parser.add_argument(
        "--preprocess",
        metavar="HOW",
        help=f"how images become inputs: {', '.join(PRESETS)}, a JSON file, or Caffe's train_val.prototxt "
        "(docs/serve-your-model.md)",
    )


def _shape(text: str) -> tuple[str, tuple[Extent, ...]]:
    """An input's name and its extents, from "data=N,3,224,224"."""
    name, _, extents = text.partition("=")
    if not name or not extents:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=N,3,224,224")
    try:
        return name, tuple(BATCH if extent == BATCH else int(extent) for extent in extents.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: extents are numbers, or {BATCH} for the batch") from error


def _text(path: Path) -> str:
    if path.stat().st_size > _MAX_TEXT_BYTES:
        raise ConfigError(f"{path} has {path.stat().st_size} bytes; at most {_MAX_TEXT_BYTES} are read")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from error


def _preprocessing(how: str, model: Model) -> Preprocessing:
    input_shape = _image_shape(model)
    if how in PRESETS:
        return preset(how, input_shape)
    path = Path(how)
    if not path.exists():
        raise PreprocessingError(f"preprocessing {how!r} is neither a file nor one of {', '.join(PRESETS)}")
    if path.suffix == ".prototxt":
        return load_preprocessing(path, input_shape)
    try:
        document = json.loads(_text(path))
    except ValueError as error:
        raise PreprocessingError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise PreprocessingError(f"{path} must hold an object, as Preprocessing.to_dict() gives it")
    return Preprocessing.from_dict(document)


def _image_shape(model: Model) -> tuple[int, ...]:
    """[C, H, W] of the net's first input.

    Raises:
        PreprocessingError: there is none, or it does not read a number of images.
    """
    graph = model.graph
    shape = graph.inputs[0].shape if graph.inputs else ()
    extents = tuple(extent for extent in shape[1:] if isinstance(extent, int))
    if shape[:1] != (BATCH,) or len(extents) != len(shape) - 1:
        raise PreprocessingError(
            f"net {graph.name} reads {list(shape)}, which are no images: preprocessing is for [N, ...]"
        )
    return extents


def _with_flat_output(model: Model) -> Model:
    """A classifier that gives [N, K, 1, 1], as convolutional ones do, gives [N, K]."""
    graph = model.graph
    if len(graph.outputs) != 1:
        raise ConfigError(f"net {graph.name} has the outputs {', '.join(graph.outputs)}; labels are for one")
    (name,) = graph.outputs
    shape = graph.values[name].shape
    if len(shape) <= 2 or shape[0] != BATCH or any(extent != 1 for extent in shape[2:]):
        return model
    flat = graph.free_name(f"{name}.flat")
    nodes = (*graph.nodes, Node(flat, Flatten(), (name,), (flat,)))
    return Model(graph.rewritten(nodes, outputs=(flat,)), model.weights)


def _numbers(model: Model) -> tuple[str, ...] | None:
    """The classes of a net that gives [N, K], by number; None for others, which are no classifiers."""
    shapes = [model.graph.values[name].shape for name in model.graph.outputs]
    match shapes:
        case [(batch, int(classes))] if batch == BATCH:
            return tuple(map(str, range(classes)))
    return None
