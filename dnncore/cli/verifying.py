"""`dnncore verify`: whether a package is whole, and gives on some device what it should."""

from __future__ import annotations

import argparse
from pathlib import Path

from dnncore.cli.arguments import PRECISIONS
from dnncore.handle import Handle
from dnncore.nn.example import TOLERANCES, Example
from dnncore.nn.model import Model
from dnncore.nn.package import Package
from dnncore.nn.passes import for_inference

__all__ = ["add_command"]

_BATCH = 2
"""Of random inputs: the least number at which images can be mixed up."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Put the command beside the others."""
    parser = commands.add_parser("verify", help="whether a package is whole, and right on a device")
    parser.add_argument("package", type=Path, help="a model package")
    parser.add_argument("--device", default="cpu", help='"cpu", "cuda:0", ... (default: cpu)')
    parser.add_argument("--precision", choices=PRECISIONS, help="to run it in (default: the package's, else fp32)")
    tolerances = ", ".join(f"{TOLERANCES[dtype]:g} in {name}" for name, dtype in PRECISIONS.items())
    parser.add_argument(
        "--tolerance", type=float, help=f"of outputs, relative to the largest element (default: {tolerances})"
    )
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    package = Package.load(options.package)  # which compares checksums, names, shapes and dtypes, and infers all shapes
    model = Model(package.graph, package.weights)
    nbytes = sum(array.nbytes for array in model.weights.values())
    print(f"{options.package}: {package.name}")
    print(f"  weights: right by their checksums; {len(model.weights)} tensors, {nbytes / 1e6:.1f} MB")
    print(f"  graph: right; {len(model.graph.nodes)} nodes, all operators known, all shapes fit")
    example, against = package.example, "the package's example"
    if example is None:
        example, against = Example.random(model, _BATCH), "what the CPU makes in float32 of random inputs"
    name = options.precision or next((name for name, dtype in PRECISIONS.items() if dtype is package.precision), "fp32")
    precision = PRECISIONS[name]
    tolerance = example.tolerance_in(precision) if options.tolerance is None else options.tolerance
    with Handle(options.device) as handle:
        differences = example.differences(
            for_inference(model, precision, calibration=package.calibration), handle, tolerance
        )
    print(f"  outputs on {options.device} in {name}, beside {against}, batch {example.batch(model.graph)}:")
    for difference in differences:
        print(f"    {difference}")
    if all(difference.is_allowed for difference in differences):
        return 0
    print("  wrong")
    return 1
