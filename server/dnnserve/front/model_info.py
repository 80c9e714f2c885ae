"""A model's description as messages of the inference protocol: metadata, configuration and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnapi.inference import grpc_service_pb2 as inference

from dnnserve.catalog import ModelSpec
from dnnserve.envelope import ModelKey
from dnnserve.front.tensors import DATATYPES
from dnnserve.signature import TensorSpec
from dnnserve.statistics import Duration, ModelSnapshot

__all__ = ["PLATFORM", "config_message", "metadata_message", "statistics_message"]

PLATFORM = "dnncore"


def metadata_message(spec: ModelSpec, versions: Sequence[int]) -> inference.ModelMetadataResponse:
    """Inputs and outputs with their batch dimension as -1."""
    return inference.ModelMetadataResponse(
        name=spec.key.name,
        versions=map(str, versions),
        platform=PLATFORM,
        inputs=[_described(each) for each in spec.signature.inputs],
        outputs=[_described(each) for each in spec.outputs],
    )


def _described(tensor: TensorSpec) -> inference.ModelMetadataResponse.TensorMetadata:
    return inference.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=DATATYPES[tensor.dtype], shape=[-1, *tensor.shape]
    )


def config_message(spec: ModelSpec) -> inference.ModelConfig:
    """The configuration in Triton's words; dims have no batch dimension there."""
    return inference.ModelConfig(
        name=spec.key.name,
        platform=PLATFORM,
        backend=PLATFORM,
        max_batch_size=spec.max_batch_rows,
        input=[
            inference.ModelInput(
                name=tensor.name,
                data_type=_type(tensor),
                format=inference.ModelInput.FORMAT_NCHW if len(tensor.shape) == 3 else inference.ModelInput.FORMAT_NONE,
                dims=tensor.shape,
            )
            for tensor in spec.signature.inputs
        ],
        output=[
            inference.ModelOutput(name=tensor.name, data_type=_type(tensor), dims=tensor.shape)
            for tensor in spec.outputs
        ],
        dynamic_batching=inference.ModelDynamicBatching(),
    )


def _type(tensor: TensorSpec) -> Any:
    return inference.DataType.Value(f"TYPE_{DATATYPES[tensor.dtype]}")


def statistics_message(model: ModelKey, snapshot: ModelSnapshot) -> inference.ModelStatistics:
    """The counters; `compute_*` of inference_stats count requests, those of batch_stats count batches."""
    compute = snapshot.compute
    return inference.ModelStatistics(
        name=model.name,
        version=str(model.version),
        last_inference=snapshot.last_inference_ms,
        inference_count=snapshot.inference_count,
        execution_count=snapshot.execution_count,
        inference_stats=inference.InferStatistics(
            success=_duration(snapshot.success),
            fail=_duration(snapshot.fail),
            queue=_duration(snapshot.queue),
            compute_input=_duration(compute.compute_input),
            compute_infer=_duration(compute.compute_infer),
            compute_output=_duration(compute.compute_output),
        ),
        batch_stats=[
            inference.InferBatchStatistics(
                batch_size=rows,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for rows, batch in snapshot.batches.items()
        ],
    )


def _duration(duration: Duration) -> inference.StatisticDuration:
    return inference.StatisticDuration(count=duration.count, ns=duration.ns)
