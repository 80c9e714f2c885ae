"""`dnncore describe`: what a net computes, what each pass makes of it, and what it takes."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dnncore.cli.arguments import PRECISIONS, add_model, calibration_of, model_of, normalization_of
from dnncore.dtypes import DType
from dnncore.errors import ConfigError
from dnncore.figures import GPUS
from dnncore.handle import Handle
from dnncore.nn.estimate import estimate
from dnncore.nn.footprint import footprint
from dnncore.nn.graph import Graph
from dnncore.nn.model import Model
from dnncore.nn.passes import CHOICES, REGISTRY, applied_passes, for_inference
from dnncore.nn.placement import place

__all__ = ["add_command", "add_memory_arguments", "add_pass_arguments", "summary", "wants_passes"]

_BATCHES = (1, 8, 32, 256)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Put the command beside the others."""
    parser = commands.add_parser("describe", help="what a net computes, reads and gives, and the memory that it takes")
    add_model(parser)
    add_pass_arguments(parser)
    add_memory_arguments(parser)
    parser.set_defaults(run=_describe)


def add_memory_arguments(parser: argparse.ArgumentParser) -> None:
    """--device, on which the net's memory is counted."""
    parser.add_argument(
        "--device",
        help='where memory is counted, with the scratch memory that its algorithms take: "cpu", "cuda:0", ...; '
        f"{', '.join(GPUS)}: estimated; without it, of values alone",
    )


def add_pass_arguments(parser: argparse.ArgumentParser) -> None:
    """--passes, and which of them."""
    parser.add_argument("--passes", action="store_true", help="the net as it is run: folded, fused")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=CHOICES,
        metavar="PASS",
        help=f"leave a pass out, one of {', '.join(CHOICES)}",
    )
    parser.add_argument("--precision", choices=PRECISIONS, help="that passes make (default: fp32)")
    parser.add_argument(
        "--pixels", action="store_true", help="the net as it reads pixels: its package says what they become"
    )
    parser.add_argument("--rank", type=int, metavar="K", help="the net as it ranks its K most probable classes too")


def wants_passes(options: argparse.Namespace) -> bool:
    """Whether the net is wanted as it is run; its precision is settled then.

    Raises:
        ConfigError: it is not, and yet something is said of passes.
    """
    says = options.without or options.precision is not None or options.pixels or options.rank is not None
    if says and not options.passes:
        raise ConfigError("--precision, --pixels, --rank and --without say what passes do; give --passes too")
    options.precision = options.precision or "fp32"
    return bool(options.passes)


def _describe(options: argparse.Namespace) -> int:
    is_run = wants_passes(options)
    model = model_of(options)
    if not is_run:
        print(model.graph.describe())
        print(summary(model, options.device))
        return 0
    changed = model
    known = calibration_of(options), normalization_of(options), options.rank
    for name, behind in applied_passes(model, PRECISIONS[options.precision], options.without, *known):
        print(f"  pass    {name}: {_change(changed, behind)}{_moves(name, changed, behind)}")
        changed = behind
    for name in options.without:
        print(f"  pass    {name}: left out")
    print(changed.graph.describe())
    print(summary(model, options.device))
    return 0


def _change(before: Model, after: Model) -> str:
    """What a pass did: numbers of nodes, kinds that are fewer and more, and layouts."""
    few, many = (Counter(node.operator.kind for node in model.graph.nodes) for model in (after, before))
    kinds = [f"-{count} {kind}" for kind, count in sorted((many - few).items())]
    kinds += [f"+{count} {kind}" for kind, count in sorted((few - many).items())]
    text = f"{len(before.graph.nodes)} nodes -> {len(after.graph.nodes)}"
    if kinds:
        text += f" ({', '.join(kinds)})"
    if laid := len(after.graph.layouts) - len(before.graph.layouts):
        text += f", {laid} tensors lie channels-last"
    return text


def _moves(name: str, before: Model, after: Model) -> str:
    """How far outputs may move by a pass; nothing where it left all as it was."""
    weights = before.weights
    if after.graph == before.graph and all(array is weights[one] for one, array in after.weights.items()):
        return ""
    relative = REGISTRY[name].tolerance.relative(before.graph, after.graph)
    return f"; within {relative:.1g} of the largest output" if relative else "; to the bit"


def summary(model: Model, device: str | None = None, batches: Sequence[int] = _BATCHES) -> str:
    """Inputs, outputs, parameters, work, and the memory of batches as they are served.

    Args:
        model: The net.
        device: Where: what an executor takes there, scratch memory included; a name of `GPUS` for what it would take. None for the
            block of the values alone, which is the same everywhere but for scratch memory.
        batches: Numbers of images.

    Raises:
        BadParamError, DeviceNotFoundError, BackendUnavailableError: as `Handle`.
    """
    graph = model.graph
    parameters = sum(constant.spec.size for constant in graph.constants)
    macs = graph.macs()
    where = "values alone" if device is None else f"on {device}"
    lines = [
        *(f"  reads {value}" for value in graph.inputs),
        *(f"  gives {graph.values[name]}" for name in graph.outputs),
        f"  {parameters} parameters",
        f"  {_count(macs, 'MACs')} (multiply-adds) per image, {_count(2 * macs, 'FLOPs')}: convolutions and matrix products",
        f"  {'memory in MB':14}  {'weights':>9}  batches, {where:12}" + "".join(f"{batch:>10}" for batch in batches),
    ]
    with _counting(device) as bytes_of:
        for name, precision in PRECISIONS.items():
            if precision in (DType.BFLOAT16, DType.INT8):  # one takes what fp16 takes, the other needs a calibration
                continue
            served = for_inference(model, precision)
            weights = sum(array.nbytes for array in served.weights.values())
            sizes = "".join(f"{bytes_of(served.graph, batch) / 1e6:>10.1f}" for batch in batches)
            lines.append(f"  {name:14}  {weights / 1e6:>9.1f}  {'':21}{sizes}")
    if device is None:
        lines.append(
            f"  without scratch memory of algorithms, which --device counts: cpu, cuda:0, ..., {', '.join(GPUS)}"
        )
    return "\n".join(lines)


@contextmanager
def _counting(device: str | None) -> Iterator[Callable[[Graph, int], int]]:
    """What tells the bytes that a graph's values take for a batch, with scratch memory where there is a device."""
    if device is None:
        yield lambda graph, batch: place(graph, batch).nbytes
    elif device in GPUS:
        yield lambda graph, batch: estimate(graph, GPUS[device], batch).placement.nbytes
    else:
        with Handle(device) as handle:
            yield lambda graph, batch: footprint(graph, handle, batch).values_bytes


def _count(number: int, unit: str) -> str:
    """With the prefix that people use: 4.09 GFLOPs."""
    for factor, prefix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number} {unit}"
