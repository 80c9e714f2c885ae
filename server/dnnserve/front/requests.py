"""Serialized requests to what their rows are made of; every size is checked against the model before anything is allocated for it.

A request brings n rows of each of the model's inputs, in any order of these. An input is of the model's datatype, in
`raw_input_contents`, in the field of its contents for that datatype, or in shared memory.

A net that reads images alone, and whose preprocessing is
known, takes in place of float32 [n, C, H, W]:

* `UINT8` [n, H, W, C]: pixels at the net's size; normalised by the device;
* `BYTES` [n] or [n, 1]: image files of any size; decoded by the server.

A ModelInferRequest is a form, an id and tensors. Clients send the same form again and again, so it is parsed once, and checked
against its model once; what is left for each request is to compare the tensors' sizes with what the form says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from google.protobuf.message import DecodeError, Message

from dnnserve.catalog import ModelSpec, shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.areas import (
    SharedImages,
    SharedRows,
    area_of,
    check_area,
    destinations_of,
    held,
    origins_of,
    release,
)
from dnnserve.front.envelope_scanner import take_apart
from dnnserve.front.parameters import Wanted, check_json, check_ranked, priority_of, timeout_us_of, wanted_of
from dnnserve.front.sources import Images
from dnnserve.front.tensors import DATATYPES, Given, check_count, images, images_of, rows_of
from dnnserve.shared_memory.regions import Origin, Regions
from dnnserve.shared_memory.requests import Area

__all__ = ["ClassifyRequest", "InferRequest", "InferenceInput", "parse", "parse_classify", "parse_infer"]

_DEFAULT_TOP_K = 5
_LONGEST_KEPT = 1024  # bytes of a form; one that is longer has a tensor in it
_KEPT_FORMS = 1024
_NO_REGIONS = Regions()
_Message = TypeVar("_Message", bound=Message)


class InferenceInput(NamedTuple):
    """A request whose sizes were checked. Immutable; a tuple, because one is made for each request.

    Args:
        source: The rows of each input, [n, ...]; or what they are made of: images, or what lies in shared memory.
        pixels: Whether the rows are uint8 [n, H, W, C] in place of the only input.
        wanted: Of the outputs.
        timeout_us: The request's own time limit; None: it has none.
        priority: As `InferenceRequest` has it; 0: the model's.
        origins: Of the inputs in shared memory.
    """

    source: Sequence[np.ndarray] | Images | SharedRows | SharedImages
    pixels: bool
    wanted: Sequence[Wanted]
    timeout_us: int | None = None
    priority: int = 0
    origins: Sequence[Origin] = ()


class _Fit(NamedTuple):
    """A form that was checked against a model. Immutable.

    Args:
        spec: The model's.
        inputs: In the model's order.
        raw: How many of them are behind the form.
        areas: Where those lie that are in shared memory; their places come behind those of the raw ones.
        images: Whether the only one has images.
        pixels, wanted, timeout_us, priority: As `InferenceInput` has them.
        destinations: Areas of the outputs that are wanted; none where all go into the response.
    """

    spec: ModelSpec
    inputs: Sequence[Given]
    raw: int
    areas: Sequence[Area]
    images: bool
    pixels: bool
    wanted: Sequence[Wanted]
    destinations: Sequence[Area | None]
    timeout_us: int | None
    priority: int


class _Form:
    """What a ModelInferRequest says beside its id and its raw tensors. Thread-safe: `_fit` is replaced as a whole.

    Args:
        message: The request without them; not changed any more.
    """

    __slots__ = ("_fit", "message", "model")

    def __init__(self, message: Any) -> None:
        self.message = message
        self.model: tuple[str, str] = message.model_name, message.model_version
        self._fit: _Fit | None = None

    def fit(self, spec: ModelSpec) -> _Fit:
        """Check it against a model, unless that was the last one it was checked against.

        Raises:
            InvalidRequestError: it does not fit.
        """
        fit = self._fit
        if fit is None or fit.spec is not spec:
            fit = self._fit = _fit(self.message, spec)
        return fit


class InferRequest(NamedTuple):
    """A ModelInferRequest whose tensors are where they came in. Immutable; a tuple, because one is made for each request.

    Args:
        form: All but its id and its raw tensors.
        id: The client's name for it.
        contents: `raw_input_contents`, as views of the serialized request where it could be taken apart.
        regions: Of shared memory, in which tensors may lie.
    """

    form: _Form
    id: str
    contents: Sequence[bytes | memoryview]
    regions: Regions

    @property
    def model(self) -> tuple[str, str]:
        """Name and version asked for."""
        return self.form.model

    def read(self, spec: ModelSpec) -> InferenceInput:
        """Check the request against the model; origins and destinations are held, for the caller to release.

        Raises:
            InvalidRequestError: it does not fit; the message names the value and what would fit.
            RegionNotFoundError: a region of shared memory is not registered.
            QueueFullError: there is no room now for what lies there.
        """
        fit, contents = self.form.fit(spec), self.contents
        if len(contents) != fit.raw:
            raise InvalidRequestError(
                f"{fit.raw} of the request's inputs have no contents, and it has the bytes of {len(contents)} (raw_input_contents, "
                "over HTTP binary data); each input needs one of the two"
            )
        origins = origins_of(self.regions, fit.areas, images=fit.images) if fit.areas else ()
        try:
            source = _source_of(fit, contents, origins)
            wanted = held(self.regions, fit.wanted, fit.destinations) if fit.destinations else fit.wanted
        except BaseException:
            release(origins=origins)
            raise
        return InferenceInput(source, fit.pixels, wanted, fit.timeout_us, fit.priority, origins)


class ClassifyRequest(NamedTuple):
    """A ClassifyRequest as it was parsed. Immutable."""

    message: classifier.ClassifyRequest

    @property
    def model(self) -> tuple[str, str]:
        """Name and version asked for."""
        return self.message.model_name, self.message.model_version

    @property
    def id(self) -> str:
        """The client's name for it."""
        return self.message.request_id

    def read(self, spec: ModelSpec) -> InferenceInput:
        """Check the request against the model; top_k 0 means 5, more than there are classes means all of them.

        Raises:
            InvalidRequestError: it does not fit; the message names the value and what would fit.
        """
        request = self.message
        if not spec.labels:
            raise InvalidRequestError(
                f"model {spec.key} has no labels to answer with; ask for its output by ModelInfer"
            )
        if len(spec.signature.inputs) != 1:
            raise InvalidRequestError(
                f"model {spec.key} has {len(spec.signature.inputs)} inputs, and images are one; ask for its output by ModelInfer"
            )
        if bool(request.images) == request.HasField("tensor"):
            both = "both images and a tensor" if request.images else "neither images nor a tensor"
            raise InvalidRequestError(f"the request has {both}; send exactly one of the two")
        wanted = (Wanted(0, min(request.top_k or _DEFAULT_TOP_K, len(spec.labels))),)
        if request.images:
            count = len(request.images)
            check_count(count, spec)
            check_ranked(wanted, count)
            return InferenceInput(images(request.images, count, spec), True, wanted)
        tensor, (expected,) = request.tensor, spec.signature.inputs
        if tensor.datatype == "BYTES":
            raise InvalidRequestError("image files are no tensor of a ClassifyRequest; send them as its images")
        given = Given.of(tensor, 0, expected, spec)
        check_ranked(wanted, given.shape[0])
        rows = rows_of(given, [tensor.contents])
        return InferenceInput([rows], tensor.datatype != DATATYPES[expected.dtype], wanted)


def parse(kind: type[_Message], serialized: bytes) -> _Message:
    """Read a message.

    Raises:
        InvalidRequestError: the bytes are none of this kind.
    """
    try:
        return kind.FromString(serialized)
    except DecodeError as error:
        raise InvalidRequestError(
            f"the request's {len(serialized)} bytes are no {kind.DESCRIPTOR.full_name}"
        ) from error


def parse_infer(serialized: bytes, regions: Regions = _NO_REGIONS) -> InferRequest:
    """Read a ModelInferRequest without copying the tensors in `raw_input_contents`.

    Args:
        serialized: The message.
        regions: Of shared memory, in which its tensors may lie.

    Raises:
        InvalidRequestError: the bytes are no such message.
    """
    parts = take_apart(serialized)
    if parts is None:
        whole = parse(inference.ModelInferRequest, serialized)
        return InferRequest(_Form(whole), whole.id, whole.raw_input_contents, regions)
    form, request_id, contents = parts
    return InferRequest((_kept_form if len(form) <= _LONGEST_KEPT else _read_form)(form), request_id, contents, regions)


def parse_classify(serialized: bytes) -> ClassifyRequest:
    """Read a ClassifyRequest.

    Raises:
        InvalidRequestError: the bytes are no such message.
    """
    return ClassifyRequest(parse(classifier.ClassifyRequest, serialized))


def _read_form(serialized: bytes) -> _Form:
    return _Form(parse(inference.ModelInferRequest, serialized))


_kept_form = lru_cache(_KEPT_FORMS)(_read_form)


def _fit(message: Any, spec: ModelSpec) -> _Fit:
    inputs, areas = _inputs(message, spec)
    parameters, datatype = message.parameters, inputs[0].tensor.datatype
    wanted, rows = wanted_of(message, spec), inputs[0].shape[0]
    check_ranked(wanted, rows)
    check_json(message, spec, wanted, rows)
    return _Fit(
        spec,
        inputs,
        sum(each.place is not None for each in inputs) - len(areas),
        areas,
        datatype == "BYTES",
        datatype != DATATYPES[spec.signature.inputs[0].dtype],
        wanted,
        destinations_of(message, spec, wanted, rows),
        timeout_us_of(parameters),
        priority_of(parameters),
    )


def _source_of(
    fit: _Fit, contents: Sequence[bytes | memoryview], origins: Sequence[Origin]
) -> Sequence[np.ndarray] | Images | SharedRows | SharedImages:
    """What the rows are, or what they are made of."""
    inputs = fit.inputs
    if origins:
        return SharedImages(inputs[0], origins[0], fit.spec) if fit.images else SharedRows(inputs, contents, origins)
    return images_of(inputs[0], contents, fit.spec) if fit.images else [rows_of(each, contents) for each in inputs]


def _inputs(message: Any, spec: ModelSpec) -> tuple[Sequence[Given], Sequence[Area]]:
    """The model's inputs, each as the form gives it, and where those lie that are in shared memory."""
    expected = spec.signature.inputs
    tensors = {tensor.name: tensor for tensor in message.inputs}
    if len(message.inputs) != len(expected) or any(each.name not in tensors for each in expected):
        there = ", ".join(shorten(tensor.name) for tensor in message.inputs[:8]) or "none"
        takes = ", ".join(repr(each.name) for each in expected)
        raise InvalidRequestError(
            f"the request has {len(message.inputs)} inputs ({there}); model {spec.key} takes exactly "
            f"{'one' if len(expected) == 1 else f'these {len(expected)}'}, {takes}"
        )
    areas = {name: area for name, tensor in tensors.items() if (area := area_of(tensor.parameters)) is not None}
    behind = [tensor.name for tensor in message.inputs if tensor.name not in areas and not tensor.HasField("contents")]
    places = {name: place for place, name in enumerate([*behind, *areas])}
    inputs = [Given.of(tensors[each.name], places.get(each.name), each, spec) for each in expected]
    for given in inputs:
        check_area(given, areas.get(given.tensor.name))
    if len({given.shape[0] for given in inputs}) > 1:
        rows = ", ".join(f"{each.name!r} {given.shape[0]}" for each, given in zip(expected, inputs, strict=True))
        raise InvalidRequestError(f"the inputs have different numbers of rows ({rows}); send as many of each")
    return inputs, tuple(areas.values())
