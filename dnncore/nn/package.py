"""The model package: the whole contract between training and serving, as a folder.

``model.json`` holds the graph, the preprocessing, the labels, the provenance and a checksum for every tensor;
``weights.safetensors`` holds the tensors, ``example.safetensors``, where there is one, inputs with the outputs that belong to
them. Nothing in it is executed. Packages of version 1, which could hold fewer kinds of nets, are read as well.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ChecksumError, PackageError, PreprocessingError
from dnncore.nn import graph_json, package_v1
from dnncore.nn.calibration import Calibration
from dnncore.nn.example import Example
from dnncore.nn.graph import Graph, Value
from dnncore.nn.heads import with_probabilities
from dnncore.nn.model import Model
from dnncore.nn.parameters import check_weights
from dnncore.preprocessing import Preprocessing

__all__ = ["MODEL_FILE", "SERVED_PRECISIONS", "WEIGHTS_FILE", "Package"]

FORMAT = "dnncore.package"
FORMAT_VERSION = 2
MODEL_FILE = "model.json"
"""Graph, preprocessing, labels and checksums."""

WEIGHTS_FILE = "weights.safetensors"
"""The parameters."""

EXAMPLE_FILE = "example.safetensors"
"""Inputs, and the outputs that belong to them; not in every package."""

MAX_EXAMPLE_BYTES = 64 << 20
"""What an example may have; an image of ImageNet has 0.6 MB."""

SERVED_PRECISIONS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8)
"""What a net may be computed in between its inputs and its outputs, as `dnncore.nn.passes.for_inference` takes it."""

_MAX_MODEL_BYTES = 64 << 20
_MAX_HEADER_BYTES = 1 << 20
_INPUT, _OUTPUT = "input ", "output "
"""How names of tensors in `EXAMPLE_FILE` begin."""


@dataclasses.dataclass(frozen=True)
class Package:
    """A trained net with everything needed to use it. Immutable.

    Args:
        name: The model's name.
        graph: Its structure. With labels it ends in logits or probabilities of shape [N, K].
        weights: Its constants by name.
        preprocessing: How an image becomes its input; None where its inputs are no images.
        labels: K names, in the order of the outputs; None where it is no classifier.
        provenance: Where it came from; any JSON values.
        example: Inputs of `graph`, and what it gives for them; at most 64 MiB.
        calibration: How large its values become, for int8; None where nobody has looked.
        precision: In what it is to be computed, one of `SERVED_PRECISIONS`, unless whoever runs it says otherwise; None where
            nobody has said. Weights are kept in float32 whatever it is.

    Raises:
        PackageError: the parts do not fit together; the message names the two that do not.
    """

    name: str
    graph: Graph
    weights: Mapping[str, np.ndarray] = dataclasses.field(repr=False)
    preprocessing: Preprocessing | None
    labels: tuple[str, ...] | None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    example: Example | None = dataclasses.field(default=None, repr=False)
    calibration: Calibration | None = None
    precision: DType | None = None

    def __post_init__(self) -> None:
        if self.preprocessing is not None and self.input.shape[1:] != self.preprocessing.input_shape:
            raise PackageError(
                f"package {self.name!r}: the net reads {list(self.input.shape[1:])} but the preprocessing makes "
                f"{list(self.preprocessing.input_shape)}"
            )
        if self.labels is not None and self.output.shape[1:] != (len(self.labels),):
            raise PackageError(
                f"package {self.name!r}: {len(self.labels)} labels, but the net's output has shape "
                f"{list(self.output.shape[1:])}"
            )
        if self.example is not None and self.example.nbytes > MAX_EXAMPLE_BYTES:
            raise PackageError(
                f"package {self.name!r}: the example has {self.example.nbytes} B, at most {MAX_EXAMPLE_BYTES} B are kept; "
                f"take fewer images"
            )
        if self.precision is not None and self.precision not in SERVED_PRECISIONS:
            names = ", ".join(dtype.value for dtype in SERVED_PRECISIONS)
            raise PackageError(
                f"package {self.name!r}: nets are not computed in {self.precision.value}; use one of {names}"
            )
        if self.precision is DType.INT8 and self.calibration is None:
            raise PackageError(
                f"package {self.name!r}: int8 needs a calibration, which it lacks; `dnncore calibrate PACKAGE FOLDER` makes one"
            )
        try:
            check_weights(self.graph, self.weights)
            if self.example is not None:
                self.example.batch(self.graph)
        except BadParamError as error:
            raise PackageError(f"package {self.name!r}: {error}") from error

    @property
    def input(self) -> Value:
        """The first input."""
        return self.graph.inputs[0]

    @property
    def output(self) -> Value:
        """The first output."""
        return self.graph.values[self.graph.outputs[0]]

    @property
    def of_images(self) -> tuple[Preprocessing, tuple[str, ...]]:
        """Preprocessing and labels of a classifier of images.

        Raises:
            PackageError: it is none; the message says what it lacks.
        """
        if self.preprocessing is None or self.labels is None or len(self.graph.inputs) != 1:
            lacks = (
                "preprocessing" if self.preprocessing is None else "labels" if self.labels is None else "a single input"
            )
            raise PackageError(f"package {self.name!r} is no classifier of images: it lacks {lacks}")
        return self.preprocessing, self.labels

    @property
    def serving_graph(self) -> Graph:
        """What is served: a classifier gives probabilities, any other net what it gives."""
        return self.graph if self.labels is None else with_probabilities(self.graph)

    @property
    def serving_model(self) -> Model:
        """`serving_graph` with the weights."""
        return Model(self.serving_graph, self.weights)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the folder; a reader sees the old one, the new one or, for the instant between two renames, none: never a mixture.

        Raises:
            PackageError: the folder cannot be written, or something else than a package is there.
        """
        target = Path(path)
        if target.exists() and not (target / MODEL_FILE).is_file():
            raise PackageError(f"{target} exists and is no model package; choose another path")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                staging.chmod(0o755)
                _write(staging / WEIGHTS_FILE, _serialized(self.weights))
                if self.example is not None:
                    _write(staging / EXAMPLE_FILE, _serialized(_as_tensors(self.example)))
                _write(staging / MODEL_FILE, json.dumps(self._document(), indent=2).encode() + b"\n")
                if target.exists():
                    retired = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
                    target.replace(retired / target.name)
                    staging.replace(target)
                    shutil.rmtree(retired)
                else:
                    staging.replace(target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        except OSError as error:
            raise PackageError(f"cannot write package {target}: {error}") from error

    def _document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "graph": graph_json.to_document(self.graph),
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_dict(),
            "labels": None if self.labels is None else list(self.labels),
            "provenance": dict(self.provenance),
            "weights": _entries(self.weights),
            "example": None
            if self.example is None
            else {"tolerance": self.example.tolerance, "tensors": _entries(_as_tensors(self.example))},
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
            "precision": None if self.precision is None else self.precision.value,
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Package:
        """Read and verify a folder.

        Raises:
            PackageError: a file is missing, truncated or malformed; the message names it.
            ChecksumError: a tensor is not the one that was written.
            UnknownLayerError: the graph uses a layer type that this version does not have.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise PackageError(
                f"{folder} is no folder, and a model package is one; `dnncore import` makes it of a file"
            )
        document = _read_document(folder / MODEL_FILE)
        try:
            is_old = document["format_version"] == package_v1.FORMAT_VERSION
            graph = package_v1.graph_of(document["net"]) if is_old else graph_json.from_document(document["graph"])
            preprocessing, labels = document["preprocessing"], document["labels"]
            return cls(
                str(document["name"]),
                graph,
                _read_tensors(folder / WEIGHTS_FILE, document["weights"]),
                None if preprocessing is None else Preprocessing.from_dict(preprocessing),
                None if labels is None else tuple(str(label) for label in labels),
                dict(document["provenance"]),
                _read_example(folder / EXAMPLE_FILE, document.get("example")),
                None if document.get("calibration") is None else Calibration.from_dict(document["calibration"]),
                None if document.get("precision") is None else DType(document["precision"]),
            )
        except PackageError as error:
            raise type(error)(f"{folder}: {error}") from error
        except (BadParamError, PreprocessingError) as error:
            raise PackageError(f"{folder / MODEL_FILE}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PackageError(f"{folder / MODEL_FILE} is malformed: {type(error).__name__}: {error}") from error


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _serialized(tensors: Mapping[str, np.ndarray]) -> bytes:
    return save_tensors({name: np.asarray(array, order="C") for name, array in tensors.items()})


def _as_tensors(example: Example) -> dict[str, np.ndarray]:
    inputs = {_INPUT + name: array for name, array in example.inputs.items()}
    return inputs | {_OUTPUT + name: array for name, array in example.outputs.items()}


def _entries(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        name: {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": _checksum(array)}
        for name, array in tensors.items()
    }


def _checksum(array: np.ndarray) -> str:
    return hashlib.sha256(np.asarray(array, order="C").tobytes()).hexdigest()


def _read_document(path: Path) -> dict[str, Any]:
    data = _read(path, _MAX_MODEL_BYTES)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PackageError(f"{path} is not a model package: its format is not {FORMAT!r}")
    if document.get("format_version") not in (package_v1.FORMAT_VERSION, FORMAT_VERSION):
        raise PackageError(
            f"{path} has format version {document.get('format_version')!r}; this version of dnncore reads "
            f"{package_v1.FORMAT_VERSION} and {FORMAT_VERSION}"
        )
    return document


def _read_example(path: Path, document: Mapping[str, Any] | None) -> Example | None:
    if document is None:
        return None
    tolerance = float(document["tolerance"])
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise PackageError(f"the example's tolerance {tolerance} is no number of 0 or more")
    tensors = _read_tensors(path, document["tensors"], MAX_EXAMPLE_BYTES + _MAX_HEADER_BYTES)
    inputs, outputs = (
        {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
        for prefix in (_INPUT, _OUTPUT)
    )
    return Example(inputs, outputs, tolerance)


def _read_tensors(
    path: Path, entries: Mapping[str, Mapping[str, Any]], most: int | None = None
) -> dict[str, np.ndarray]:
    data = _read(path, most)
    try:
        tensors: dict[str, np.ndarray] = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PackageError(f"{path} is truncated or not a safetensors file: {error}") from error
    if set(tensors) != set(entries):
        raise PackageError(
            f"{path.name} lacks {sorted(set(entries) - set(tensors))} and has unknown {sorted(set(tensors) - set(entries))}"
        )
    for name, entry in entries.items():
        found = _checksum(tensors[name])
        if found != entry["sha256"]:
            raise ChecksumError(
                f"tensor {name!r} in {path.name} has SHA-256 {found}, {MODEL_FILE} says {entry['sha256']}; restore the file"
            )
    return tensors


def _read(path: Path, most: int | None = None) -> bytes:
    """The contents of a regular file, of at most so many bytes.

    Whoever may put packages into a repository must not be able to stop its reader: a FIFO in a file's place would have it wait for
    a writer, and a device may have no end. What was opened is judged, so nothing can take its place in between.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PackageError(f"{path} is {_kind(status.st_mode)}; put a regular file in its place")
            if most is not None and status.st_size > most:
                raise PackageError(f"{path} has {status.st_size} B; at most {most} B are read")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PackageError(f"cannot read {path}: {error}") from error


def _kind(mode: int) -> str:
    for is_one, name in ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISDIR, "a folder"), (stat.S_ISCHR, "a device")):
        if is_one(mode):
            return name
    return "no regular file"
