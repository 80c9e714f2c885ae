"""The command `dnncore`: subcommands, messages and exit statuses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dnncore import devices
from dnncore.cli import calibrating, describing, drawing, importing, verifying
from dnncore.cli.arguments import PRECISIONS, calibration_of
from dnncore.errors import ConfigError, DnncoreError
from dnncore.figures import GPUS
from dnncore.handle import Handle
from dnncore.importers.loading import load_model
from dnncore.nn.estimate import estimate
from dnncore.nn.model import Model
from dnncore.nn.passes import for_inference
from dnncore.nn.timing import time_nodes
from dnncore.nn.training import in_training
from dnncore.version import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 1 for what failed, 2 for bad arguments.

    Args:
        arguments: Those after the program's name; None takes sys.argv.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (DnncoreError, OSError) as error:
        print(f"dnncore: {error}", file=sys.stderr)
        return 1


def _time(options: argparse.Namespace) -> int:
    devices.limit_cpu_threads(1)
    model = load_model(options.model, options.weights, phase=options.phase)
    served = None
    if options.precision is not None:
        if options.phase == "train":
            raise ConfigError("--precision times a net as it is served; --phase train is one that is not")
        served = for_inference(model, PRECISIONS[options.precision], calibration=calibration_of(options))
    if options.phase == "train":
        model = Model(in_training(model.graph), model.weights)
    if options.device in GPUS:
        estimated = estimate((served or for_inference(model)).graph, GPUS[options.device], options.batch)
        print(f"{model.graph.name}: batch {options.batch}, as it is served, estimated for {options.device}")
        print(estimated.table())
        return 0
    with Handle(options.device) as handle:
        timing = time_nodes(served or model, handle, options.batch, options.iterations)
    how = "" if served is None else f", as it is served in {options.precision}"
    print(f"{model.graph.name}: batch {options.batch}{how}, {options.iterations} iterations, {options.device}")
    print(timing.table())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dnncore", description="Import nets, and look at them.")
    parser.add_argument("--version", action="version", version=f"dnncore {__version__}")
    commands = parser.add_subparsers(required=True)
    time = commands.add_parser(
        "time", help="what each layer takes, forward and backward, and its algorithm and workspace"
    )
    time.add_argument(
        "--model", required=True, type=Path, help="a model package, an .onnx file, a .prototxt, or a name of the zoo"
    )
    time.add_argument("--weights", type=Path, help="a .caffemodel; without one, those that fillers make")
    time.add_argument(
        "--device", default="cpu", help=f'"cpu", "cuda:0", ... (default: cpu); {", ".join(GPUS)}: estimated'
    )
    time.add_argument("--batch", type=int, default=1, help="number of images (default: 1)")
    time.add_argument("--iterations", type=int, default=50, help="how often each layer runs (default: 50)")
    time.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of the net as it is served, folded and fused; without it, layer by layer as it is",
    )
    time.add_argument(
        "--phase",
        choices=("test", "train"),
        default="test",
        help="statistics, dropout and layers of a prototxt as in this phase (default: test)",
    )
    time.set_defaults(run=_time)
    for command in (importing, calibrating, verifying, describing, drawing):
        command.add_command(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
