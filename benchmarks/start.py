"""Where the time goes until a server is ready: by part, on a machine that has not seen the net's kernels, and the second time.

    python -m benchmarks.start --out benchmarks/results [--net resnet50] [--device cuda:0] [--precision fp32] [--max-batch 32]

Each start is a process of its own. The first has an empty cache, so that it compiles every kernel that was not built ahead
(`make kernels`; DNNCORE_CUBIN_DIR=none pretends that none were). What one part calls of another counts there and not here. At the
end dnnserve itself is started twice, each time from the command to the moment at which it takes requests. What Python compiles of
packages that were installed without bytecode is in the first alone.
"""

from __future__ import annotations

import time

_BEGAN = time.time()  # before the imports, which are one of the parts

import argparse  # noqa: E402
import functools  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from dnnserve.config import PRECISIONS  # noqa: E402
from dnnserve.engine import net as instance  # noqa: E402
from dnnserve.engine.net import NetHost, ServedModel  # noqa: E402
from dnnserve.lifecycle.reading import model_spec  # noqa: E402
from dnnserve.repository import load_package_folder  # noqa: E402

from benchmarks.document import Document  # noqa: E402
from benchmarks.server import RunningServer  # noqa: E402
from dnncore.cuda.runtime.kernels import LoadedKernels  # noqa: E402
from dnncore.nn import Executor, Package, Parameters, executor  # noqa: E402
from dnncore.nn.passes import for_inference  # noqa: E402
from dnncore.nn.zoo import ZOO  # noqa: E402
from dnncore.preprocessing import Preprocessing  # noqa: E402
from dnncore.program import Program  # noqa: E402

__all__ = ["PARTS", "Stopwatch", "main", "measure"]

PARTS = {
    "imports": "Python, NumPy, gRPC and our own modules",
    "package": "reading the weights, and their checksums",
    "passes": "folding and fusing",
    "device": "driver and context",
    "weights": "to the device",
    "plans": "choosing algorithms, and where all values lie",
    "recording": "what is to be launched",
    "kernels": "found on disk or compiled, and loaded",
    "captures": "CUDA graphs",
    "runs": "one of each executor",
}
"""Of a start, in their order, and what each is."""


@dataclass
class Stopwatch:
    """Seconds by part, without those that a part spends in another. Owned by one thread.

    Args:
        clock: Seconds.
    """

    clock: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=dict)
    _inside: list[str] = field(default_factory=list)
    _since: float = 0.0

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, whose time counts for a part."""

        @functools.wraps(call)
        def wrapped(*arguments: Any, **more: Any) -> Any:
            self._switch()
            self._inside.append(part)
            try:
                return call(*arguments, **more)
            finally:
                self._switch()
                self._inside.pop()

        return wrapped

    def _switch(self) -> None:
        """Give the part that ran until now its time."""
        now = self.clock()
        if self._inside:
            self.seconds[self._inside[-1]] = self.seconds.get(self._inside[-1], 0.0) + now - self._since
        self._since = now


def measure(package: Path, device: str, precision: str, max_batch_rows: int, began: float) -> dict[str, float]:
    """Seconds by part until a package's executors have run once in this process.

    Args:
        package: A folder.
        device: "cpu" or "cuda:N".
        precision: One of dnnserve's.
        max_batch_rows: Of the largest bucket.
        began: When the process did, by `time.time`.
    """
    watch = Stopwatch()
    watch.seconds["imports"] = time.time() - began
    places: tuple[tuple[Any, str, str], ...] = (
        (instance, "Handle", "device"),
        (Parameters, "upload", "weights"),
        (Executor, "__init__", "recording"),
        (executor, "schedule", "plans"),
        (LoadedKernels, "_load", "kernels"),
        (Program, "capture", "captures"),
        (Executor, "run", "runs"),
    )
    originals = [getattr(owner, name) for owner, name, _ in places]
    try:
        for (owner, name, part), original in zip(places, originals, strict=True):
            setattr(owner, name, watch.timed(part, original))
        ((key, loaded),) = watch.timed("package", load_package_folder)(package).items()
        model = watch.timed("passes", for_inference)(loaded.serving_model, PRECISIONS[precision])
        host = NetHost(device, {key: ServedModel(model, loaded.preprocessing)})
        host.load(key, model_spec(key, loaded, max_batch_rows).max_batch_rows)
        host.close()
    finally:
        for (owner, name, _), original in zip(places, originals, strict=True):
            setattr(owner, name, original)
    return {part: round(watch.seconds.get(part, 0.0), 6) for part in PARTS}


def _table(starts: Mapping[str, Mapping[str, float]]) -> str:
    lines = [f"{'part':10s}" + "".join(f"{name:>10s}" for name in starts)]
    for part, what in PARTS.items():
        lines.append(f"{part:10s}" + "".join(f"{start[part]:9.3f}s" for start in starts.values()) + f"  {what}")
    return "\n".join([*lines, f"{'together':10s}" + "".join(f"{sum(one.values()):9.3f}s" for one in starts.values())])


def _untrained(net: str) -> Package:
    """A net of the zoo with fresh weights: the time does not depend on what it learned."""
    shape, classes = ((1, 8, 8), 10) if net == "lenet" else ((3, 224, 224), 1000)
    graph = ZOO[net](classes, shape)
    zeros, ones = (0.0,) * shape[0], (1.0,) * shape[0]
    color = "gray" if shape[0] == 1 else "rgb"
    preprocessing = Preprocessing.squash(color, *shape[1:], 1 / 255, zeros, ones)  # type: ignore[arg-type]
    return Package(net, graph, graph.initialize(0), preprocessing, tuple(map(str, range(classes))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the JSON file; without it, figures are only printed")
    parser.add_argument("--net", default="resnet50", choices=sorted(ZOO))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--precision", default="fp32", choices=tuple(PRECISIONS))
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--measure", type=Path, metavar="PACKAGE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.device, options.precision, options.max_batch, _BEGAN)))
        return
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / options.net
        _untrained(options.net).save(package)
        os.environ["DNNCORE_CACHE_DIR"] = str(Path(folder) / "cache")
        choice = ("--device", options.device, "--precision", options.precision, "--max-batch", str(options.max_batch))
        starts = {}
        for name in ("first", "second"):
            command = [sys.executable, "-m", "benchmarks.start", "--measure", str(package), *choice]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            starts[name] = json.loads(printed.splitlines()[-1])
        compiled = len(list(Path(folder).glob("cache/cubins/*.cubin")))
        choice = ("--devices", options.device, "--precision", options.precision, "--max-batch", str(options.max_batch))
        served = []
        for _ in starts:
            began = time.perf_counter()
            with RunningServer(package, Path(folder), *choice):
                served.append(round(time.perf_counter() - began, 4))
    print(_table(starts))
    first, second = served
    print(
        f"{compiled} kernels were compiled by the first; dnnserve takes requests after {first:.2f} s, at its second start after "
        f"{second:.2f}"
    )
    if options.out is not None:
        row = {"net": options.net, "device": options.device.partition(":")[0], "precision": options.precision}
        row |= {"max_batch": options.max_batch, "compiled": compiled, "starts": starts}
        row |= {"dnnserve_first_s": first, "dnnserve_s": second}
        Document(options.out / "start.json", ("net", "device", "precision", "max_batch")).add([row])


if __name__ == "__main__":
    main()
