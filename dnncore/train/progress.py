"""What a person sees while a net trains: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

__all__ = ["Progress", "Report"]

_REDRAW_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Report:
    """The speed of a stretch of training. Immutable.

    Args:
        images_per_second: Images trained on in a second.
        data_wait: Fraction of the time in which the loop waited for the loader: near 0 the device is the limit, near 1 the data.
        eta_s: Seconds to the end at this speed.
    """

    images_per_second: float
    data_wait: float
    eta_s: float


class Progress:
    """Measures the loop's speed and shows it. Owned by one thread.

    Args:
        stream: Where to.
        iterations: Length of the run.
        first: Iteration that it starts from; greater than 0 when it was resumed.
        report_every: Iterations between lines where the stream is not a terminal.
        clock: Monotonic seconds.
    """

    def __init__(
        self, stream: TextIO, iterations: int, first: int, report_every: int, clock: Callable[[], float]
    ) -> None:
        self._stream = stream
        self._iterations = iterations
        self._report_every = report_every
        self._clock = clock
        self._terminal = stream.isatty()
        self._started = self._drawn = clock()
        self._first = first
        self._images = 0
        self._waited = 0.0
        self._paused = 0.0
        self._width = 0

    def step(self, iteration: int, epoch: int, images: int, waited_s: float, lr: float, loss: float) -> Report:
        """Take note of one iteration, and show it if it is time to.

        Args:
            iteration: Iterations done.
            epoch: The running epoch, from 1.
            images: Images of this iteration.
            waited_s: Seconds that it waited for them.
            lr: Its learning rate.
            loss: Its mean loss.
        """
        now = self._clock()
        self._images += images
        self._waited += waited_s
        elapsed = max(now - self._started - self._paused, 1e-9)
        remaining = (self._iterations - iteration) * elapsed / max(iteration - self._first, 1)
        report = Report(self._images / elapsed, min(self._waited / elapsed, 1.0), remaining)
        is_last = iteration == self._iterations
        if self._terminal:
            if is_last or now - self._drawn >= _REDRAW_SECONDS:
                self._drawn = now
                self._rewrite(self._text(iteration, epoch, lr, loss, report))
        elif is_last or iteration % self._report_every == 0:
            self.line(self._text(iteration, epoch, lr, loss, report))
        return report

    def exclude(self, seconds: float) -> None:
        """Take time out of the measurement: evaluations and checkpoints are not training speed."""
        self._paused += seconds

    def line(self, text: str) -> None:
        """Show a line that stays."""
        if self._width:
            self._rewrite("")
            self._stream.write("\r")
            self._width = 0
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """End a line that was being rewritten."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0

    def _text(self, iteration: int, epoch: int, lr: float, loss: float, report: Report) -> str:
        bar = ""
        if self._terminal:
            filled = 20 * iteration // max(self._iterations, 1)
            bar = f"[{'#' * filled}{'.' * (20 - filled)}] "
        return (
            f"{bar}epoch {epoch}  iteration {iteration}/{self._iterations}  loss {loss:.4f}  lr {lr:.3g}  "
            f"{report.images_per_second:.0f} img/s  data wait {report.data_wait:.0%}  ETA {_duration(report.eta_s)}"
        )

    def _rewrite(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
