"""Serialized requests to what their rows are made of; every size is checked against the model before anything is allocated for it.

What a request may carry for the net's input, n rows:

* `FP32` [n, C, H, W]: the rows themselves, in `raw_input_contents` or `fp32_contents`;
* `UINT8` [n, H, W, C]: pixels at the net's size, in `raw_input_contents` or `uint_contents`; normalised by the device;
* `BYTES` [n] or [n, 1]: image files of any size, in `raw_input_contents` or `bytes_contents`; decoded by the server.

A model whose preprocessing nobody has said takes `FP32` alone.

A ModelInferRequest is a form, an id and tensors. Clients send the same form again and again, so it is parsed once, and checked
against its model once; what is left for each request is to compare the tensor's size with what the form says.
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
from dnnserve.front.envelope_scanner import take_apart
from dnnserve.front.parameters import priority_of, refuse_shared_memory, timeout_us_of, top_k_of
from dnnserve.front.sources import Images
from dnnserve.front.tensors import DTYPES, check_count, check_shape, images, input_of, nbytes_of, size_error

__all__ = ["ClassifyRequest", "InferRequest", "InferenceInput", "parse", "parse_classify", "parse_infer"]

_DEFAULT_TOP_K = 5
_LONGEST_KEPT = 1024  # bytes of a form; one that is longer has a tensor in it
_KEPT_FORMS = 1024
_Message = TypeVar("_Message", bound=Message)


class InferenceInput(NamedTuple):
    """A request whose sizes were checked. Immutable; a tuple, because one is made for each request.

    Args:
        source: The rows, float32 [n, C, H, W] or uint8 [n, H, W, C]; or images, of which rows are made.
        top_k: Classes wanted; 0: all probabilities, as a tensor.
        timeout_us: The request's own time limit; None: it has none.
        priority: As `InferenceRequest` has it; 0: the model's.
    """

    source: np.ndarray | Images
    top_k: int
    timeout_us: int | None = None
    priority: int = 0


class _Fit(NamedTuple):
    """A form that was checked against a model. Immutable.

    Args:
        spec: The model's.
        tensor: The input, as the form describes it.
        dtype: Of a tensor that is behind the form; None: the form has it in it, or there are images.
        shape: Its extents.
        nbytes: Of the tensor; of images, 0.
        top_k, timeout_us, priority: As `InferenceInput` has them.
    """

    spec: ModelSpec
    tensor: Any
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    nbytes: int
    top_k: int
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
    """

    form: _Form
    id: str
    contents: Sequence[bytes | memoryview]

    @property
    def model(self) -> tuple[str, str]:
        """Name and version asked for."""
        return self.form.model

    def read(self, spec: ModelSpec) -> InferenceInput:
        """Check the request against the model.

        Raises:
            InvalidRequestError: it does not fit; the message names the value and what would fit.
        """
        fit, contents = self.form.fit(spec), self.contents
        source: np.ndarray | Images
        if fit.dtype is not None and len(contents) == 1 and len(contents[0]) == fit.nbytes:
            source = np.ndarray(fit.shape, fit.dtype, contents[0])
        else:
            source = input_of(fit.tensor, fit.shape, contents, spec)
        return InferenceInput(source, fit.top_k, fit.timeout_us, fit.priority)


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
        if bool(request.images) == request.HasField("tensor"):
            both = "both images and a tensor" if request.images else "neither images nor a tensor"
            raise InvalidRequestError(f"the request has {both}; send exactly one of the two")
        classes = min(request.top_k or _DEFAULT_TOP_K, spec.num_classes)
        if request.images:
            count = len(request.images)
            check_count(count, spec)
            return InferenceInput(images(request.images, count, spec), classes)
        tensor = request.tensor
        shape = tuple(tensor.shape)
        if tensor.datatype not in DTYPES:
            raise InvalidRequestError(
                f"tensor datatype {shorten(tensor.datatype)} is not supported; use {' or '.join(DTYPES)}"
            )
        check_shape(tensor.datatype, shape, spec)
        nbytes = nbytes_of(tensor.datatype, shape)
        if len(tensor.contents) != nbytes:
            raise size_error(tensor.datatype, shape, len(tensor.contents), nbytes)
        return InferenceInput(np.ndarray(shape, DTYPES[tensor.datatype], tensor.contents), classes)


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


def parse_infer(serialized: bytes) -> InferRequest:
    """Read a ModelInferRequest without copying the tensors in `raw_input_contents`.

    Raises:
        InvalidRequestError: the bytes are no such message.
    """
    parts = take_apart(serialized)
    if parts is None:
        whole = parse(inference.ModelInferRequest, serialized)
        return InferRequest(_Form(whole), whole.id, whole.raw_input_contents)
    form, request_id, contents = parts
    return InferRequest((_kept_form if len(form) <= _LONGEST_KEPT else _read_form)(form), request_id, contents)


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
    tensor = _only_input(message, spec)
    shape, datatype = tuple(tensor.shape), tensor.datatype
    check_shape(datatype, shape, spec)
    parameters = message.parameters
    return _Fit(
        spec,
        tensor,
        None if tensor.HasField("contents") else DTYPES.get(datatype),
        shape,
        nbytes_of(datatype, shape),
        top_k_of(message, spec) if message.outputs else 0,
        timeout_us_of(parameters),
        priority_of(parameters),
    )


def _only_input(request: inference.ModelInferRequest, spec: ModelSpec) -> Any:
    tensors = request.inputs
    if len(tensors) != 1 or (tensor := tensors[0]).name != spec.input_name:
        there = ", ".join(shorten(tensor.name) for tensor in tensors[:8]) or "none"
        raise InvalidRequestError(
            f"the request has {len(tensors)} inputs ({there}); model {spec.key} takes exactly one, {spec.input_name!r}"
        )
    refuse_shared_memory(tensor)
    return tensor
