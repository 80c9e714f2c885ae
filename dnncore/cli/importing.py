"""`dnncore import`: from another framework's file to a package that dnnserve serves; and `dnncore describe`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dnncore.dtypes import DType
from dnncore.errors import ConfigError, PreprocessingError
from dnncore.importers.loading import load_model
from dnncore.nn.graph import BATCH, Extent, Node
from dnncore.nn.model import Model
from dnncore.nn.operators import Flatten
from dnncore.nn.package import Package
from dnncore.nn.passes import for_inference
from dnncore.nn.placement import place
from dnncore.preprocessing import Preprocessing
from dnncore.version import __version__

__all__ = ["add_commands"]

_BATCHES = (1, 8, 32)
_MAX_TEXT_BYTES = 16 << 20
_SHAPE_HELP = "of an input that the file leaves open, or another; N is the batch"


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Put both commands beside the others."""
    importing = commands.add_parser("import", help="make a model package of an .onnx file, or of a .prototxt")
    importing.add_argument("model", type=Path, help="an .onnx file, or a .prototxt")
    importing.add_argument("--weights", type=Path, help="the .caffemodel of a .prototxt")
    importing.add_argument(
        "--shape", type=_shape, action="append", default=[], metavar="NAME=N,3,224,224", help=_SHAPE_HELP
    )
    importing.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="of the package, NAME/VERSION say")
    importing.add_argument("--name", help="of the model (default: the net's)")
    importing.add_argument("--labels", type=Path, help="a text file, a line for each output of a classifier")
    importing.add_argument(
        "--preprocess", type=Path, metavar="JSON", help="how images become inputs (docs/preprocessing.md)"
    )
    importing.set_defaults(run=_import)
    describing = commands.add_parser(
        "describe", help="what a net computes, reads and gives, and the memory that it takes"
    )
    describing.add_argument("model", type=Path, help="a model package, an .onnx file, or a .prototxt")
    describing.add_argument("--weights", type=Path, help="the .caffemodel of a .prototxt")
    describing.add_argument(
        "--shape", type=_shape, action="append", default=[], metavar="NAME=N,3,224,224", help=_SHAPE_HELP
    )
    describing.add_argument("--passes", action="store_true", help="as it is run: folded, fused")
    describing.set_defaults(run=_describe)


def _import(options: argparse.Namespace) -> int:
    model = load_model(options.model, options.weights, shapes=dict(options.shape))
    labels = None if options.labels is None else tuple(_text(options.labels).splitlines())
    if labels is not None:
        model = _with_flat_output(model)
    package = Package(
        options.name or model.graph.name,
        model.graph,
        model.weights,
        None if options.preprocess is None else _preprocessing(options.preprocess),
        labels,
        {"tool": "dnncore import", "version": __version__, "file": options.model.name},
    )
    package.save(options.out)
    print(f"{options.out}: {package.name}")
    print(_summary(model))
    return 0


def _describe(options: argparse.Namespace) -> int:
    model = load_model(options.model, options.weights, shapes=dict(options.shape))
    print((for_inference(model) if options.passes else model).graph.describe())
    print(_summary(model))
    return 0


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
    return path.read_text()


def _preprocessing(path: Path) -> Preprocessing:
    try:
        document = json.loads(_text(path))
    except ValueError as error:
        raise PreprocessingError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise PreprocessingError(f"{path} must hold an object, as Preprocessing.to_dict() gives it")
    return Preprocessing.from_dict(document)


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


def _summary(model: Model) -> str:
    """Inputs, outputs, parameters, work, and the memory of batches as they are served."""
    graph = model.graph
    parameters = sum(array.size for array in model.weights.values())
    nbytes = sum(array.nbytes for array in model.weights.values())
    lines = [
        *(f"  reads {value}" for value in graph.inputs),
        *(f"  gives {graph.values[name]}" for name in graph.outputs),
        f"  {parameters} parameters, {nbytes / 1e6:.1f} MB; {2 * graph.macs() / 1e9:.3g} GFLOP per image",
    ]
    for precision in (DType.FLOAT32, DType.FLOAT16):
        served = for_inference(model, precision)
        sizes = ", ".join(f"{place(served.graph, batch).nbytes / 1e6:.1f} MB for {batch}" for batch in _BATCHES)
        lines.append(f"  activations in {precision.value}: {sizes}")
    return "\n".join(lines)
