"""A client's connection for the inference protocol: each of its requests is a call like any other."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import h11
from dnnapi.inference import grpc_service_pb2 as inference

from dnnserve.catalog import shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.authorization import Objection
from dnnserve.front.call import Call, Methods
from dnnserve.front.gate import Gate
from dnnserve.front.inference import INFERENCE_SERVICE
from dnnserve.front.rest.call import Failure, RestCall
from dnnserve.front.rest.routes import POSTED, Route, find_route
from dnnserve.front.rest.transcoding import (
    Binary,
    Body,
    infer_body,
    infer_message,
    plain_body,
    region_message,
    repository_message,
    route_message,
)
from dnnserve.http.connection import Connection, Desk, Header, Refusal, Reply

__all__ = ["Calls", "RestConnection"]

_log = logging.getLogger(__name__)

_JSON_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """What becomes of requests. Immutable.

    Args:
        methods: Handlers by path, gRPC's.
        refuse: Ends a call whose request was not looked at.
        objection: What is said against a request before its body is read.
        gate: Counts the calls whose request has come.
        clock: Monotonic nanoseconds, the scheduler's.
    """

    methods: Methods
    refuse: Callable[[Call, Exception], None]
    objection: Objection
    gate: Gate
    clock: Callable[[], int]


class RestConnection(Connection):
    """A client's connection. Owned by the event loop's thread; not checked.

    Args:
        desk: What it shares with others.
        calls: What becomes of its requests.
    """

    def __init__(self, desk: Desk, calls: Calls) -> None:
        super().__init__(desk)
        self._calls = calls
        self._arrival_ns = 0
        self._route: Route | None = None
        self._call: RestCall | None = None

    def look_at(self, head: h11.Request) -> None:
        """Find the method that is asked for, and ask whether the request may pass; one that may not is counted and logged as a
        call.
        """
        self._arrival_ns = self._calls.clock()
        self._route = route = find_route(head.method.decode("latin-1"), head.target.decode("latin-1"))
        headers = _headers(head)
        error = self._calls.objection(f"/{INFERENCE_SERVICE}/{route.method}", headers)
        if error is None:
            return
        ends: list[bytes | Failure] = []
        self._calls.refuse(RestCall(route.method, self._arrival_ns, self.peer, headers, ends.append), error)
        (failure,) = ends
        assert isinstance(failure, Failure)
        scheme = (("WWW-Authenticate", "Bearer"),) if failure.status == HTTPStatus.UNAUTHORIZED else ()
        raise Refusal(failure.status, failure.text, scheme)

    def hand_over(self, head: h11.Request, body: bytes) -> None:
        """The request has come: its call begins."""
        assert self._route is not None
        calls, route, headers = self._calls, self._route, _headers(head)
        binary = Binary()
        call = RestCall(route.method, self._arrival_ns, self.peer, headers, lambda end: self._ended(end, binary))
        self._call = call
        calls.gate.enter()
        try:
            if route.method == "ModelInfer":
                message, binary = infer_message(route, body, _json_length(dict(headers)))
            elif "SharedMemory" in route.method:
                message = region_message(route, body)
            elif route.method in POSTED:
                message = repository_message(route, body)
            else:
                message = route_message(route)
        except Exception as error:  # noqa: BLE001 - whatever a body does to its reader is its request's error
            calls.refuse(call, error)
            return
        calls.methods[f"/{INFERENCE_SERVICE}/{route.method}"](call, message)

    def give_up(self) -> None:
        """Nobody waits for the call any more."""
        if self._call is not None:
            self._call.cancel()

    def refused(self, refusal: Refusal) -> Reply:
        """JSON, as all that the protocol says."""
        return _reply(refusal.status, _error(str(refusal)))

    def _ended(self, end: bytes | Failure, binary: Binary) -> None:
        """The call's end, in whatever thread it came about."""
        try:
            self._desk.loop.call_soon_threadsafe(partial(self._answer, end, binary))
        except RuntimeError:  # the server has stopped without waiting for it
            self._calls.gate.leave()

    def _answer(self, end: bytes | Failure, binary: Binary) -> None:
        assert self._route is not None
        self._call = None
        try:
            self.answer(_failed(end) if isinstance(end, Failure) else _response(self._route.method, end, binary))
        except Exception:  # noqa: BLE001 - a defect of ours ends its connection, so that nobody waits for ever
            _log.exception("an answer of %s could not be sent", self._route.method)
            self.end_without_answer()
        finally:
            self._calls.gate.leave()


def _headers(head: h11.Request) -> list[Header]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers]


def _json_length(headers: dict[str, str]) -> int | None:
    text = headers.get(_JSON_LENGTH.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidRequestError(f"{_JSON_LENGTH} is {shorten(text)}; send the bytes of the JSON")
    return int(text)


def _response(method: str, serialized: bytes, binary: Binary) -> Reply:
    """The answer with a method's response."""
    if method == "ModelInfer":
        return _reply(HTTPStatus.OK, infer_body(serialized, binary))
    status = HTTPStatus.OK
    if method in ("ServerReady", "ModelReady"):  # the two messages are alike
        ready = inference.ServerReadyResponse.FromString(serialized).ready
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    return _reply(status, plain_body(serialized, method))


def _failed(failure: Failure) -> Reply:
    again = () if failure.retry_after_s is None else (("Retry-After", str(failure.retry_after_s)),)
    return _reply(failure.status, _error(failure.text), again)


def _reply(status: int, body: Body, headers: tuple[Header, ...] = ()) -> Reply:
    if body.json_bytes is None:
        return Reply(status, "application/json", body.data, headers)
    return Reply(status, "application/octet-stream", body.data, ((_JSON_LENGTH, str(body.json_bytes)), *headers))


def _error(text: str) -> Body:
    return Body(json.dumps({"error": text}).encode())
