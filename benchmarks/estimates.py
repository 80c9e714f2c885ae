"""What nets of the zoo would take on a GPU, estimated without one: time, operations and memory, as tables in Markdown.

    python -m benchmarks.estimates [--nets resnet50 ...] [--batches 1 32 256] [--gpu h200] [--without merge_siblings ...]

"Beside" is what values and scratch memory would take with the fastest algorithms and a block of scratch memory of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator

from dnncore.dtypes import DType
from dnncore.figures import GPUS, DeviceFigures
from dnncore.nn.estimate import estimate
from dnncore.nn.model import Model
from dnncore.nn.passes import CHOICES, for_inference
from dnncore.nn.placement import place
from dnncore.nn.zoo import ZOO

__all__ = ["rows"]

_NETS = ("resnet50", "vgg16", "alexnet", "googlenet", "mobilenet_v2")
_UNLIMITED = sys.maxsize
_HEADS = ("net", "precision", "batch", "operations", "ms", "values MB", "beside MB", "MB", "time for memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=_NETS, choices=sorted(ZOO))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 256])
    parser.add_argument("--gpu", default="h200", choices=GPUS)
    parser.add_argument("--without", nargs="+", default=(), choices=CHOICES, help="passes to leave out")
    arguments = parser.parse_args()
    print(f"| {' | '.join(_HEADS)} |\n|{' --- |' * len(_HEADS)}")
    for name in arguments.nets:
        for row in rows(name, arguments.batches, GPUS[arguments.gpu], arguments.without):
            print(f"| {' | '.join(row)} |", flush=True)


def rows(
    name: str, batches: Collection[int], figures: DeviceFigures, without: Collection[str] = ()
) -> Iterator[tuple[str, ...]]:
    """The cells of a net's rows, in the order of `_HEADS`."""
    graph = ZOO[name](1000, (3, 224, 224))
    model = Model(graph, graph.initialize(0))
    for precision in (DType.FLOAT32, DType.FLOAT16):
        served = for_inference(model, precision, without).graph
        for batch in batches:
            fastest = estimate(served, figures, batch, _UNLIMITED)
            chosen = estimate(served, figures, batch)
            values = place(served, batch).nbytes
            sizes = (values, values + fastest.scratch_bytes, chosen.placement.nbytes)
            yield (
                name,
                precision.value,
                str(batch),
                str(chosen.operations),
                f"{chosen.seconds * 1e3:.3f}",
                *(f"{nbytes / 1e6:.0f}" for nbytes in sizes),
                f"{chosen.seconds / fastest.seconds - 1:+.2%}",
            )


if __name__ == "__main__":
    main()
