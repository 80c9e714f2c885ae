from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("datatype", "shape", "contents")
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    contents: bytes
    def __init__(self, datatype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., contents: _Optional[bytes] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("model_name", "model_version", "images", "tensor", "top_k", "request_id")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: str
    images: _containers.RepeatedScalarFieldContainer[bytes]
    tensor: Tensor
    top_k: int
    request_id: str
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[str] = ..., images: _Optional[_Iterable[bytes]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., top_k: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("index", "name", "probability")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    probability: float
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., probability: _Optional[float] = ...) -> None: ...

class Classification(_message.Message):
    __slots__ = ("labels",)
    LABELS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    def __init__(self, labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("model_name", "model_version", "classifications", "request_id")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLASSIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: str
    classifications: _containers.RepeatedCompositeFieldContainer[Classification]
    request_id: str
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[str] = ..., classifications: _Optional[_Iterable[_Union[Classification, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model_name", "model_version")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: str
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model_name", "model_version", "versions", "input_shape", "labels", "preprocessing_json", "max_batch_size")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    INPUT_SHAPE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PREPROCESSING_JSON_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: str
    versions: _containers.RepeatedScalarFieldContainer[str]
    input_shape: _containers.RepeatedScalarFieldContainer[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    preprocessing_json: str
    max_batch_size: int
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[str] = ..., versions: _Optional[_Iterable[str]] = ..., input_shape: _Optional[_Iterable[int]] = ..., labels: _Optional[_Iterable[str]] = ..., preprocessing_json: _Optional[str] = ..., max_batch_size: _Optional[int] = ...) -> None: ...
