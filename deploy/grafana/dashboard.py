"""Writes dnnserve.json, the dashboard of dnnserve: `python deploy/grafana/dashboard.py` after a change here.

A panel is a line of a table: what it is called, what it says, its unit and its queries. Grafana's own builders make the JSON of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

__all__ = ["SECTIONS", "Panel", "dashboard"]

FILE = Path(__file__).with_name("dnnserve.json")

_MODEL = 'model=~"$model"'
_JOB = 'job=~"$job"'
_CHOSEN = f"{_JOB}, {_MODEL}"
_PER_MODEL = "{{model}}/{{version}}"


@dataclass(frozen=True)
class Panel:
    """A chart over time.

    Args:
        title: What it shows.
        description: How it is read, and what to do when it looks bad.
        unit: Grafana's identifier: s, reqps, percentunit, short, bytes, Bps.
        queries: (PromQL, legend) of each group of lines.
    """

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _quantile(of: str, metric: str) -> str:
    return (
        f"histogram_quantile({of}, sum by (model, version, le) (rate({metric}_bucket{{{_CHOSEN}}}[$__rate_interval])))"
    )


def _rate(metric: str, by: str, where: str = _CHOSEN) -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


SECTIONS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel(
            "Calls by status",
            "RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED: more comes in than the devices can take in time. "
            "INVALID_ARGUMENT and NOT_FOUND are the clients' own.",
            "reqps",
            ((_rate("dnnserve_requests_total", "status"), "{{status}}"),),
        ),
        Panel(
            "Errors that are not the client's",
            "The share of calls that DnnserveErrors watches; it fires above 5 %.",
            "percentunit",
            ((f"model:dnnserve_request_errors:ratio_rate5m{{{_CHOSEN}}}", _PER_MODEL),),
        ),
        Panel(
            "Latency",
            "From a call's arrival to its answer, inferences that were answered.",
            "s",
            (
                (_quantile("0.5", "dnnserve_request_seconds"), f"p50 {_PER_MODEL}"),
                (_quantile("0.99", "dnnserve_request_seconds"), f"p99 {_PER_MODEL}"),
            ),
        ),
        Panel(
            "Time left to the deadline",
            "Of answered requests, the tightest hundredth. Below 0: answered late.",
            "s",
            ((_quantile("0.01", "dnnserve_deadline_slack_seconds"), f"p1 {_PER_MODEL}"),),
        ),
        Panel(
            "Not answered, by reason",
            "queue_full and overloaded are refused on arrival, expired ones are dropped while they wait.",
            "reqps",
            ((_rate("dnnserve_dropped_requests_total", "model, version, reason"), f"{{{{reason}}}} {_PER_MODEL}"),),
        ),
        Panel(
            "Inside",
            "Requests that wait for a device, and all that wait or run. DnnserveQueueFilling fires when more than half as many "
            "wait as may.",
            "short",
            (
                (f"sum by (model, version) (dnnserve_queue_depth{{{_CHOSEN}}})", f"waiting {_PER_MODEL}"),
                (f"sum by (model, version) (dnnserve_queue_limit{{{_CHOSEN}}})", f"may wait {_PER_MODEL}"),
                (f"sum(dnnserve_in_flight_requests{{{_JOB}}})", "inside, all models"),
            ),
        ),
    ),
    "Batches": (
        Panel(
            "Rows per batch",
            "Near the model's largest batch: the devices are well filled. Near 1 under load: look at the batching delay.",
            "short",
            ((f"model:dnnserve_batch_rows:mean_rate5m{{{_CHOSEN}}}", _PER_MODEL),),
        ),
        Panel(
            "Waiting and computing, p99",
            "Whichever is larger is what clients wait for: the queue (add devices or replicas) or the net itself.",
            "s",
            (
                (_quantile("0.99", "dnnserve_queue_seconds"), f"queue {_PER_MODEL}"),
                (_quantile("0.99", "dnnserve_compute_seconds"), f"compute {_PER_MODEL}"),
            ),
        ),
        Panel(
            "Measured over predicted time of a batch",
            "The scheduler keeps deadlines by these predictions: above 1, requests "
            "will be late; far below, too many are refused.",
            "short",
            (
                (_quantile("0.5", "dnnserve_batch_cost_ratio"), f"p50 {_PER_MODEL}"),
                (_quantile("0.99", "dnnserve_batch_cost_ratio"), f"p99 {_PER_MODEL}"),
            ),
        ),
    ),
    "Devices": (
        Panel(
            "Busy",
            "The share of its time that a device spends on batches.",
            "percentunit",
            ((f"rate(dnnserve_device_busy_seconds_total{{{_JOB}}}[$__rate_interval])", "{{device}} {{instance}}"),),
        ),
        Panel(
            "Rows read",
            "From the arenas of front ends, where GPUs read what is large, or from a slot that rows were copied into before. "
            "Only slots for large images on a GPU: the log says why its driver refuses.",
            "Bps",
            (
                (
                    f"rate(dnnserve_device_input_bytes_total{{{_JOB}}}[$__rate_interval])",
                    "{{place}} {{device}} {{instance}}",
                ),
            ),
        ),
        Panel(
            "In service",
            "1: the device takes batches.",
            "short",
            ((f"dnnserve_device_healthy{{{_JOB}}}", "{{device}} {{instance}}"),),
        ),
        Panel(
            "Lost and opened again; requests repeated",
            "Per hour. A device that is lost often is about to fail for good.",
            "short",
            (
                (f"increase(dnnserve_device_restarts_total{{{_JOB}}}[1h])", "restarts {{device}} {{instance}}"),
                (
                    f"sum by (model, version) (increase(dnnserve_repeated_requests_total{{{_CHOSEN}}}[1h]))",
                    f"repeated {_PER_MODEL}",
                ),
            ),
        ),
    ),
    "Versions": (
        Panel(
            "States",
            "Versions of models: READY ones answer requests. UNAVAILABLE is what could not be loaded, or was not asked for: "
            "RepositoryIndex has the reason.",
            "short",
            ((f"sum by (model, version, state) (dnnserve_model_state{{{_CHOSEN}}})", f"{_PER_MODEL} {{{{state}}}}"),),
        ),
        Panel(
            "Loads per hour, and the time of the last",
            "A load that failed leaves what was served before; the log has the reason.",
            "short",
            (
                (
                    f"sum by (model, version, result) (increase(dnnserve_model_loads_total{{{_CHOSEN}}}[1h]))",
                    f"{_PER_MODEL} {{{{result}}}}",
                ),
                (f"dnnserve_model_load_seconds{{{_CHOSEN}}}", f"seconds {_PER_MODEL}"),
            ),
        ),
    ),
    "Processes": (
        Panel(
            "Ready",
            "1: requests are taken, as /readyz says.",
            "short",
            ((f"dnnserve_ready{{{_JOB}}}", "{{instance}}"),),
        ),
        Panel(
            "CPU",
            "Cores that the server's own process keeps busy.",
            "short",
            ((f"rate(process_cpu_seconds_total{{{_JOB}}}[$__rate_interval])", "{{instance}}"),),
        ),
        Panel(
            "Memory",
            "Resident memory of the server's own process; it does not grow under a steady load.",
            "bytes",
            ((f"process_resident_memory_bytes{{{_JOB}}}", "{{instance}}"),),
        ),
        Panel(
            "Connections that were closed again",
            "There are more clients than a port has room for: raise --max-connections or the limit of open files, "
            "or add replicas. gRPC tells nobody of those that it closes.",
            "short",
            (
                (
                    f"sum by (port, instance) (rate(dnnserve_refused_connections_total{{{_JOB}}}[$__rate_interval]))",
                    "{{port}} {{instance}}",
                ),
            ),
        ),
    ),
}


def dashboard() -> Dashboard:
    """Make the dashboard: three charts abreast, one of SECTIONS after the other; data source, job and models are chosen above."""
    source = DataSourceRef(type_val="prometheus", uid="${source}")
    board = (
        Dashboard("dnnserve")
        .uid("dnnserve")
        .description("Requests, batches, devices and processes of dnnserve")
        .tags(["dnnserve", "inference"])
        .time("now-1h", "now")
        .refresh("10s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("source").label("Data source").type("prometheus"))
    )
    for name, of in (("job", "dnnserve_ready"), ("model", f"dnnserve_queue_depth{{{_JOB}}}")):
        values = QueryVariable(name).label(name.capitalize()).datasource(source).query(f"label_values({of}, {name})")
        # ".*" and not every known value: a call that names no model has an empty one.
        board.with_variable(
            values.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True).include_all(True).all_value(".*")
        )
    number = 0
    for section, panels in SECTIONS.items():
        board.with_row(Row(section))
        for panel in panels:
            number += 1
            chart = TimeSeries().id(number).title(panel.title).description(panel.description).unit(panel.unit)
            chart.datasource(source).span(8).height(8)
            if panel.unit != "s":  # the time that is left may be below 0
                chart.min(0)
            for index, (expression, legend) in enumerate(panel.queries):
                query = Dataquery().expr(expression).legend_format(legend).ref_id("ABCD"[index])
                chart.with_target(query.datasource(source))
            board.with_panel(chart)
    return board


if __name__ == "__main__":
    FILE.write_text(JSONEncoder(sort_keys=True, indent=1).encode(dashboard().build()) + "\n")
