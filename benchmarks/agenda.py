"""What is to be measured, in order of importance, within the minutes that there are."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.comparison import release
from benchmarks.contest import Contest, Wrong
from benchmarks.document import Document
from benchmarks.measurement import Measurement
from dnncore.errors import DeviceFaultError, DnncoreError

__all__ = ["Agenda"]

_MOST_NAMES = 40


class Agenda:
    """Measures what it is given, in that order, until the minutes are over. Owned by one thread.

    A row goes into its file as soon as it is there, so that what is broken off loses one at most.

    Args:
        contest: What measures.
        minutes: From now on; None for as long as it takes.
        is_missing_only: Leave out what the file has of this commit already.
        clock: Seconds, of any beginning.
    """

    def __init__(
        self,
        contest: Contest,
        minutes: float | None,
        *,
        is_missing_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contest = contest
        self._clock = clock
        self._end = None if minutes is None else clock() + 60 * minutes
        self._is_missing_only = is_missing_only
        self._not_run: list[str] = []
        self._failed: list[str] = []
        self._ratios: dict[str, dict[str, float]] = {}

    @property
    def is_over(self) -> bool:
        """Whether the minutes are."""
        return self._end is not None and self._clock() >= self._end

    def due(self, document: Document, measurements: Iterable[Measurement]) -> list[Measurement]:
        """Those that are to be measured, were there time."""
        return [one for one in measurements if not (self._is_missing_only and document.has(one.row))]

    def measure(self, document: Document, measurements: Iterable[Measurement], what: str) -> None:
        """Measure one after the other, as long as there is time.

        Args:
            document: Where the rows go.
            measurements: Those that matter most first.
            what: What to call them where they are not run.
        """
        for one in measurements:
            if self.is_over:
                self._not_run.append(f"{what} {one.name}")
            else:
                self._measure(document, one, what)

    def _measure(self, document: Document, one: Measurement, what: str) -> None:
        started = self._clock()
        try:
            rows = self._contest.rows(one)
        except DeviceFaultError:
            raise  # nothing more can be measured
        except (Wrong, DnncoreError, RuntimeError) as error:  # RuntimeError is what PyTorch raises, out of memory too
            self._failed.append(f"{what} {one.name}: {type(error).__name__}: {error}")
            print(f"FAILED {self._failed[-1]}", flush=True)
            self._contest.handle.synchronize()  # which raises where the device is lost to everything else too
            return
        finally:
            release()
        document.add(rows)
        if rows and rows[0][f"of_{one.peer}"] is not None:
            ratios = self._ratios.setdefault(f"{what} {rows[0].get('direction', '')}".rstrip(), {})
            ratios[f"{one.name} {rows[0].get('batch', '')}".rstrip()] = rows[0][f"of_{one.peer}"]
        for row in rows:
            print(_line(row, one.peer, self._clock() - started), flush=True)

    def close(self) -> int:
        """Say what it comes to, what failed and what was not run; what the program is to exit with."""
        for what, ratios in self._ratios.items():
            slower = sorted((ratio, name) for name, ratio in ratios.items() if ratio < 1)
            behind = ", ".join(f"{name} {ratio:.2f}" for ratio, name in slower[:_MOST_NAMES])
            mean = statistics.geometric_mean(ratios.values())
            print(f"{what}: geometric mean {mean:.2f} of {len(ratios)}; behind: {behind or 'none'}")
        if self._not_run:
            rest = len(self._not_run) - _MOST_NAMES
            print(
                f"time is over; not run: {len(self._not_run)} ({'; '.join(self._not_run[:_MOST_NAMES])}"
                f"{f'; and {rest} more' if rest > 0 else ''}). --missing goes on with them."
            )
        for failure in self._failed:
            print(f"FAILED {failure}")
        return 1 if self._failed else 0


def _line(row: dict[str, Any], peer: str, seconds: float) -> str:
    """A row to read: microseconds from memory and from the cache, rates and ratios."""
    who = " ".join(str(row[key]) for key in ("name", "layer", "batch", "direction") if key in row)
    rates = f"{row['tflops']:7.1f} TFLOP/s " if "tflops" in row else ""
    theirs = row[f"{peer}_ms"]
    ratios = "" if theirs is None else (
        f" {peer} {theirs * 1e3:9.2f} = {row[f'of_{peer}']:.2f} (warm {row[f'of_{peer}_warm']:.2f}; {row[peer]})"
    )  # fmt: skip
    return (
        f"{who:48s} {row['ms'] * 1e3:9.2f} us (warm {row['ms_warm'] * 1e3:.2f}) {rates}{row['tbps']:5.2f} TB/s"
        f"{ratios} error {row['relative_error']} [{row['algorithm']}] {seconds:.1f} s"
    )
