"""What the parameters of a ModelInferRequest ask for: `timeout` and `priority` of the request, `classification` of its output.

Sequences and shared memory are refused; other parameters are left alone, as Triton does.
"""

from __future__ import annotations

from typing import Any

from dnnserve.catalog import ModelSpec, shorten
from dnnserve.errors import InvalidRequestError

__all__ = ["priority_of", "refuse_shared_memory", "timeout_us_of", "top_k_of"]


def refuse_shared_memory(tensor: Any) -> None:
    """Raise for an input that lies in a region of shared memory."""
    if "shared_memory_region" in tensor.parameters:
        raise InvalidRequestError("shared memory inputs are not supported; send raw_input_contents")


def top_k_of(request: Any, spec: ModelSpec) -> int:
    """Classes that are asked for instead of the output's tensor, at most as many as there are; 0: none."""
    names = [output.name for output in request.outputs]
    if names != [spec.output_name]:
        there = ", ".join(map(shorten, names[:8]))
        raise InvalidRequestError(
            f"the request asks for {len(names)} outputs ({there}); model {spec.key} has one, {spec.output_name!r}"
        )
    parameters = request.outputs[0].parameters
    if "shared_memory_region" in parameters:
        raise InvalidRequestError("shared memory outputs are not supported; leave shared_memory_region out")
    if "classification" not in parameters:
        return 0
    classes = _integer(parameters["classification"], "classification")
    if classes < 1:
        raise InvalidRequestError(f"classification {classes} asks for no class; send 1 to {spec.num_classes}")
    return min(classes, spec.num_classes)


def timeout_us_of(parameters: Any) -> int | None:
    """Triton's `timeout` in microseconds; 0 means none, as it does there."""
    if any(name in parameters for name in ("sequence_id", "sequence_start", "sequence_end")):
        raise InvalidRequestError("sequences are not supported; leave the sequence_* parameters out")
    if "timeout" not in parameters:
        return None
    timeout_us = _integer(parameters["timeout"], "timeout")
    if timeout_us < 0:
        raise InvalidRequestError(
            f"timeout {timeout_us} us is negative; send the microseconds it may wait, or 0 for none"
        )
    return timeout_us or None


def priority_of(parameters: Any) -> int:
    """Triton's `priority`: 1 is the most important, 0 the model's own, as it does there."""
    if "priority" not in parameters:
        return 0
    priority = _integer(parameters["priority"], "priority")
    if priority < 0:
        raise InvalidRequestError(
            f"priority {priority} is negative; send 1 for the most important, or 0 for the model's"
        )
    return priority


def _integer(parameter: Any, name: str) -> int:
    choice = parameter.WhichOneof("parameter_choice")
    if choice not in ("int64_param", "uint64_param"):
        raise InvalidRequestError(f"parameter {name!r} comes as {choice or 'nothing'}; send int64_param")
    return int(getattr(parameter, choice))
