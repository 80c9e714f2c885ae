"""The `nv_inference_*` counters that Triton's dashboards read, from the models' statistics.

prometheus_client appends `_total` to every counter's name and Triton's have none, so these few lines of text format are written
here. Names, labels and units (microseconds) are Triton's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dnnserve.envelope import ModelKey
from dnnserve.statistics import ModelSnapshot

__all__ = ["render_triton_metrics"]

_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")

_COUNTERS: tuple[tuple[str, str, Callable[[ModelSnapshot], float]], ...] = (
    ("nv_inference_request_success", "Requests answered", lambda s: s.success.count),
    ("nv_inference_count", "Rows answered", lambda s: s.inference_count),
    ("nv_inference_exec_count", "Batches run", lambda s: s.execution_count),
    ("nv_inference_request_duration_us", "Microseconds from arrival to answer", lambda s: s.success.ns // 1000),
    ("nv_inference_queue_duration_us", "Microseconds in the queue", lambda s: s.queue.ns // 1000),
    (
        "nv_inference_compute_input_duration_us",
        "Microseconds of copying in",
        lambda s: s.compute.compute_input.ns // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Microseconds of running the net",
        lambda s: s.compute.compute_infer.ns // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Microseconds of copying out",
        lambda s: s.compute.compute_output.ns // 1000,
    ),
)


def render_triton_metrics(snapshots: Mapping[ModelKey, ModelSnapshot], queue_depths: Mapping[ModelKey, int]) -> str:
    """Write the counters of all models in Prometheus' text format."""
    lines: list[str] = []
    for name, text, value in _COUNTERS:
        lines += _family(name, text, "counter", ((_labels(m), value(s)) for m, s in snapshots.items()))
    failures = (
        (f'{_labels(model)},reason="{reason}"', snapshot.failures[reason].count if reason in snapshot.failures else 0)
        for model, snapshot in snapshots.items()
        for reason in _REASONS
    )
    lines += _family("nv_inference_request_failure", "Requests that failed, by reason", "counter", failures)
    pending = ((_labels(model), depth) for model, depth in queue_depths.items())
    lines += _family("nv_inference_pending_request_count", "Requests in the queue", "gauge", pending)
    return "\n".join(lines) + "\n"


def _family(name: str, text: str, kind: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    head = [f"# HELP {name} {text}.", f"# TYPE {name} {kind}"]
    return head + [f"{name}{{{labels}}} {value}" for labels, value in samples]


def _labels(model: ModelKey) -> str:
    # The repository admits no character in a model's name that the text format would have to escape.
    return f'model="{model.name}",version="{model.version}"'
