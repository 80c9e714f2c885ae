"""`dnnapi.v1.ClassifierService`: images in, labels out."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from dnnapi.v1 import classifier_pb2 as classifier

from dnnserve.front.call import Methods
from dnnserve.front.requests import parse, parse_classify
from dnnserve.front.responses import classify_response
from dnnserve.front.service import Exchange, Service

__all__ = ["CLASSIFIER_SERVICE", "CLASSIFY", "classifier_methods"]

CLASSIFIER_SERVICE: str = classifier.DESCRIPTOR.services_by_name["ClassifierService"].full_name
CLASSIFY = f"/{CLASSIFIER_SERVICE}/Classify"


def classifier_methods(service: Service) -> Methods:
    """Handlers of the service's methods by path."""
    return {
        CLASSIFY: service.inferring(partial(_classify, service)),
        f"/{CLASSIFIER_SERVICE}/GetModel": service.answering(partial(_get_model, service)),
    }


def _classify(service: Service, exchange: Exchange, serialized: bytes) -> None:
    """The most probable labels of the images, or of the rows, in the request."""
    service.infer(exchange, parse_classify(serialized), classify_response)


def _get_model(service: Service, exchange: Exchange, serialized: bytes) -> Any:
    """What a client must know to prepare inputs and to read answers."""
    request = parse(classifier.GetModelRequest, serialized)
    exchange.spec = spec = service.catalog.find(request.model_name, request.model_version)
    preprocessing = spec.preprocessing
    return classifier.GetModelResponse(
        model_name=spec.key.name,
        model_version=str(spec.key.version),
        versions=map(str, service.catalog.versions(spec.key.name)),
        input_shape=spec.signature.inputs[0].shape if len(spec.signature.inputs) == 1 else (),
        labels=spec.labels,
        preprocessing_json="" if preprocessing is None else json.dumps(preprocessing.to_dict()),
        max_batch_size=spec.max_batch_rows,
    )
