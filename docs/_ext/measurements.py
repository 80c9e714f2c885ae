"""The tables of measurements, made from what the benchmarks wrote: `<!-- convolution float16 NHWC -->` becomes one."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

__all__ = [
    "age",
    "convolution",
    "cpu",
    "families",
    "front",
    "host",
    "insert",
    "memory_bound",
    "nets",
    "setup",
    "slices",
    "steps",
    "training",
]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_PLACE = re.compile(
    r"<!-- (convolution|memory_bound|host|cpu|nets|slices|steps|training|families|front)((?: [^> ]+)*) -->"
)

Rows = Sequence[dict[str, Any]]


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(header), *map(tuple, rows)]
    lines.insert(1, ("---",) * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ratio(value: float) -> str:
    return f"**{value:.2f}**" if value > 1 else f"{value:.2f}"


def _beside(ratio: float | None) -> str:
    """In brackets behind a figure, where there was something to compare it with."""
    return "" if ratio is None else f" ({_ratio(ratio)})"


_BEFORE = "eager calls in a loop, on one set of buffers"
"""How kernels were timed before `benchmarks/race.py`; files of then do not say it."""


def age(documents: Sequence[dict[str, Any]], *, of_kernels: bool = False) -> str:
    """Of a table: the commits that its rows were measured at, most rows first, on what, and how kernels were timed."""
    found = Counter(row["commit"][:7] for document in documents for row in document["results"])
    commits = ", ".join(f"`{commit}` ({count})" for commit, count in found.most_common())
    gpus = {gpu.split(",")[0]: None for document in documents for gpu in document["environment"]["gpus"]}
    methods = {document.get("method", _BEFORE): None for document in documents} if of_kernels else {}
    words = "; ".join([*gpus, *methods])
    return f"*Measured at commit {commits}{f'; {words}' if words else ''}.*"


def convolution(rows: Rows) -> str:
    """A line a layer: what would be chosen in each direction, its TFLOP/s, and cuDNN's time over its time; then their means."""
    chosen: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        chosen.setdefault((row["layer"], row["direction"]), row)  # the first is the one that would be chosen
    layers = dict.fromkeys(layer for layer, _ in chosen)
    directions = tuple(dict.fromkeys(direction for _, direction in chosen))

    def cell(layer: str, direction: str) -> str:
        row = chosen.get((layer, direction))
        return f"{row['tflops']:.3g} `{row['algorithm']}`{_beside(row['of_cudnn'])}" if row else ""

    beside = {key: row["of_cudnn"] for key, row in chosen.items() if row["of_cudnn"] is not None}

    def mean(direction: str) -> float:
        return statistics.geometric_mean(ratio for (_, way), ratio in beside.items() if way == direction)

    faster = sum(ratio > 1 for ratio in beside.values())
    table = _table(
        ("layer", *(direction.replace("_", "-") for direction in directions)),
        ((layer, *(cell(layer, direction) for direction in directions)) for layer in layers),
    )
    compared = [direction for direction in directions if any(way == direction for _, way in beside)]
    means = ", ".join(f"{direction.replace('_', '-')} {mean(direction):.2f}" for direction in compared)
    return f"{table}\n\nFaster than cuDNN: {faster} of {len(beside)}. Geometric means: {means}."


def memory_bound(documents: Sequence[dict[str, Any]]) -> str:
    """A line an operation, a column an element type: of the copy rate, and PyTorch's time over ours."""
    columns = []
    for document in documents:
        first: dict[str, dict[str, Any]] = {}
        for row in document["results"]:
            first.setdefault(row["name"], row)
        columns.append(first)

    def cell(row: dict[str, Any] | None) -> str:
        return f"{row['of_copy']:.2f}{_beside(row['of_torch'])}" if row else ""

    names = dict.fromkeys(name for column in columns for name in column)
    table = _table(
        ("operation", *(document["dtype"] for document in documents)),
        ((name, *(cell(column.get(name)) for column in columns)) for name in names),
    )
    reached = "; ".join(
        f"{document['dtype']} {_reached(column)}" for document, column in zip(documents, columns, strict=True)
    )
    goals = f"Rows that reach {_OF_COPY} of the copy rate, and those of 14 x 14 that take at most {_SMALL_US} us"
    return f"{table}\n\n{goals}: {reached}."


_OF_COPY, _SMALL_US = 0.85, 5.0
"""The goals: a share of the rate of a copy and, where the launch is most of the time, 3 us more than an empty one takes."""


def _reached(column: dict[str, dict[str, Any]]) -> str:
    """How many operations reach the goals."""
    small = [row for name, row in column.items() if "14" in name.split()]
    large = [row for name, row in column.items() if "14" not in name.split()]
    fast, quick = sum(row["of_copy"] >= _OF_COPY for row in large), sum(row["ms"] * 1e3 <= _SMALL_US for row in small)
    return f"{fast} of {len(large)}, and {quick} of {len(small)}"


_HOST_PARTS = (
    ("Converted layers", re.compile("converted ")),
    ("Nets and training steps", re.compile(r"\S+( training step)?, batch \d")),
    ("First plans", re.compile("first plan|interpreter, at first plans")),
    ("Where the time of a call goes", re.compile("part|between the parts|in front of the driver|interpreter")),
)
"""How the rows of the host's table are parted, by how their names begin; those before all of these are calls and replays."""


def host(rows: Rows) -> str:
    """A table for each kind of figures, a line a figure: ours, PyTorch's, and the goal."""
    parts: dict[str, list[dict[str, Any]]] = {title: [] for title in ("Calls and replays", *dict(_HOST_PARTS))}
    for row in rows:
        title = next((title for title, begins in _HOST_PARTS if begins.match(row["name"])), "Calls and replays")
        parts[title].append(row)
    return "\n\n".join(f"**{title}**\n\n{_host_table(part)}" for title, part in parts.items() if part)


def _host_table(rows: Rows) -> str:

    def number(row: dict[str, Any], key: str) -> str:
        value = row[key]
        return "" if value is None else f"{value:.3g} {row['unit']}"

    def goal(row: dict[str, Any]) -> str:
        below_torch = row.get("below_torch", False)  # what was measured earlier says nothing of it
        wanted = [number(row, "most")] * (row["most"] is not None) + ["PyTorch's"] * below_torch
        is_met = (row["most"] is None or row["ours"] <= row["most"]) and (not below_torch or row["ours"] < row["torch"])
        return ", ".join(wanted) + ("" if is_met else " (missed)")

    return _table(
        ("", "ours", "PyTorch", "at most"),
        ((row["name"], number(row, "ours"), number(row, "torch"), goal(row)) for row in rows),
    )


def cpu(rows: Rows) -> str:
    """A line a net, batch and number of threads: images a second and processor time of an image, ours and PyTorch's."""

    def line(row: dict[str, Any]) -> Iterable[str]:
        ours, theirs = (f"{row[key] / row['batch'] * 1e3:.0f} ms" for key in ("cpu_s", "torch_cpu_s"))
        return (
            row["name"],
            str(row["batch"]),
            str(row["threads"]),
            f"{row['images_per_s']:.3g}",
            f"{row['torch_images_per_s']:.3g} ({_ratio(row['of_torch'])})",
            ours,
            f"{theirs} ({_ratio(row['cpu_of_torch'])})",
            f"{row['scratch_mb']:.0f} MB",
        )

    header = ("", "batch", "threads", "images/s", "PyTorch", "processor time", "PyTorch", "scratch")
    return _table(header, map(line, rows))


def nets(rows: Rows) -> str:
    """A line a net and precision, a column a batch: images a second, and over PyTorch's; algorithms chosen by estimate.

    The last column is the memory beside weights at the largest batch, and PyTorch's.
    """
    found = {(row["net"], row["precision"], row["batch"]): row for row in rows if not row["autotuned"]}
    batches = sorted({batch for _, _, batch in found})

    def cell(net: str, precision: str, batch: int) -> str:
        row = found.get((net, precision, batch))
        return "" if row is None else f"{row['ours_images_per_s']:.0f} ({_ratio(row['ratio'])})"

    def memory(net: str, precision: str) -> str:
        row = found.get((net, precision, batches[-1]))
        return "" if row is None else f"{row['ours_bytes'] / 1e6:.0f} ({row['torch_bytes'] / 1e6:.0f})"

    lines = dict.fromkeys((net, precision) for net, precision, _ in found)
    return _table(
        ("", "", *(f"batch {batch}" for batch in batches), f"MB at batch {batches[-1]}"),
        (
            (net, precision, *(cell(net, precision, batch) for batch in batches), memory(net, precision))
            for net, precision in lines
        ),
    )


def slices(rows: Rows) -> str:
    """A line for what was computed in slices too: milliseconds at once, and by so many images at a time."""
    found = [row for row in rows if row.get("sliced_ms")]
    sizes = sorted({int(size) for row in found for size in row["sliced_ms"]})
    return _table(
        ("", "", "batch", "at once, ms", *(f"by {size}" for size in sizes)),
        (
            (
                *(row["net"], row["precision"], str(row["batch"]), f"{row['ours_ms']:.2f}"),
                *(f"{row['sliced_ms'][str(size)]:.2f}" if str(size) in row["sliced_ms"] else "" for size in sizes),
            )
            for row in found
        ),
    )


def steps(rows: Rows) -> str:
    """A line a net, a column a way to train it: images a second, over PyTorch's, and milliseconds of kernels."""
    found = {(row["net"], row["how"]): row for row in rows}
    nets, ways = (tuple(dict.fromkeys(row[key] for row in rows)) for key in ("net", "how"))

    def cell(net: str, how: str) -> str:
        row = found[net, how]
        return f"{row['images_per_s']:.0f} ({_ratio(row['ratio'])}), {row['kernels_ms']:.1f} ms"

    return _table(("", *ways), ((net, *(cell(net, how) for how in ways)) for net in nets))


def training(rows: Rows) -> str:
    """A line a net, for each rate four columns: how far losses are from PyTorch's, how far both are from float64's, and in it."""
    found = {(row["net"], row["lr"]): row for row in rows}
    nets, rates = (tuple(dict.fromkeys(row[key] for row in rows)) for key in ("net", "lr"))
    figures = {
        "difference": "from PyTorch",
        "from_float64": "from float64",
        "torch_from_float64": "PyTorch from float64",
        "both_in_float64": "both in float64",
    }
    header = (
        f"rate {rate:g}: {title}" if not i else title for rate in rates for i, title in enumerate(figures.values())
    )

    def cells(net: str) -> Iterable[str]:
        for rate in rates:
            row = found.get((net, rate), {})
            yield from (f"{row[figure]:.1e}" if figure in row else "" for figure in figures)

    return _table(("", *header), ((net, *cells(net)) for net in nets))


def families(rows: Rows) -> str:
    """A line a library: nets whose outputs agree with PyTorch's and by how much; a line for each that is refused, and why."""
    lines, refused = [], [row for row in rows if row["error"] is None]
    for library in dict.fromkeys(row["net"].partition("/")[0] for row in rows):
        own = [row for row in rows if row["net"].startswith(f"{library}/")]
        passed = [row for row in own if row["error"] is not None]
        names = ", ".join(row["net"].partition("/")[2] for row in passed)
        worst = max((row["error"] for row in passed), default=0.0)
        lines.append((library, f"{len(passed)} of {len(own)}", f"{worst:.1e}", names))
    table = _table(("", "pass", "largest difference", "nets"), lines)
    return "\n".join([table, "", *(f"- {row['net']} is refused: {' '.join(row['why'].split())}" for row in refused)])


def front(nets: Rows, host: Rows) -> str:
    """Of all that was measured, what the first page shows: a net for one image and for many, and a step of training."""

    def served(title: str, **what: object) -> tuple[str, ...]:
        what |= {"net": "resnet50", "autotuned": False}
        (row,) = (row for row in nets if what.items() <= row.items())
        return title, f"{row['ours_ms']:.3g} ms", f"{min(row['torch_ms'].values()):.3g} ms"

    def step(title: str, name: str) -> tuple[str, ...]:
        (row,) = (row for row in host if row["name"] == f"ResNet-50 training step, batch 64, fp32{name}")
        return title, f"{row['ours']:.1f} ms", f"{row['torch']:.1f} ms"

    return _table(
        ("one H200, strict fp32 unless it says otherwise ([more](performance.md))", "dnncore", "PyTorch with cuDNN"),
        (
            served("ResNet-50, one image, captured as one launch", precision="float32", batch=1),
            served("ResNet-50, 256 images in fp16, likewise", precision="float16", batch=256),
            step("ResNet-50, a training step of 64 images", ""),
            step("the same without fusing layers, `fuse=False`", ", layer by layer"),
        ),
    )


def _document(*parts: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / f"{'-'.join(parts)}.json").read_text())
    return document


_WHOLE: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "host": ("host", host),
    "cpu": ("cpu", cpu),
    "nets": ("nets", nets),
    "slices": ("slices", slices),
    "steps": ("steps", steps),
    "training": ("training", training),
    "families": ("families", families),
}
"""Tables of all that a file holds: its name, and what makes the table."""


def insert(text: str) -> str:
    """Replace every place of a table by the table, and how old it is."""

    def made(place: re.Match[str]) -> str:
        kind, words = place[1], place[2].split()
        if kind == "front":
            return front(_document("nets")["results"], _document("host")["results"])
        if kind in _WHOLE:
            file, table = _WHOLE[kind]
            document = _document(file, *words)
            return f"{table(document['results'])}\n\n{age([document])}"
        if kind == "convolution":
            documents = [_document(kind, *words)]
            made = convolution(documents[0]["results"])
        else:
            documents = [_document(kind, dtype) for dtype in words]
            made = memory_bound(documents)
        return f"{made}\n\n{age(documents, of_kernels=True)}"

    return _PLACE.sub(made, text)


def _insert(_app: Sphinx, page: str, source: list[str]) -> None:
    if page in ("index", "performance", "onnx", "training"):
        source[0] = insert(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the reading of pages."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True}
