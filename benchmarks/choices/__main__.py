"""Measures which algorithm is the fastest, and writes the choices that come with the library.

    DNNCORE_CUBIN_DIR=... DNNCORE_COMMIT=... python -m benchmarks.choices --out FOLDER --minutes 3 --missing
        [--nets resnet50 ...] [--batches 1 8 32 256] [--dtypes float16 float32 ...]

For each problem the four algorithms that are the fastest by estimate are timed in turns, as graphs of calls on rotating operands,
medians; what takes twice as long as another at its first sample is out at once. Problems are those that the nets ask for when they
are served, their convolutions in three directions, and the layers of `benchmarks.layers`. Those come first whose two best estimates
are close to each other, since there they may be in the wrong order; within these the first batches, then the first nets.

Two files are in the folder afterwards, called like the GPU ("h200"):

    choices-h200.jsonl   every problem that was measured, a line each, with estimates: added as they are measured, so that what is
                         broken off loses none. `--missing` goes on where it ended: it leaves out what the file has with the same
                         kernels and the same algorithms to choose from. Copy it into the folder first.
    h200.jsonl           the problems in which what the estimate takes first takes more than 3 % longer than the fastest, as
                         dnncore/cuda/choices has them, and how often the estimate was right. `DNNCORE_CHOICES=.../h200.jsonl`
                         tries it without installing it.

Nothing else is needed than a GPU, the kernels that `make kernels` has built (or nvcc) and NumPy. Choices that are there already,
shipped or of the environment, have no say. A dry run computes tiny layers, two calls a graph and one round, on the emulated driver
or the CPU; it shows that all of it runs, and writes dry-run-choices.jsonl alone:

    python -m benchmarks.choices --dry-run --device cpu --out /tmp/dry --nets lenet --batches 1
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.choices.problems import anchors, of_net
from benchmarks.choices.record import MARGIN, Measured, Record
from benchmarks.choices.trial import Trials
from benchmarks.compiling import units_of
from benchmarks.environment import environment
from benchmarks.kernels.precision import PRECISIONS
from benchmarks.net_layers import NETS
from dnncore import Handle, Preference
from dnncore.backend import Offer
from dnncore.cuda.runtime import jit
from dnncore.cuda.unit import Unit
from dnncore.errors import BackendUnavailableError, DeviceFaultError, DnncoreError
from dnncore.figures import CPU, GPUS, H200
from dnncore.measured import MeasuredChoices, file_text, names_digest, problem_text
from dnncore.nn.zoo import ZOO
from dnncore.plan import rank
from dnncore.problems import Problem

__all__ = ["main"]

_DTYPES = {("tf32" if name == "tf32" else one.dtype.value): one for name, one in PRECISIONS.items()}
_CANDIDATES = 4
_WITHIN = 3.0
"""Times the best estimate: what is estimated to take longer than that is not measured."""

_MOST_TOLD = 20
"""Failures that are told at the end."""

_MOST_PLAIN_MACS = 10**11
"""As in `benchmarks.contest`: on larger problems the plain kernel takes seconds."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.choices", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--nets", nargs="*", default=NETS, choices=sorted(ZOO), help="in this order")
    parser.add_argument("--batches", nargs="+", type=int, default=(32, 1, 256, 8), help="in this order")
    parser.add_argument("--dtypes", nargs="+", choices=_DTYPES, default=("float16", "float32"), help="in this order")
    parser.add_argument("--minutes", type=float, help="begin nothing after so many, and say what was not measured")
    parser.add_argument("--missing", action="store_true", help="only what the file does not have of these kernels")
    parser.add_argument(
        "--close",
        type=float,
        default=1.4,
        metavar="RATIO",
        help="of two estimates that come first (default: %(default)s)",
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny problems; writes dry-run-choices.jsonl alone")
    return parser


@dataclass(frozen=True)
class _Question:
    """A problem with the algorithms of which one is the fastest. Immutable.

    Args:
        problem: What is solved.
        algorithms: Digest of the names of all that there are.
        offers: Of those that are measured, by name, the fastest by estimate first.
    """

    problem: Problem
    algorithms: str
    offers: dict[str, Offer]

    def is_close(self, ratio: float) -> bool:
        """Whether the two best estimates are."""
        first, second, *_ = self.offers.values()
        return second.seconds <= ratio * first.seconds


def _questions(options: argparse.Namespace, handle: Handle) -> Iterator[_Question]:
    """What is asked for, in order of importance but for how close estimates are."""
    device, precisions = handle.device, [_DTYPES[name] for name in options.dtypes]
    figures = H200 if device.figures is CPU else device.figures  # nets are lowered for GPUs alone
    nets = [of_net(net, precisions, figures) for net in options.nets]
    of_nets = (problem for batch in options.batches for of_batch in nets for problem in of_batch(batch))
    found = dict.fromkeys([*of_nets, *anchors(precisions, shrunken=options.dry_run)])
    for problem in found:
        ranked = rank(problem, device, Preference.PREFER_FASTEST)
        offers = {one.name: one.offer for one in ranked if one.status is None and one.offer is not None}
        if problem.macs > _MOST_PLAIN_MACS:
            offers.pop("direct", None)
        best = min(offer.seconds for offer in offers.values())
        near = {name: offer for name, offer in offers.items() if offer.seconds <= _WITHIN * best}
        if len(near) > 1:
            digest = names_digest(one.name for one in device.algorithms(problem))
            yield _Question(problem, digest, dict(list(near.items())[:_CANDIDATES]))


def _kernels(offers: Sequence[Offer], architecture: str) -> str:
    """Digest of what offers would launch: what it is compiled from."""
    if architecture == "cpu":
        return "none"
    digest = hashlib.sha256()
    for offer in offers:
        for unit in units_of(offer.prepare()):
            digest.update(f"{_key(unit, architecture)} {unit.entry}\n".encode())
    return digest.hexdigest()[:12]


@functools.cache
def _key(unit: Unit, architecture: str) -> str:
    return jit.prebuilt_key(unit, architecture)


class _Run:
    """One call of the command. Owned by one thread."""

    def __init__(
        self, options: argparse.Namespace, handle: Handle, trials: Trials, record: Record, commit: str | None
    ) -> None:
        self._options = options
        self._handle = handle
        self._record = record
        self._commit = commit
        self._trials = trials
        self._failed: list[str] = []
        self._begun = time.monotonic()

    @property
    def _is_over(self) -> bool:
        minutes = self._options.minutes
        return minutes is not None and time.monotonic() - self._begun >= 60 * minutes

    def measure(self) -> int:
        """Measure what is due, as long as there is time; what the program is to exit with."""
        questions = list(_questions(self._options, self._handle))
        questions.sort(key=lambda one: not one.is_close(self._options.close))
        close = sum(one.is_close(self._options.close) for one in questions)
        print(
            f"{len(questions)} problems, {close} of them close, after {time.monotonic() - self._begun:.1f} s",
            flush=True,
        )
        measured = there = 0
        for place, question in enumerate(questions):
            if self._is_over:
                print(f"time is over; {len(questions) - place} not looked at. --missing goes on with them.")
                break
            text, kernels = problem_text(question.problem), self._kernels_of(question)
            if self._options.missing and self._record.has(text, question.algorithms, kernels):
                there += 1
            else:
                measured += self._measure(question, text, kernels)
        print(f"{measured} measured, {there} were there, after {time.monotonic() - self._begun:.1f} s")
        for failure in self._failed[:_MOST_TOLD]:
            print(f"FAILED {failure}")
        if self._failed[_MOST_TOLD:]:
            print(f"FAILED {len(self._failed) - _MOST_TOLD} more")
        return 1 if self._failed else 0

    def _kernels_of(self, question: _Question) -> str:
        return _kernels(tuple(question.offers.values()), self._handle.device.figures.architecture)

    def _measure(self, question: _Question, text: str, kernels: str) -> bool:
        estimates = {name: offer.seconds for name, offer in question.offers.items()}
        try:
            seconds = self._trials.seconds(question.problem, tuple(estimates), min(estimates.values()))
        except (DeviceFaultError, BackendUnavailableError):
            raise  # nothing more can be measured
        except DnncoreError as error:
            self._failed.append(f"{text}: {type(error).__name__}: {error}")
            return False
        found = Measured(text, question.algorithms, kernels, self._commit, _us(estimates), _us(seconds))
        if not found.us:
            self._failed.append(f"{text}: none of {', '.join(estimates)} could be run")
            return False
        self._record.add(found)
        if found.loss > MARGIN:
            print(f"{found.loss:5.2f}  {dict(found.us)}, estimated {dict(found.estimated_us)}  {text}", flush=True)
        return True


def _us(seconds: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value * 1e6:.4g}") for name, value in seconds.items()}


def _conclude(record: Record, path: Path, handle: Handle) -> None:
    """Write the file of choices, and say what it comes to."""
    where = handle.info.model, handle.device.figures.architecture
    choices = [one.choice(*where) for one in record.wrong()]
    path.write_text(file_text(choices, record.facts()), encoding="utf-8")
    facts, losses = record.facts(), record.losses
    mean = statistics.geometric_mean(losses) if losses else 1.0
    print(
        f"{path}: {len(choices)} choices; of {facts['measured']} problems the estimate was right in {facts['estimate_was_right']}, "
        f"and what it takes takes {mean:.3f} times the fastest"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for; 1 where something failed."""
    options = _parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        # An empty database: what is measured are the algorithms as they are estimated, not as they were measured before.
        with Handle(options.device, choices=MeasuredChoices()) as handle:
            found = environment()
            if not options.dry_run and not found["gpus"]:
                raise BackendUnavailableError(
                    f"nvidia-smi shows no GPU, so there is nothing to measure on {options.device}; --dry-run runs all the same"
                )
            name = next((name for name, known in GPUS.items() if known == handle.device.figures), "gpu")
            file = "dry-run-choices.jsonl" if options.dry_run else f"choices-{name}.jsonl"
            record = Record(options.out / file, handle.info.model)
            try:
                with closing(Trials(handle, is_dry=options.dry_run)) as trials:
                    return _Run(options, handle, trials, record, found["commit"]).measure()
            finally:
                record.close()
                if not options.dry_run:
                    _conclude(record, options.out / f"{name}.jsonl", handle)
    except DnncoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
