"""The model package: the whole contract between training and serving, as a folder.

``model.json`` holds the graph, the preprocessing, the labels, the provenance and a checksum for every tensor;
``weights.safetensors`` holds the tensors. Nothing in it is executed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from dnncore.errors import BadParamError, ChecksumError, PackageError, PreprocessingError, UnknownLayerError
from dnncore.nn.layer import Layer
from dnncore.nn.layers import LAYERS
from dnncore.nn.net import Net, Node
from dnncore.preprocessing import Preprocessing

__all__ = ["MODEL_FILE", "WEIGHTS_FILE", "Package"]

FORMAT = "dnncore.package"
FORMAT_VERSION = 1
MODEL_FILE = "model.json"
"""Graph, preprocessing, labels and checksums."""

WEIGHTS_FILE = "weights.safetensors"
"""The parameters."""

_MAX_MODEL_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Package:
    """A trained net with everything needed to use it. Immutable.

    Args:
        name: The model's name.
        net: Its structure, ending in logits or probabilities of shape [K].
        weights: float32 arrays by full name.
        preprocessing: How an image becomes its input.
        labels: K names, in the order of the outputs.
        provenance: Where it came from; any JSON values.

    Raises:
        PackageError: the parts do not fit together; the message names the two that do not.
    """

    name: str
    net: Net
    weights: Mapping[str, np.ndarray]
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.net.input_shape != self.preprocessing.input_shape:
            raise PackageError(
                f"package {self.name!r}: the net reads {list(self.net.input_shape)} but the preprocessing makes "
                f"{list(self.preprocessing.input_shape)}"
            )
        if self.net.output_shape != (len(self.labels),):
            raise PackageError(
                f"package {self.name!r}: {len(self.labels)} labels, but the net's output has shape "
                f"{list(self.net.output_shape)}"
            )
        specs = self.net.parameter_specs()
        if set(specs) != set(self.weights):
            raise PackageError(
                f"package {self.name!r}: weights lack {sorted(set(specs) - set(self.weights))} and have unknown "
                f"{sorted(set(self.weights) - set(specs))}"
            )
        for name, spec in specs.items():
            array = self.weights[name]
            if array.shape != spec.shape or array.dtype != np.float32:
                raise PackageError(
                    f"package {self.name!r}: weight {name!r} is {array.dtype}{list(array.shape)}, the net needs "
                    f"float32{list(spec.shape)}"
                )

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.labels)

    @property
    def serving_net(self) -> Net:
        """The net with probabilities as its output."""
        return self.net.with_probabilities()

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
                tensors = {name: np.ascontiguousarray(array) for name, array in self.weights.items()}
                _write(staging / WEIGHTS_FILE, save_tensors(tensors))
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
            "net": {
                "name": self.net.name,
                "input": {"name": self.net.input_name, "shape": list(self.net.input_shape)},
                "nodes": [
                    {
                        "name": node.name,
                        "type": type(node.layer).__name__,
                        "inputs": list(node.inputs),
                        "settings": dataclasses.asdict(node.layer),  # type: ignore[call-overload]
                    }
                    for node in self.net.nodes
                ],
            },
            "preprocessing": self.preprocessing.to_dict(),
            "labels": list(self.labels),
            "provenance": dict(self.provenance),
            "weights": {
                name: {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": _checksum(array)}
                for name, array in self.weights.items()
            },
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
        document = _read_document(folder / MODEL_FILE)
        try:
            net = _net(document["net"])
            preprocessing = Preprocessing.from_dict(document["preprocessing"])
            weights = _read_weights(folder / WEIGHTS_FILE, document["weights"])
            return cls(
                str(document["name"]),
                net,
                weights,
                preprocessing,
                tuple(str(label) for label in document["labels"]),
                dict(document["provenance"]),
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


def _checksum(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _read_document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_MODEL_BYTES:
            raise PackageError(f"{path} has {path.stat().st_size} bytes, at most {_MAX_MODEL_BYTES} are read")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise PackageError(f"cannot read {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PackageError(f"{path} is not a model package: its format is not {FORMAT!r}")
    if document.get("format_version") != FORMAT_VERSION:
        raise PackageError(
            f"{path} has format version {document.get('format_version')!r}; this version of dnncore reads {FORMAT_VERSION}"
        )
    return document


def _net(document: Mapping[str, Any]) -> Net:
    nodes = tuple(
        Node(str(node["name"]), _layer(node), tuple(str(name) for name in node["inputs"])) for node in document["nodes"]
    )
    shape = tuple(int(extent) for extent in document["input"]["shape"])
    return Net(str(document["name"]), shape, nodes, str(document["input"]["name"]))


def _layer(node: Mapping[str, Any]) -> Layer:
    kind = node["type"]
    if kind not in LAYERS:
        raise UnknownLayerError(
            f"node {node['name']!r} has type {kind!r}; this version of dnncore knows {', '.join(sorted(LAYERS))}"
        )
    layer = LAYERS[kind]
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in node["settings"].items()}
    try:
        return layer(**settings)
    except TypeError as error:
        raise PackageError(f"node {node['name']!r} ({kind}): {error}") from error


def _read_weights(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    try:
        tensors: dict[str, np.ndarray] = load_tensors(path.read_bytes())
    except OSError as error:
        raise PackageError(f"cannot read {path}: {error}") from error
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
