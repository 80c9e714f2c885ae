"""Spans of calls as a collector gets them, over OTLP."""

from __future__ import annotations

import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import grpc
import pytest
from dnnserve.errors import StartError
from dnnserve.front.tracing import Tracing, open_tracing

from dnncore.errors import ConfigError
from tests.server.fakes import PATIENCE_S, Lab
from tests.server.serving import infer_request, make_config, scores, serving, status

pytest.importorskip("opentelemetry.exporter.otlp", reason="not installed: pip install 'dnncore[tracing]'")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = ("traceparent", f"00-{TRACE}-{PARENT}-01")
UNTRACED = ("traceparent", f"00-{TRACE}-{PARENT}-00")


class Collector:
    """Takes OTLP over HTTP and keeps it."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    @property
    def spans(self) -> dict[str, Any]:
        """By name."""
        scopes = [scope for request in self.requests for one in request.resource_spans for scope in one.scope_spans]
        return {span.name: span for scope in scopes for span in scope.spans}

    @property
    def names(self) -> set[str]:
        resources = [one.resource for request in self.requests for one in request.resource_spans]
        return {a.value.string_value for r in resources for a in r.attributes if a.key == "service.name"}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_a_clients_trace_goes_on_through_queue_and_device() -> None:
    with collecting() as collector:
        with serving(Lab(), trace_endpoint=collector.url) as (_, client):
            client.infer.ModelInfer(infer_request(2.0, 3), timeout=PATIENCE_S, metadata=[TRACED])
        spans = collector.spans
        assert collector.names == {"dnnserve"}
    call = spans["ModelInfer"]
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, PARENT)
    found = attributes(call)
    assert {"dnnserve.model": "toy", "dnnserve.model_version": 1, "dnnserve.rows": 3}.items() <= found.items()
    assert (found["dnnserve.request_id"], found["rpc.response.status_code"]) == ("value 2.0", "OK")
    stages = [spans[name] for name in ("queue", "copy_in", "compute", "copy_out")]
    assert {stage.parent_span_id for stage in stages} == {call.span_id}
    assert stages[0].start_time_unix_nano == call.start_time_unix_nano
    assert all(one.end_time_unix_nano == other.start_time_unix_nano for one, other in pairwise(stages))
    assert stages[-1].end_time_unix_nano <= call.end_time_unix_nano


def test_a_call_that_fails_says_how() -> None:
    with collecting() as collector:
        with serving(Lab(), trace_endpoint=collector.url) as (_, client):
            ended = status(lambda: client.infer.ModelInfer(infer_request(model="nope"), timeout=PATIENCE_S))
            assert ended[0] is grpc.StatusCode.NOT_FOUND
        (call,) = collector.spans.values()
    assert attributes(call)["rpc.response.status_code"] == "NOT_FOUND"
    assert (call.status.code, "nope" in call.status.message) == (call.status.STATUS_CODE_ERROR, True)


def test_http_calls_are_traced_too() -> None:
    with collecting() as collector:
        with serving(Lab(), trace_endpoint=collector.url, http_port=0) as (server, _):
            url = f"{server.addresses.http}/v2/models/toy/ready"
            request = urllib.request.Request(url, headers=dict([TRACED]))
            assert urllib.request.urlopen(request, timeout=PATIENCE_S).status == 200
        assert collector.spans["ModelReady"].trace_id.hex() == TRACE


def test_what_the_client_or_the_ratio_leaves_out_is_not_traced() -> None:
    with collecting() as collector:
        with serving(Lab(), trace_endpoint=collector.url, trace_ratio=0.0) as (_, client):
            client.infer.ModelInfer(infer_request(), timeout=PATIENCE_S)
            client.infer.ModelInfer(infer_request(), timeout=PATIENCE_S, metadata=[UNTRACED])
            client.infer.ModelInfer(infer_request(), timeout=PATIENCE_S, metadata=[("traceparent", "junk")])
        assert not collector.spans


def test_a_collector_that_is_not_there_is_no_matter() -> None:
    with collecting() as gone:
        pass
    with serving(Lab(), trace_endpoint=gone.url) as (_, client):
        assert client.infer.ModelInfer(infer_request(), timeout=PATIENCE_S).model_name == "toy"


def test_a_call_whose_tracer_raises_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a hook of the tracer's")

    monkeypatch.setattr(Tracing, "record", fail)
    with collecting() as collector, serving(Lab(), trace_endpoint=collector.url) as (_, client):
        assert scores(client.infer.ModelInfer(infer_request(2.0), timeout=PATIENCE_S)) == [[2.0, 4.0, 6.0]]
        assert status(client.infer.ModelInfer.future(infer_request(model="nope"), timeout=PATIENCE_S))[0] is (
            grpc.StatusCode.NOT_FOUND
        )
    assert "a hook of the tracer's" in caplog.text


def test_tracing_needs_a_url_and_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--trace-endpoint localhost:4318 is no URL"):
        make_config(trace_endpoint="localhost:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(StartError, match=r"pip install 'dnncore\[tracing\]'"):
        open_tracing("http://127.0.0.1:4318/v1/traces", 1.0)
