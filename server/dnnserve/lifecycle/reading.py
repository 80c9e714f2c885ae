"""A package as it is served: what requests must know of it, and what devices load."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn import Model, Package
from dnncore.nn.graph_json import to_document
from dnncore.nn.passes import for_inference, rank_classes
from dnnserve.catalog import ModelSpec
from dnnserve.config import PRECISIONS, ModelConfig
from dnnserve.engine.net import ServedModel, signature_of
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError
from dnnserve.signature import Signature, TensorSpec

__all__ = ["configured", "model_spec", "read_model"]

_RANKED = 5
"""Classes that a device ranks: as many as Classify gives where nothing is said. For more of them whole rows come to the host."""

_MANY = 16
"""Rows of fewer classes are ranked sooner than a device is asked to."""


def read_model(
    key: ModelKey, package: Package, settings: ModelConfig, devices: Iterable[str]
) -> tuple[ModelSpec, ServedModel]:
    """What requests must know of a package, and what devices load.

    Args:
        key: Of the version.
        package: Its.
        settings: Of the model.
        devices: Labels of those that will have it: GPUs rank classes, from which a row would have to be copied.

    Raises:
        StartError: it cannot be served, or it is to be run in int8, and is not calibrated.
    """
    ranking = not any(label.startswith("cpu") for label in devices)
    spec = configured(model_spec(key, package, settings.max_batch_rows, ranking=ranking), settings)
    precision = _precision(package, settings)
    model = _model_to_run(key, package, precision, spec.ranked)
    assert _extents(signature_of(model.graph)) == _extents(spec.signature), (
        "passes leave what is read and given as it is"
    )
    return spec, ServedModel(model, package.preprocessing, _digest(package, precision, spec.ranked))


def _digest(package: Package, precision: DType, ranked: int) -> str:
    """SHA-256 of what the time of a batch depends on, but for the device: the net's structure and what is made of it. Weights are
    not in it.
    """
    parts = {
        "graph": to_document(package.serving_graph),
        "preprocessing": None if package.preprocessing is None else package.preprocessing.to_dict(),
        "precision": precision.value,
        "ranked": ranked,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def configured(spec: ModelSpec, settings: ModelConfig) -> ModelSpec:
    """A signature with those settings that need no new load."""
    return replace(spec, default_deadline_ns=int(settings.default_deadline_ms * 1e6), priority=settings.priority)


def _precision(package: Package, settings: ModelConfig) -> DType:
    """What a model is computed in: as it is set, else as the package says, else float32."""
    return package.precision or DType.FLOAT32 if settings.precision is None else PRECISIONS[settings.precision]


def _model_to_run(key: ModelKey, package: Package, precision: DType, ranked: int) -> Model:
    """The net of a package, as it is run; it ranks so many classes, unless that is 0.

    Raises:
        StartError: it is to be run in int8, and is not calibrated.
    """
    if precision is DType.INT8 and package.calibration is None:
        raise StartError(
            f"model {key}: --precision int8 needs a package with a calibration, which this one lacks; make one with "
            "`dnncore calibrate PACKAGE FOLDER`, of images like those that it will see"
        )
    return for_inference(package.serving_model, precision, calibration=package.calibration, ranked=ranked or None)


def model_spec(key: ModelKey, package: Package, max_batch_rows: int, *, ranking: bool = False) -> ModelSpec:
    """What requests must know of a package.

    Args:
        key: Of the version.
        package: Its.
        max_batch_rows: Rows of a batch.
        ranking: Whether devices rank the classes of a classifier that has many.

    Raises:
        StartError: a tensor is no batch of rows, or there is preprocessing for what is no single input of images.
    """
    try:
        model = package.serving_model
        ranked = _RANKED if ranking and len(package.labels or ()) > _MANY else 0
        signature = signature_of(rank_classes(model, ranked).graph if ranked else model.graph)
    except BadParamError as error:
        raise StartError(
            f"model {key.name} cannot be served: requests are computed together, one behind the other in every tensor, and {error}"
        ) from error
    if package.preprocessing is not None and not _reads_images(signature.inputs):
        raise StartError(
            f"model {key.name} cannot be served: preprocessing is for nets of one input, float32[N, C, H, W]; the net reads "
            f"{'; '.join(map(str, package.serving_graph.inputs))}"
        )
    return ModelSpec(key, signature, package.labels or (), package.preprocessing, max_batch_rows, ranked=ranked)


def _extents(signature: Signature) -> Sequence[tuple[DType, tuple[int, ...]]]:
    return [(tensor.dtype, tensor.shape) for tensor in (*signature.inputs, *signature.outputs)]


def _reads_images(inputs: Sequence[TensorSpec]) -> bool:
    return len(inputs) == 1 and (inputs[0].dtype, len(inputs[0].shape)) == (DType.FLOAT32, 3)
