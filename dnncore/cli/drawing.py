"""`dnncore draw`: a picture of a net."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

from dnncore.cli.arguments import PRECISIONS, add_model, calibration_of, model_of, normalization_of
from dnncore.cli.describing import add_pass_arguments, wants_passes
from dnncore.errors import BackendUnavailableError, ConfigError
from dnncore.nn.drawing import to_dot
from dnncore.nn.passes import for_inference

__all__ = ["add_command"]

_SUFFIXES = (".dot", ".svg", ".png", ".pdf")
_MAX_SECONDS = 300


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Put the command beside the others."""
    parser = commands.add_parser("draw", help="a picture of a net, made by graphviz")
    add_model(parser)
    parser.add_argument(
        "-o", "--out", required=True, type=Path, metavar="FILE", help=f"the picture: {', '.join(_SUFFIXES)}"
    )
    add_pass_arguments(parser)
    parser.set_defaults(run=_draw)


def _draw(options: argparse.Namespace) -> int:
    if options.out.suffix not in _SUFFIXES:
        raise ConfigError(f"{options.out} has none of the suffixes {', '.join(_SUFFIXES)}")
    is_run = wants_passes(options)
    model = model_of(options)
    if is_run:
        known = calibration_of(options), normalization_of(options), options.rank
        model = for_inference(model, PRECISIONS[options.precision], options.without, *known)
    text = to_dot(model.graph).encode()
    options.out.write_bytes(text if options.out.suffix == ".dot" else _rendered(text, options.out))
    print(f"{options.out}: {len(model.graph.nodes)} nodes")
    return 0


def _rendered(text: bytes, out: Path) -> bytes:
    """What graphviz makes of it.

    Raises:
        BackendUnavailableError: graphviz is not there.
        ConfigError: it did not make a picture.
    """
    program = shutil.which("dot")
    if program is None:
        raise BackendUnavailableError(
            f"{out} is drawn by the program dot, which is not there: install graphviz, or write "
            f"{out.with_suffix('.dot')}, which needs nothing"
        )
    try:
        ran = subprocess.run(
            [program, f"-T{out.suffix[1:]}"], input=text, capture_output=True, timeout=_MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"dot took more than {_MAX_SECONDS} s for {out}") from error
    if ran.returncode:
        raise ConfigError(f"dot made no {out}: {ran.stderr.decode(errors='replace').strip()}")
    return ran.stdout
