from __future__ import annotations

import io

from dnncore.train.progress import Progress


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_come_every_so_many_iterations_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, 25, 0, 10, clock)
    for iteration in range(1, 26):
        clock.now += 0.5
        progress.step(iteration, 1, 20, 0.1, 0.01, 2.5)
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["iteration 10/25", "iteration 20/25", "iteration 25/25"]
    assert lines[0] == "epoch 1  iteration 10/25  loss 2.5000  lr 0.01  40 img/s  data wait 20%  ETA 0:08"
    assert "\r" not in stream.getvalue()


def test_eta_of_a_resumed_run_counts_from_where_it_resumed() -> None:
    clock = Clock()
    progress = Progress(io.StringIO(), 100, 90, 10, clock)
    clock.now += 2
    assert progress.step(91, 1, 8, 0.0, 0.1, 1.0).eta_s == 18


def test_time_of_evaluations_does_not_count_as_training() -> None:
    clock = Clock()
    progress = Progress(io.StringIO(), 100, 0, 10, clock)
    clock.now += 11
    progress.exclude(10.0)
    assert progress.step(1, 1, 32, 0.5, 0.1, 1.0).images_per_second == 32


def test_a_terminal_has_one_line_that_is_rewritten_not_too_often() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, 1000, 0, 1, clock)
    for iteration in range(1, 11):
        clock.now += 0.03
        progress.step(iteration, 1, 1, 0.0, 0.1, 1.0)
    assert stream.getvalue().count("iteration") == 2
    assert "\n" not in stream.getvalue()
    progress.line("epoch 1 is over")
    assert stream.getvalue().endswith(" \repoch 1 is over\n")
    progress.close()
    assert stream.getvalue().endswith("epoch 1 is over\n")
