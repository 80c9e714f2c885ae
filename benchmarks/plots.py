"""The plots of docs/performance.md, made of benchmarks/results.

python -m benchmarks.plots            # write docs/plots again
python -m benchmarks.plots --check    # say which of them are not what the results would give
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.dot_plot import DotPlot, Panel, Row

__all__ = ["PLOTS", "main", "stale"]

_ROOT = Path(__file__).parents[1]
RESULTS, FOLDER = _ROOT / "benchmarks" / "results", _ROOT / "docs" / "plots"

_FASTER = "times as fast as {}: right of 1, ours is faster"
_NAMES = {
    "resnet50": "ResNet-50", "vgg16": "VGG-16", "alexnet": "AlexNet", "googlenet": "GoogLeNet", "mobilenet_v2": "MobileNetV2",
}  # fmt: skip


def _results(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["results"]
    return rows


def _convolutions() -> DotPlot:
    directions = ("forward", "backward-data", "backward-filter", "fused")
    panels = []
    for title, name in (("fp32", "convolution-float32-NCHW"), ("fp16, NHWC", "convolution-float16-NHWC")):
        layers: dict[str, dict[str, float]] = {}
        for row in _results(name):  # of several algorithms, the first is the one that would be chosen
            if row["of_cudnn"] is None:
                continue
            layers.setdefault(row["layer"], {}).setdefault(row["direction"].replace("_", "-"), row["of_cudnn"])
        rows = [Row(layer, values) for layer, values in layers.items()]
        panels.append(Panel(title, _FASTER.format("cuDNN"), (0.125, 0.25, 0.5, 1, 2, 4, 8, 16), rows, reference=1))
    return DotPlot("Convolutions beside cuDNN on one H200", directions, panels)


def _nets() -> DotPlot:
    panels = []
    results = [row for row in _results("nets") if not row["autotuned"]]
    batches = sorted({row["batch"] for row in results})
    for title, precision in (("strict fp32", "float32"), ("fp16", "float16"), ("int8, beside PyTorch in fp16", "int8")):
        nets: dict[str, dict[str, float]] = {name: {} for name in _NAMES}
        for row in results:
            if row["precision"] == precision:
                nets.setdefault(row["net"], {})[f"batch {row['batch']}"] = row["ratio"]
        rows = [Row(_NAMES.get(net, net), values) for net, values in nets.items() if values]
        axis = _FASTER.format("PyTorch's fastest way")
        panels.append(Panel(title, axis, (0.5, 0.7, 1, 1.4, 2, 2.8), rows, reference=1))
    return DotPlot(
        "Nets as they are served, beside PyTorch on one H200", [f"batch {batch}" for batch in batches], panels
    )


def _host() -> DotPlot:
    endings = (", without gradient", ", with gradient")
    kinds: dict[str, list[Row]] = {"One operation": [], **{f"A converted layer{ending}": [] for ending in endings}}
    for row in _results("host"):
        if row["unit"] == "us" and row["torch"] is not None:
            name, kind = re.sub(r" \(.*\)", "", row["name"].removeprefix("converted ")), "One operation"
            for ending in endings:
                if name.endswith(ending):
                    name, kind = name.removesuffix(ending), f"A converted layer{ending}"
            kinds[kind].append(Row(name, {"dnncore": row["ours"], "PyTorch": row["torch"]}))
    axis = "microseconds of the host's time for a call: less is better"
    panels = [Panel(title, axis, (0, 10, 20, 30, 40, 50), rows, logarithmic=False) for title, rows in kinds.items()]
    return DotPlot("What a call costs the host, beside PyTorch", ("dnncore", "PyTorch"), panels, joined=True)


def _serving() -> DotPlot:
    names = {"cpu": "CPU", "cuda:0": "one GPU", "cuda:0,cuda:1": "two GPUs"}
    loads: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for row in _results("serving-gpu"):
        clients, images = row["clients"], row["images_per_request"]
        load = f"{clients} client{'s' * (clients > 1)}, {images} image{'s' * (images > 1)} a request"
        rates, delays = loads.setdefault(load, ({}, {}))
        rates[names[row["devices"]]], delays[names[row["devices"]]] = row["images_per_s"], row["p99_ms"]
    rate_rows = [Row(load, rates) for load, (rates, _) in loads.items()]
    delay_rows = [Row(load, delays) for load, (_, delays) in loads.items()]
    return DotPlot(
        "The server's throughput and latency by load and devices",
        tuple(names.values()),
        (
            Panel("Throughput", "images a second: more is better", (250, 500, 1000, 2000, 4000, 8000), rate_rows),
            Panel("Latency", "milliseconds, 99 of 100 answers: less is better", (2, 5, 10, 20, 50, 100), delay_rows),
        ),
    )


PLOTS: Mapping[str, Callable[[], DotPlot]] = {
    "convolutions": _convolutions, "nets": _nets, "host": _host, "serving": _serving,
}  # fmt: skip
"""By the name of the file in docs/plots."""


def stale() -> list[str]:
    """The names of plots that are not what the results would give."""
    found = {path.stem: path.read_text() for path in FOLDER.glob("*.svg")}
    drawn = {name: plot().svg() for name, plot in PLOTS.items()}
    return [name for name in sorted(found.keys() | drawn.keys()) if found.get(name) != drawn.get(name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a plot is stale")
    if parser.parse_args().check:
        names = stale()
        if names:
            print(f"docs/plots: {', '.join(names)} stale; run python -m benchmarks.plots", file=sys.stderr)
        return 1 if names else 0
    FOLDER.mkdir(exist_ok=True)
    for name, plot in PLOTS.items():
        (FOLDER / f"{name}.svg").write_text(plot().svg())
    return 0


if __name__ == "__main__":
    sys.exit(main())
