"""The command `dnntrain`: arguments, messages and exit statuses around dnncore.train.run."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from dnncore import devices
from dnncore.errors import ConfigError, DnncoreError
from dnncore.train.config import Config, load_config
from dnncore.train.evaluate import Evaluation
from dnncore.train.run import Outcome, dry_run, evaluate_package, train
from dnncore.train.solver import Ending
from dnncore.version import __version__

__all__ = ["main"]

_EPILOG = """\
exit status: 0 done; 1 training failed; 2 bad arguments or configuration; 130 stopped by SIGINT, 143 by SIGTERM, both after
writing a checkpoint that --resume goes on from
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status.

    Args:
        arguments: Those after the program's name; None takes sys.argv.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_intermixed_args(arguments)  # options between overrides, too
    try:
        devices.limit_cpu_threads(1)
        config = load_config(options.config, options.override)
        return _run(config, options, arguments)
    except (DnncoreError, OSError) as error:  # an OSError names its file: a full disk, a folder that may not be written
        print(f"dnntrain: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("dnntrain: interrupted at once; what no checkpoint holds is lost", file=sys.stderr)
        return 130


def _run(config: Config, options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if options.evaluate is not None:
        _print_evaluation(evaluate_package(config, options.evaluate, sys.stdout))
        return 0
    print(config.to_toml(), flush=True)
    if options.dry_run:
        dry_run(config, sys.stdout)
        return 0
    return _conclude(train(config, sys.stdout, resume=options.resume, fresh=options.fresh), arguments)


def _conclude(outcome: Outcome, arguments: Sequence[str]) -> int:
    if outcome.evaluation is not None:
        _print_evaluation(outcome.evaluation)
        print(f"package: {outcome.package}")
        return 0
    kept = [argument for argument in arguments if argument not in ("--resume", "--fresh")]
    if outcome.ending is Ending.STOPPED:
        kept = [argument for argument in kept if not argument.startswith("training.stop_after=")] + [
            "training.stop_after=0"
        ]
    by = outcome.signal.name if outcome.signal else "training.stop_after"
    print(
        f"stopped by {by} after iteration {outcome.iteration}; checkpoint {outcome.checkpoint}; "
        f"go on with: dnntrain {shlex.join([*kept, '--resume'])}"
    )
    return 128 + outcome.signal if outcome.signal else 0


def _print_evaluation(evaluation: Evaluation) -> None:
    print(evaluation.table())
    print(
        f"held out: {evaluation.num_images} images  top-1 {evaluation.top1:.2%}  top-5 {evaluation.top5:.2%}  "
        f"loss {evaluation.loss:.4f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dnntrain",
        description="Train a net and export it as a model package that dnnserve serves.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG.toml", type=Path, help="what to train; every value has a default")
    parser.add_argument(
        "override", metavar="key.path=value", nargs="*", help="for example optimizer.lr=0.1 output.run=runs/a"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint of output.run")
    parser.add_argument("--fresh", action="store_true", help="remove the checkpoints of output.run and start again")
    parser.add_argument(
        "--evaluate", metavar="PACKAGE", type=Path, help="evaluate a package on the held-out images, and stop"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="one batch of training and of evaluation; writes nothing"
    )
    parser.add_argument("--version", action="version", version=f"dnntrain {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
