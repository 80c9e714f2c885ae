"""What a ModelInferRequest asks for beside its inputs: which outputs, as tensors or by `classification`; `timeout` and `priority`.

Sequences are refused; other parameters are left alone, as Triton does. Those of shared memory are read in `areas`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from dnnserve.catalog import ModelSpec, shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.shared_memory.regions import Destination
from dnnserve.signature import TensorSpec

__all__ = [
    "AS_JSON",
    "Wanted",
    "check_json",
    "check_ranked",
    "integer_of",
    "numbers_of",
    "priority_of",
    "ranking_of",
    "timeout_us_of",
    "wanted_of",
]

AS_JSON = "dnnserve_as_json"
"""Parameter of an output that becomes JSON on its way to the client, or of a request that names no outputs, and all of its do."""

_MAX_JSON_TENSOR_BYTES = 1 << 20
"""Of the tensors of an answer that become JSON, which has up to five times as many bytes, written in up to 0.2 s in
which the process does nothing else."""

_MAX_RANKED = 1 << 16
"""Classes of all rows of an answer: each becomes a text, or a message."""


class Wanted(NamedTuple):
    """An output that a request asks for. Immutable.

    Args:
        place: Of the output in the model's order.
        classes: How many of the best classes, as strings in place of the tensor; 0: the tensor.
        destination: Where it is written; None: into the response.
    """

    place: int
    classes: int
    destination: Destination | None = None


def wanted_of(request: Any, spec: ModelSpec) -> Sequence[Wanted]:
    """The outputs that are asked for, in the request's order; where it names none, all."""
    outputs = spec.outputs
    if not request.outputs:
        return tuple(Wanted(index, 0) for index in range(len(outputs)))
    places = {tensor.name: index for index, tensor in enumerate(outputs)}
    names = [output.name for output in request.outputs]
    if len(set(names)) < len(names) or not places.keys() >= set(names):
        there = ", ".join(map(shorten, names[:8]))
        has = f"has one, {outputs[0].name!r}" if len(outputs) == 1 else f"has {', '.join(map(repr, places))}, each once"
        raise InvalidRequestError(f"the request asks for {len(names)} outputs ({there}); model {spec.key} {has}")
    return tuple(
        Wanted(places[output.name], _classes_of(output.parameters, outputs[places[output.name]]))
        for output in request.outputs
    )


def check_ranked(wanted: Sequence[Wanted], rows: int) -> None:
    """Raise for a request of so many rows that wants more classes than an answer has."""
    ranked = rows * sum(each.classes for each in wanted)
    if ranked > _MAX_RANKED:
        raise InvalidRequestError(
            f"the request asks for {ranked} classes in all {rows} rows; an answer has at most {_MAX_RANKED}: send fewer rows, ask "
            "for fewer classes, or for the tensor"
        )


def check_json(request: Any, spec: ModelSpec, wanted: Sequence[Wanted], rows: int) -> None:
    """Raise for a request of so many rows that wants larger tensors as JSON than an answer has."""
    written = [AS_JSON in request.parameters] * len(wanted)
    if request.outputs:
        written = [
            AS_JSON in each.parameters and "shared_memory_region" not in each.parameters for each in request.outputs
        ]
    tensors = [
        spec.outputs[each.place] for each, json in zip(wanted, written, strict=True) if json and not each.classes
    ]
    nbytes = rows * sum(math.prod(each.shape) * each.dtype.itemsize for each in tensors)
    if nbytes > _MAX_JSON_TENSOR_BYTES:
        raise InvalidRequestError(
            f"the answer has tensors of {nbytes} bytes to be written as JSON; at most {_MAX_JSON_TENSOR_BYTES} are: ask for them "
            "as binary data (binary_data, binary_data_output)"
        )


def numbers_of(wanted: Sequence[Wanted], spec: ModelSpec) -> tuple[int, ...]:
    """Numbers of the signature's outputs that have to come from the device: where it ranks enough classes, these alone."""
    numbers: list[int] = []
    for each in wanted:
        numbers += ranking_of(spec) if 0 < each.classes <= spec.ranked else (each.place,)
    return tuple(numbers)


def ranking_of(spec: ModelSpec) -> tuple[int, int]:
    """Numbers of the outputs that are the best classes' values and indices, of a model whose device ranks them."""
    return len(spec.outputs), len(spec.outputs) + 1


def _classes_of(parameters: Any, output: TensorSpec) -> int:
    """Classes that are asked for instead of an output's tensor, at most as many as there are; 0: none."""
    if "classification" not in parameters:
        return 0
    if "shared_memory_region" in parameters:
        raise InvalidRequestError(
            "classes are strings of any length, and have no place in shared memory; leave one of the two out"
        )
    classes = integer_of(parameters["classification"], "classification")
    if len(output.shape) != 1 or not output.dtype.is_floating:
        raise InvalidRequestError(
            f"output {output.name!r} has no classes: it is {output.dtype.value}{list(output.shape)} a row, and classes are a row "
            "of floating point; leave classification out"
        )
    (most,) = output.shape
    if classes < 1:
        raise InvalidRequestError(f"classification {classes} asks for no class; send 1 to {most}")
    return min(classes, most)


def timeout_us_of(parameters: Any) -> int | None:
    """Triton's `timeout` in microseconds; 0 means none, as it does there."""
    if any(name in parameters for name in ("sequence_id", "sequence_start", "sequence_end")):
        raise InvalidRequestError("sequences are not supported; leave the sequence_* parameters out")
    if "timeout" not in parameters:
        return None
    timeout_us = integer_of(parameters["timeout"], "timeout")
    if timeout_us < 0:
        raise InvalidRequestError(
            f"timeout {timeout_us} us is negative; send the microseconds it may wait, or 0 for none"
        )
    return timeout_us or None


def priority_of(parameters: Any) -> int:
    """Triton's `priority`: 1 is the most important, 0 the model's own, as it does there."""
    if "priority" not in parameters:
        return 0
    priority = integer_of(parameters["priority"], "priority")
    if priority < 0:
        raise InvalidRequestError(
            f"priority {priority} is negative; send 1 for the most important, or 0 for the model's"
        )
    return priority


def integer_of(parameter: Any, name: str) -> int:
    """The value of a parameter that is a whole number."""
    choice = parameter.WhichOneof("parameter_choice")
    if choice not in ("int64_param", "uint64_param"):
        raise InvalidRequestError(f"parameter {name!r} comes as {choice or 'nothing'}; send int64_param")
    return int(getattr(parameter, choice))
