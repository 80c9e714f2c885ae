"""Convolutions and matrix products of ours beside PyTorch with cuDNN, timed as kernels: `make bench-kernels`.

How it is timed is told in `benchmarks/race.py` (graphs of calls on rotating buffers, in turns, medians), how cuDNN's best is found
in `benchmarks/torch_graphs.py`, how results are checked in `benchmarks/contest.py`. Milliseconds are those of a call whose operands
come from memory; `_warm` of one whose operands the cache holds. TFLOP/s count two operations a multiply-add of the direct method,
TB/s each tensor once; `of_peak` and `of_copy` are the fractions of a large product and a large copy in the same run. In float32
cuDNN's TF32 is off but for `--dtype tf32`, which permits it to both.

Rows, in order of importance; each goes into its file in benchmarks/results as soon as it is there:

    anchors   the 19 layers of benchmarks/layers.py, in all directions, and fused (convolution, bias and ReLU): convolution-*.json
    int8      their forward in int8 beside ours in fp16: int8.json
    grouped   ResNeXt-50's 3x3 layers: layers-*.json
    linear    fully connected layers, large squares, and the gradients of both, strict: linear-*.json
    nets      every distinct convolution of ResNet-50, VGG-16, MobileNetV2, GoogLeNet and AlexNet: layers-*.json

These are 304 rows of anchors, 19, 112, 252 and 7,232. The one command for a call of ten minutes on a GPU; the next call goes on
where it ended:

    DNNCORE_COMMIT=... python -m benchmarks.kernels --minutes 9 --missing --out $OUT

`--missing` leaves out what the files in `--out` have of this commit: copy them there first. Kernels are compiled before they are
measured, all of a file at the same time; those that `make kernels` built are there already. A dry run computes tiny layers of the
same kinds, ours alone, two calls a graph and one round, on the emulated driver (`--device cuda:0`, with the variables that the
Makefile sets for tests and its libcuda.so.1 in LD_PRELOAD) or on the CPU; it shows that all of it runs:

    python -m benchmarks.kernels --dry-run --device cpu --out /tmp/dry
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping

from benchmarks.kernels.convolutions import DIRECTIONS, convolution, int8_convolution
from benchmarks.kernels.linear import linear
from benchmarks.kernels.precision import PRECISIONS, Precision
from benchmarks.layers import LAYERS, LayerGeometry
from benchmarks.net_layers import GROUPED, SQUARES, LinearGeometry, convolutions, linear_layers
from benchmarks.session import Group, add_arguments, opened
from dnncore.errors import DnncoreError

__all__ = ["GROUPS", "main"]

GROUPS = ("anchors", "int8", "grouped", "linear", "nets")
_BATCHES = (32, 1, 256, 8)
_PRODUCTS = DIRECTIONS[:3]
_LAYERS = "only those whose name, or that of a net that has them, contains one of these, with commas between"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--dtype", nargs="+", choices=PRECISIONS, default=tuple(PRECISIONS), help="in this order")
    parser.add_argument("--layers", default="", help=_LAYERS)
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--batch", nargs="+", type=int, default=_BATCHES, help="of linear and nets, in this order")
    return parser


class _Selection:
    """What the command line asks for, in order of importance. Immutable."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._precisions = [PRECISIONS[name] for name in options.dtype]
        self._directions = options.directions

    def groups(self) -> Iterator[Group]:
        """One file's rows after the other."""
        for group in GROUPS:
            if group in self._options.groups:
                yield from getattr(self, f"_{group}")()

    def _wanted(self, name: str, nets: tuple[str, ...] = ()) -> bool:
        return any(word in part for word in self._options.layers.split(",") for part in (name, *nets))

    def _sized(self, layer: LayerGeometry) -> LayerGeometry:
        return layer.shrunk if self._options.dry_run else layer

    def _anchors(self) -> Iterator[Group]:
        for precision in self._precisions:
            found = [
                convolution(self._sized(layer), direction, precision)
                for layer in LAYERS
                if self._wanted(layer.name)
                for direction in self._directions
            ]
            yield Group(f"convolution-{precision.suffix}", ("layer", "direction"), precision.facts, found)

    def _int8(self) -> Iterator[Group]:
        if "forward" in self._directions:
            found = [int8_convolution(self._sized(layer)) for layer in LAYERS if self._wanted(layer.name)]
            yield Group("int8", ("layer",), {"dtype": "int8", "layout": "NHWC"}, found)

    def _grouped(self) -> Iterator[Group]:
        layers = dict.fromkeys(GROUPED, ("resnext50",))
        for precision in self._precisions:
            yield self._layers(layers, precision)

    def _nets(self) -> Iterator[Group]:
        for batch in self._options.batch:
            layers = convolutions(batch)
            for precision in self._precisions:
                yield self._layers(layers, precision)

    def _layers(self, layers: Mapping[LayerGeometry, tuple[str, ...]], precision: Precision) -> Group:
        found = [
            convolution(self._sized(layer), direction, precision, {"batch": layer.n, "nets": list(nets)})
            for layer, nets in layers.items()
            if self._wanted(layer.name, nets)
            for direction in self._directions
        ]
        return Group(f"layers-{precision.suffix}", ("layer", "batch", "direction"), precision.facts, found)

    def _linear(self) -> Iterator[Group]:
        directions = [direction for direction in self._directions if direction in _PRODUCTS]
        layers: dict[LinearGeometry, tuple[str, ...]] = {}
        for batch in self._options.batch:
            layers |= linear_layers(batch)
        layers |= dict.fromkeys(SQUARES, ())
        for precision in self._precisions:
            if precision.name == "tf32":
                continue  # a matrix product of ours rounds no operand
            found = [
                linear(
                    layer.shrunk if self._options.dry_run else layer,
                    *(direction, precision, {"batch": layer.n, "nets": list(nets)}),
                )
                for layer, nets in layers.items()
                if self._wanted(layer.name, nets)
                for direction in directions
            ]
            facts = {"dtype": precision.dtype.value}
            yield Group(f"linear-{precision.dtype.value}", ("layer", "batch", "direction"), facts, found)


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for; 1 where something failed."""
    options = _parser().parse_args(arguments)
    try:
        with opened(options) as session:
            for group in _Selection(options).groups():
                session.measure(group)
            return session.close()
    except DnncoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
