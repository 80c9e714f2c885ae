"""The command line of `dnnclient`: `classify` images, or put `load` on a server. Needs no gRPC to explain itself.

Exit status: 0 when all went well, 1 when a request or an image failed, 2 for a command line that cannot be right.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

__all__ = ["main"]

_DEFAULT_SERVER = "127.0.0.1:8001"
_CLIENT_PACKAGES = frozenset({"google", "grpc"})

_Number = TypeVar("_Number", int, float)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        from dnnclient.commands import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _CLIENT_PACKAGES:
            raise
        print(f"dnnclient: {error.name} is not installed: pip install 'dnncore[client]'", file=sys.stderr)
        return 2
    return run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dnnclient", description="Ask a dnnserve server to classify images.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--server", default=_DEFAULT_SERVER, metavar="HOST:PORT", help="default: %(default)s")
    common.add_argument("--model", required=True, metavar="NAME")
    common.add_argument("--model-version", default="", metavar="V", help="default: the latest")
    common.add_argument("--tls-ca", type=Path, metavar="PEM", help="use TLS, with servers for which these vouch")
    common.add_argument("--tls-cert", type=Path, metavar="PEM", help="this client's certificates, for mutual TLS")
    common.add_argument("--tls-key", type=Path, metavar="PEM", help="the key of the first of them")
    common.add_argument(
        "--priority",
        type=_count,
        default=0,
        metavar="N",
        help="1 is the most important, 8 the least; default: the model's",
    )
    common.add_argument("--token-file", type=Path, metavar="FILE", help="a bearer token, alone in a file")

    classify = commands.add_parser("classify", parents=[common], help="print the most probable labels of images")
    classify.add_argument(
        "images", nargs="+", type=Path, metavar="IMAGE", help="JPEG, PNG, WebP, BMP, GIF or TIFF file"
    )
    classify.add_argument("--top-k", type=_positive(int), default=5, metavar="K", help="labels an image; default: 5")
    classify.add_argument("--timeout", type=_positive(float), default=30.0, metavar="S", help="default: 30 s an image")
    classify.add_argument(
        "--retries", type=_count, default=3, metavar="N", help="of what a busy or absent server refused; default: 3"
    )
    classify.add_argument("--json", action="store_true", help="print one JSON array, an object an image")

    load = commands.add_parser(
        "load",
        parents=[common],
        help="send requests at a rate, or as fast as they are answered, and report",
        description="Latencies and deadlines count from a request's arrival: with --rate that is when it was due by the "
        "schedule, whenever it came to be sent; else when it was sent. Goodput is what was answered within its deadline. "
        "Nothing is sent again.",
    )
    source = load.add_mutually_exclusive_group(required=True)
    source.add_argument("--images", nargs="+", type=Path, metavar="PATH", help="image files, or folders of them")
    source.add_argument("--synthetic", action="store_true", help="random pixels at the model's size")
    pace = load.add_mutually_exclusive_group()
    pace.add_argument(
        "--concurrency", type=_positive(int), default=8, metavar="N", help="closed loop, N at a time; default: 8"
    )
    pace.add_argument("--rate", type=_positive(float), metavar="R", help="open loop, R requests a second")
    load.add_argument("--poisson", action="store_true", help="with --rate: random gaps, as of many users")
    load.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the gaps and of synthetic images; default: 0"
    )
    extent = load.add_mutually_exclusive_group()
    extent.add_argument("--duration", type=_positive(float), default=10.0, metavar="S", help="default: 10 s")
    extent.add_argument("--requests", type=_positive(int), metavar="N", help="send N requests instead")
    load.add_argument("--images-per-request", type=_positive(int), default=1, metavar="N", help="default: 1")
    load.add_argument(
        "--deadline-ms",
        type=_positive_list,
        default=(),
        metavar="MS[,MS...]",
        help="of each request; several take turns",
    )
    load.add_argument(
        "--warmup", type=_positive(float), default=0.0, metavar="S", help="do not count the first S seconds"
    )
    load.add_argument("--channels", type=_positive(int), default=1, metavar="N", help="connections; default: 1")
    load.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=sys.stderr.isatty(),
        help="a line a second on stderr; default: on a terminal",
    )
    load.add_argument("--json", metavar="OUT", help="write the report as JSON too, to a file or - for stdout")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _positive_list(text: str) -> tuple[float, ...]:
    return tuple(_positive(float)(part) for part in text.split(","))


_count.__name__ = "number"  # argparse: "invalid number value: '-1'"
_positive_list.__name__ = "list of positive numbers"


def _positive(kind: Callable[[str], _Number]) -> Callable[[str], _Number]:
    def parse(text: str) -> _Number:
        number = kind(text)
        if not 0 < number < math.inf:
            raise ValueError(text)
        return number

    parse.__name__ = f"positive {getattr(kind, '__name__', kind)}"  # argparse: "invalid positive int value: '0'"
    return parse
