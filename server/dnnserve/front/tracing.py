"""Spans of calls, by OpenTelemetry: a client's trace goes on through the queue and the device.

A call's spans are made when it has ended, of times that were taken anyway, so a call that is not traced costs one comparison. The
exporter runs in a thread of its own and drops spans when nobody takes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from dnncore.version import __version__
from dnnserve.envelope import Answer, Completion, ModelKey
from dnnserve.errors import StartError
from dnnserve.front.call import Call
from dnnserve.front.status import Status

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["CallTracer", "Tracing", "open_tracing"]

_EXPORT_S = 2  # for one bundle of spans; also what a stop may wait for a collector that has gone
_HEADERS = frozenset({"traceparent", "tracestate"})


class CallTracer(Protocol):
    """Told of each call's end. Thread-safe."""

    def record(
        self, call: Call, model: ModelKey | None, request_id: str, status: Status, completion: Completion | None
    ) -> None:
        """Make the spans of a call that ends now.

        Args:
            call: The call.
            model: The loaded model that it named; None: it named none.
            request_id: The client's name for it.
            status: How it ended.
            completion: What the scheduler said; None: it was not asked.
        """
        ...

    def close(self) -> None:
        """Export what has not been exported yet; bounded by the exporter's timeout."""
        ...


def open_tracing(endpoint: str | None, ratio: float) -> CallTracer | None:
    """Return the tracing that a configuration asks for; None: none.

    Args:
        endpoint: Where a collector takes OTLP over HTTP: http://127.0.0.1:4318/v1/traces.
        ratio: The share of calls without a traceparent that begin a trace; the others follow their client's decision.

    Raises:
        StartError: OpenTelemetry's packages are not installed.
    """
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        raise StartError(f"--trace-endpoint needs {error.name}: pip install 'dnncore[tracing]'") from None
    return Tracing(OTLPSpanExporter(endpoint, timeout=_EXPORT_S), ratio)


class Tracing:
    """Makes spans. Thread-safe.

    A call's span is a child of the one in its traceparent, and has the children queue, copy_in, compute and copy_out where the
    scheduler answered it.

    Args:
        exporter: Where spans go.
        ratio: See `open_tracing`.
    """

    def __init__(self, exporter: SpanExporter, ratio: float = 1.0) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({SERVICE_VERSION: __version__})  # with what the environment says
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "dnnserve"}))
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(ratio), resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("dnnserve", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._server, self._error, self._within = SpanKind.SERVER, StatusCode.ERROR, set_span_in_context
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def record(
        self, call: Call, model: ModelKey | None, request_id: str, status: Status, completion: Completion | None
    ) -> None:
        """Make the spans of a call that ends now; see `CallTracer`."""
        headers = {key: value for key, value in call.metadata if key in _HEADERS and isinstance(value, str)}
        span = self._tracer.start_span(
            call.method,
            self._propagator.extract(headers),
            self._server,
            start_time=self._epoch_ns + call.arrival_ns,
        )
        if not span.is_recording():
            return
        span.set_attributes(_attributes(call, model, request_id, status, completion))
        if status.text:
            span.set_status(self._error, status.text)
        within = self._within(span)
        for name, begin_ns, end_ns in _stages(completion):
            stage = self._tracer.start_span(name, within, start_time=self._epoch_ns + begin_ns)
            stage.end(self._epoch_ns + end_ns)
        span.end()

    def close(self) -> None:
        """Export what has not been exported yet; bounded by the exporter's timeout."""
        self._provider.shutdown()


def _attributes(
    call: Call, model: ModelKey | None, request_id: str, status: Status, completion: Completion | None
) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "rpc.method": call.method,
        "rpc.response.status_code": status.code.name,
        "network.peer.address": call.peer(),
    }
    if model is not None:
        attributes |= {"dnnserve.model": model.name, "dnnserve.model_version": model.version}
    if request_id:
        attributes["dnnserve.request_id"] = request_id
    if completion is not None and isinstance(completion.outcome, Answer):
        answer = completion.outcome
        attributes |= {
            "dnnserve.device": answer.device,
            "dnnserve.batch_rows": answer.batch_rows,
            "dnnserve.rows": len(completion.request.block),
        }
    return attributes


def _stages(completion: Completion | None) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of what happened to a request between its arrival and its completion."""
    if completion is None:
        return
    request, outcome = completion.request, completion.outcome
    if not isinstance(outcome, Answer):
        yield "queue", request.arrival_ns, completion.finished_ns
        return
    times = outcome.times
    yield "queue", request.arrival_ns, times.taken_ns
    yield "copy_in", times.taken_ns, times.staged_ns
    yield "compute", times.staged_ns, times.inferred_ns
    yield "copy_out", times.inferred_ns, times.finished_ns
