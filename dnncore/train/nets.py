"""From a configuration to the net that it names: of the zoo, or in a file that brings weights to start from."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dnncore.errors import (
    BackendUnavailableError,
    BadParamError,
    ConfigError,
    ModelImportError,
    PackageError,
    PreprocessingError,
)
from dnncore.importers.loading import load_model, load_preprocessing, protobuf_for
from dnncore.importers.model_file import shapes_for_any_batch
from dnncore.nn import Package, Role
from dnncore.nn.package import MODEL_FILE
from dnncore.nn.trainable import Trainable
from dnncore.nn.zoo import AUXILIARY, ZOO
from dnncore.preprocessing import Preprocessing
from dnncore.train.config import NetConfig

__all__ = ["StartingNet", "open_net", "preprocessing_of"]


@dataclass(frozen=True, eq=False)
class StartingNet:
    """A net before it is trained. Immutable.

    Args:
        net: Its structure.
        weights: What its file brings; constants that are not among them begin as their initialisers say.
        digest: SHA-256 of its file, and of that with its weights; "" for a net of the zoo, which its name describes.
    """

    net: Trainable
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    digest: str = ""

    def initialize(self, seed: int) -> dict[str, np.ndarray]:
        """The weights that training starts from; equal seeds give equal bits."""
        return self.net.graph.initialize(seed) | dict(self.weights)


def open_net(config: NetConfig, num_classes: int, input_shape: tuple[int, ...]) -> StartingNet:
    """The net that a configuration names, for images and classes that are known.

    Raises:
        ConfigError: it cannot be read, cannot be trained, or does not fit them.
    """
    found = _opened(config, num_classes, input_shape)
    return replace(found, net=_frozen(found.net, config.frozen)) if config.frozen else found


def _opened(config: NetConfig, num_classes: int, input_shape: tuple[int, ...]) -> StartingNet:
    if not config.path:
        return StartingNet(_of_zoo(config, num_classes, input_shape))
    path, weights = Path(config.path), Path(config.weights) if config.weights else None
    try:
        found = _of_file(config, path, weights, input_shape)
        _check_fit(found.net, num_classes, input_shape)
    except (BackendUnavailableError, BadParamError, ConfigError, ModelImportError, OSError, PackageError) as error:
        raise ConfigError(f"net.path {config.path}: {error}") from error
    return found


def preprocessing_of(config: NetConfig, image_shape: tuple[int, ...] | None = None) -> Preprocessing:
    """What the file of a net says about images.

    Args:
        config: Where the file is.
        image_shape: (C, H, W) of the images as they are stored, where that is known.

    Raises:
        ConfigError: it says nothing, or cannot be read.
    """
    path, found = Path(config.path), None
    try:
        if path.is_dir():
            found = Package.load(path).preprocessing
        elif path.suffix == ".prototxt":
            found = load_preprocessing(path, image_shape=image_shape)
    except (BackendUnavailableError, ModelImportError, OSError, PackageError, PreprocessingError) as error:
        raise ConfigError(f"net.path {config.path}: {error}") from error
    if found is None:
        raise ConfigError(f"net.path {config.path} says nothing about images; give [preprocessing] instead of of_net")
    return found


def _frozen(net: Trainable, patterns: Sequence[str]) -> Trainable:
    """The net with constants that training leaves as they are.

    Raises:
        ConfigError: a pattern fits none that it would change, or nothing is left to be trained.
    """
    changing = {one.name for one in net.graph.constants if one.role is not Role.FIXED}
    for pattern in patterns:
        if not fnmatch.filter(changing, pattern):
            raise ConfigError(f"net.frozen has {pattern!r}, which fits none of {', '.join(sorted(changing))}")
    names = {name for pattern in patterns for name in fnmatch.filter(changing, pattern)}
    if not any(one.role is Role.TRAINABLE and one.name not in names for one in net.graph.constants):
        raise ConfigError(f"net.frozen {list(patterns)} leaves nothing to be trained")
    return replace(net, frozen=frozenset(names))


def _of_zoo(config: NetConfig, num_classes: int, input_shape: tuple[int, ...]) -> Trainable:
    make = ZOO[config.name]
    if config.auxiliary_weight and config.name in AUXILIARY:
        make = AUXILIARY[config.name]
    try:
        return Trainable.of(make(num_classes, input_shape), config.auxiliary_weight)
    except BadParamError as error:
        raise ConfigError(
            f"net.name {config.name} does not take [C, height, width] = {list(input_shape)}: {error}; "
            "change preprocessing.height and preprocessing.width, or preprocessing.steps"
        ) from error


def _of_file(config: NetConfig, path: Path, weights: Path | None, input_shape: Sequence[int]) -> StartingNet:
    if path.suffix == ".prototxt":
        with protobuf_for(path):
            from dnncore.importers.caffe import import_trainable
        net, arrays = import_trainable(path, weights, image_shape=input_shape, allow_missing=config.allow_missing)
        return StartingNet(net, arrays, _digest(path, weights))
    model = load_model(path, weights)
    remedy = shapes_for_any_batch(model.graph)
    if remedy is not None:
        source = "the file that it was imported from" if path.is_dir() else path
        raise ConfigError(
            f"it takes a fixed number of images; give the package that this makes: dnncore import {source} {remedy} --out FOLDER"
        )
    net = Trainable.of(model.graph, config.auxiliary_weight)
    arrays = {name: np.asarray(model.weights[name]) for name in net.graph.constant}
    return StartingNet(net, arrays, _digest(path / MODEL_FILE if path.is_dir() else path, weights))


def _check_fit(net: Trainable, num_classes: int, input_shape: tuple[int, ...]) -> None:
    inputs = net.graph.inputs
    if len(inputs) != 1 or inputs[0].shape[1:] != input_shape:
        reads = ", ".join(map(str, inputs))
        raise ConfigError(
            f"it reads {reads}, but preprocessing gives [C, height, width] = {list(input_shape)}; change "
            "preprocessing.height and preprocessing.width, or preprocessing.steps"
        )
    if net.num_classes != num_classes:
        raise ConfigError(
            f"it tells {net.num_classes} classes apart, the data have {num_classes}; change the last layer in the file"
        )


def _digest(*paths: Path | None) -> str:
    digest = hashlib.sha256()
    for path in paths:
        if path is not None:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
