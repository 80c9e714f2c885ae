"""A run of a benchmark of kernels: its command line, the device, the files that rows go into."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.agenda import Agenda
from benchmarks.ceilings import Ceilings
from benchmarks.comparison import DEFAULT_STREAM
from benchmarks.compiling import compile_all
from benchmarks.contest import Contest
from benchmarks.document import Document
from benchmarks.measurement import Measurement
from benchmarks.operands import is_beside_torch
from benchmarks.race import METHOD
from benchmarks.torch_graphs import Search
from dnncore import Handle
from dnncore.errors import BadParamError, DnncoreError

__all__ = ["Group", "Session", "add_arguments", "opened"]


class Group(NamedTuple):
    """Rows of one file.

    Args:
        file: Its name, without the ending.
        keys: Fields that tell its rows apart.
        facts: What holds for all of them.
        measurements: Those that matter most first.
    """

    file: str
    keys: Sequence[str]
    facts: dict[str, str]
    measurements: Sequence[Measurement]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What all benchmarks of kernels take."""
    parser.add_argument("--out", type=Path, required=True, help="folder of the JSON files")
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, help="begin nothing after so many, and say what was not run")
    parser.add_argument("--missing", action="store_true", help="only what the files do not have of this commit")
    parser.add_argument(
        "--algorithms", default="", help="only ours whose name contains one of these, with commas between"
    )
    parser.add_argument(
        "--all", action="store_true", help="all of our algorithms, not only the one that would be chosen"
    )
    parser.add_argument(
        "--searches", type=int, default=2, help="of cuDNN's, of images as ours lie (default: %(default)s)"
    )
    parser.add_argument("--search-seconds", type=float, default=5.0, help="what one may take (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31, help="of the inputs (default: the clock's)")
    parser.add_argument("--dry-run", action="store_true", help="tiny problems, ours alone; files are called dry-run-*")


@dataclass
class Session:
    """Owned by one thread.

    Args:
        contest: What measures.
        agenda: What there is time for.
        out: Folder of the files.
        is_dry: Whether equal problems are measured once: shrunken ones often are.
    """

    contest: Contest
    agenda: Agenda
    out: Path
    is_dry: bool

    def measure(self, group: Group) -> None:
        """Measure what is due of a group, its kernels compiled first."""
        dry = {"dry_run": "yes"} if self.is_dry else {}
        file = self.out / f"{'dry-run-' if self.is_dry else ''}{group.file}.json"
        document = Document(file, group.keys, **group.facts, method=METHOD, **dry)
        if document.dropped:
            print(
                f"{file}: {document.dropped} rows of another machine, version or method give way to the first row",
                flush=True,
            )
        due = self.agenda.due(document, group.measurements)
        if self.is_dry:
            due = list({one.problem: one for one in due}.values())
        elif not self.agenda.is_over:
            self._compile(due, group.file)
        self.agenda.measure(document, due, group.file)

    def _compile(self, due: Sequence[Measurement], what: str) -> None:
        """What cannot be planned or compiled fails again where it is measured, and its row says why."""
        started, plans = time.perf_counter(), []
        for one in due:
            with suppress(DnncoreError):
                plans += self.contest.plans(one)
        try:
            said = f"{compile_all(self.contest.handle, plans)} kernels are there"
        except DnncoreError as error:
            said = f"not all kernels are there: {error}"
        print(f"{what}: {said}, after {time.perf_counter() - started:.1f} s", flush=True)

    def close(self) -> int:
        """Say what failed and what was not run; what the program is to exit with."""
        if self.contest.ceilings is not None:
            print(f"ceilings: {self.contest.ceilings}")
        return self.agenda.close()


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[Session]:
    """Begin a run.

    Raises:
        BadParamError: PyTorch is not on the device; a dry run needs none.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # a capture of PyTorch's collects garbage, of which none is among what was imported
    beside = torch.cuda.is_available() and options.device != "cpu"
    if options.dry_run == beside:
        raise BadParamError(
            f"PyTorch has a GPU: {options.device} is measured, and not by a dry run; --device cpu runs one"
            if beside
            else f"PyTorch {torch.__version__} has no GPU, so there is nothing to measure {options.device} beside; --dry-run"
        )
    if beside and options.device != "cuda:0":
        raise BadParamError(
            f"PyTorch computes on the first GPU here, so that {options.device} has nothing beside it; cuda:0"
        )
    with Handle(options.device, stream=DEFAULT_STREAM if beside else None) as handle:
        assert is_beside_torch(handle) == beside
        contest = Contest(
            handle,
            Search(options.searches, options.search_seconds),
            options.algorithms,
            None if options.all or options.algorithms else 1,
            options.dry_run,
            Ceilings(handle.record_event) if beside else None,
            options.seed,
        )
        agenda = Agenda(contest, options.minutes, is_missing_only=options.missing)
        yield Session(contest, agenda, options.out, options.dry_run)
