"""A package as it is served: what requests must know of it, and what devices load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dnncore.dtypes import DType
from dnncore.nn import BATCH, Model, Package, Value
from dnncore.nn.passes import for_inference
from dnnserve.catalog import ModelSpec
from dnnserve.config import PRECISIONS, ModelConfig
from dnnserve.engine.net import ServedModel
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError

__all__ = ["configured", "model_spec", "read_model"]


def read_model(key: ModelKey, package: Package, settings: ModelConfig) -> tuple[ModelSpec, ServedModel]:
    """What requests must know of a package, and what devices load.

    Raises:
        StartError: it is no classifier of images, or it is to be run in int8, and is not calibrated.
    """
    spec = configured(model_spec(key, package, settings.max_batch_rows), settings)
    return spec, ServedModel(_model_to_run(key, package, PRECISIONS[settings.precision]), package.preprocessing)


def configured(spec: ModelSpec, settings: ModelConfig) -> ModelSpec:
    """A signature with those settings that need no new load."""
    return replace(spec, default_deadline_ns=int(settings.default_deadline_ms * 1e6), priority=settings.priority)


def _model_to_run(key: ModelKey, package: Package, precision: DType) -> Model:
    """The net of a package, as it is run.

    Raises:
        StartError: it is to be run in int8, and is not calibrated.
    """
    if precision is DType.INT8 and package.calibration is None:
        raise StartError(
            f"model {key}: --precision int8 needs a package with a calibration, which this one lacks; make one with "
            "`dnncore calibrate PACKAGE FOLDER`, of images like those that it will see"
        )
    return for_inference(package.serving_model, precision, calibration=package.calibration)


def model_spec(key: ModelKey, package: Package, max_batch_rows: int) -> ModelSpec:
    """What requests must know of a package.

    Raises:
        StartError: it is not a net that reads images, one or their tensor, and gives a row of numbers for each.
    """
    graph = package.serving_graph
    inputs, outputs = graph.inputs, [graph.values[name] for name in graph.outputs]
    (channels, height, width), classes = _row_of(key, inputs, 4), _row_of(key, outputs, 2)[0]
    return ModelSpec(
        key,
        inputs[0].name,
        (channels, height, width),
        outputs[0].name,
        classes,
        package.labels or (),
        package.preprocessing,
        max_batch_rows,
    )


def _row_of(key: ModelKey, values: Sequence[Value], ndim: int) -> tuple[int, ...]:
    """Extents of a row of the one value that there is, float32 of so many dimensions."""
    wanted = {4: "reads one input, float32[N, C, H, W]", 2: "gives one output, float32[N, K]"}[ndim]
    row = values[0].shape[1:]
    alike = (len(values), len(values[0].shape), values[0].dtype) == (1, ndim, DType.FLOAT32)
    if not alike or values[0].shape[0] != BATCH or not all(isinstance(extent, int) for extent in row):
        has = "; ".join(map(str, values))
        raise StartError(f"model {key.name} cannot be served: what is served {wanted}; the net has {has}")
    return tuple(map(int, row))
