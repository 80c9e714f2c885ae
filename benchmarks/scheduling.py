"""Goodput of the server's scheduling policy under overload, simulated: the real policy, a virtual clock and made-up devices.

Goodput is what is answered within its deadline, in percent of what the device can do with full batches. The lines "blind" are the
same device without deadlines in the queue, first come first served, which is what servers do that schedule by none.

    python -m benchmarks.scheduling

With the access log of a server (`--access-log --log-format json`) it replays what came there, on a device like this:

    python -m benchmarks.scheduling --trace traffic.jsonl --speed 2 --batch-ms 1.2 --row-ms 0.05 --max-batch-rows 128
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dnnserve.engine.buckets import batch_buckets
from dnnserve.envelope import ModelKey
from dnnserve.scheduling.entry import Limits

from benchmarks.simulator import SECOND_NS, Arrival, Device, Outcome, Simulation, linear, poisson
from benchmarks.trace import read_trace

_LOADS = (0.5, 0.95, 1.1, 1.5, 3.0)
_DEADLINES_MS = ((15.0,), (50.0,), (100.0,), (15.0, 50.0, 100.0))
_MODEL, _OTHER = ModelKey("model", 1), ModelKey("other", 1)


@dataclass(frozen=True, slots=True)
class Machine:
    """A made-up device: a batch of n rows takes base + n * row milliseconds. Immutable."""

    base_ms: float
    row_ms: float
    max_batch_rows: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        """Its capacity, with full batches."""
        return self.max_batch_rows / self.batch_ms(self.max_batch_rows) * 1e3

    def batch_ms(self, rows: int) -> float:
        """What a batch takes."""
        return self.base_ms + self.row_ms * rows

    def simulation(
        self, jitter: float, devices: int, *, blind: bool = False, models: Sequence[ModelKey] = (_MODEL, _OTHER)
    ) -> Simulation:
        """Devices of this kind, timed at warm-up."""
        timings_ns = {rows: int(self.batch_ms(rows) * 1e6) for rows in batch_buckets(self.max_batch_rows)}
        names = [f"device {index}" for index in range(devices)]
        return Simulation(
            [Device(name, linear(self.base_ms, self.row_ms, jitter, index)) for index, name in enumerate(names)],
            {model: Limits(self.max_batch_rows, 1_000_000) for model in models},
            {name: dict.fromkeys(models, timings_ns) for name in names},
            blind=blind,
        )


_MACHINES = (Machine(4.0, 2.0, 8, 30.0), Machine(1.2, 0.05, 128, 3.0))
"""20 ms for a batch of 8, and 7.6 ms for one of 128."""


@dataclass(slots=True)
class Tally:
    """What became of the requests. Owned by one thread; not checked.

    Args:
        until_ns: What is answered later is not counted as good: a queue that is emptied after the last arrival adds no goodput.
    """

    until_ns: float = float("inf")
    in_time: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    latencies_ns: list[int] = field(default_factory=list)
    last_bad_ns: int = 0

    def record(self, outcome: Outcome) -> None:
        """Count one."""
        self.in_time += outcome.good and outcome.end_ns <= self.until_ns
        self.ends["late" if outcome.late else "good" if outcome.good else outcome.end] += 1
        if outcome.end == "answered":
            self.latencies_ns.append(outcome.latency_ns)
        if not outcome.good:
            self.last_bad_ns = max(self.last_bad_ns, outcome.arrival.at_ns)

    def percent(self, end: str) -> float:
        """Part of all requests."""
        return 100 * self.ends[end] / max(1, self.ends.total())

    def quantile_ms(self, quantile: float) -> float:
        """Of the time to the answer."""
        ordered = sorted(self.latencies_ns)
        return ordered[int(quantile * (len(ordered) - 1))] / 1e6 if ordered else 0.0


def overload(
    machine: Machine, load: float, deadlines_ms: tuple[float, ...], jitter: float, devices: int, *, blind: bool
) -> str:
    """One line of the table."""
    tally, simulation = Tally(machine.seconds * SECOND_NS), machine.simulation(jitter, devices, blind=blind)
    capacity = machine.rows_per_s * devices
    started = time.process_time()
    simulation.run(poisson(_MODEL, capacity * load, machine.seconds, deadlines_ms), tally.record)
    spent = time.process_time() - started
    goodput = 100 * tally.in_time / (capacity * machine.seconds)
    name = "/".join(f"{ms:g}" for ms in deadlines_ms) + (" blind" if blind else "")
    return (
        f"{load:5.2f} {name:>16} {goodput:8.1f} {tally.percent('late'):8.3f} {tally.percent('refused'):8.1f} "
        f"{tally.percent('dropped'):8.1f} {tally.quantile_ms(0.5):8.1f} {tally.quantile_ms(0.99):8.1f} "
        f"{machine.seconds / spent:9.0f}"
    )


def recovery(machine: Machine, jitter: float) -> str:
    """Three seconds of threefold load, then half of what the device can do."""
    tally, capacity = Tally(), machine.rows_per_s
    arrivals = [
        *poisson(_MODEL, 3 * capacity, 3.0, (100.0,), seed=1),
        *poisson(_MODEL, capacity / 2, 3.0, (100.0,), seed=2, start_s=3.0),
    ]
    machine.simulation(jitter, 1).run(arrivals, tally.record)
    return f"normal again {max(0.0, tally.last_bad_ns / SECOND_NS - 3.0) * 1e3:.0f} ms after three seconds of threefold load"


def neighbours(machine: Machine, jitter: float) -> str:
    """One model at a tenth of capacity beside one at three times, neither with deadlines that would shed the load."""
    tallies = {_MODEL: Tally(), _OTHER: Tally()}
    capacity, seconds = machine.rows_per_s, min(3.0, machine.seconds)
    arrivals = merged(poisson(_MODEL, 3 * capacity, seconds), poisson(_OTHER, capacity / 10, seconds, seed=1))
    machine.simulation(jitter, 1).run(arrivals, lambda outcome: tallies[outcome.arrival.model].record(outcome))
    p50, p99 = (tallies[_OTHER].quantile_ms(q) for q in (0.5, 0.99))
    return f"a model at 0.1 of capacity beside one at 3: p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def replay(machine: Machine, arrivals: Sequence[Arrival], jitter: float, devices: int) -> list[str]:
    """A table with a line for each model of a trace."""
    models = sorted({arrival.model for arrival in arrivals})
    tallies = {model: Tally() for model in models}
    simulation = machine.simulation(jitter, devices, models=models)
    simulation.run(arrivals, lambda outcome: tallies[outcome.arrival.model].record(outcome))
    seconds = max(arrivals[-1].at_ns / SECOND_NS, 1e-9)
    busy = sum(simulation.busy_ns.values()) / (devices * seconds * SECOND_NS)
    rows = sum(arrival.rows for arrival in arrivals)
    return [
        f"{len(arrivals)} requests, {rows} rows in {seconds:.1f} s; devices busy {100 * min(1.0, busy):.0f} %, "
        f"{rows / max(1, len(simulation.batches)):.1f} rows per batch",
        f"{'model':24} requests    good%    late% refused% dropped%   p50/ms   p99/ms",
        *(
            f"{model!s:24} {tally.ends.total():8} {tally.percent('good'):8.2f} {tally.percent('late'):8.3f} "
            f"{tally.percent('refused'):8.2f} {tally.percent('dropped'):8.2f} {tally.quantile_ms(0.5):8.1f} "
            f"{tally.quantile_ms(0.99):8.1f}"
            for model, tally in tallies.items()
        ),
    ]


def merged(*sources: Iterable[Arrival]) -> list[Arrival]:
    """Arrivals of several sources in the order of time."""
    return sorted((arrival for source in sources for arrival in source), key=lambda arrival: arrival.at_ns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--jitter", type=float, default=0.05, help="standard deviation of a batch's time, as a part of it"
    )
    parser.add_argument("--devices", type=int, default=1, help="of each machine")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="replay this access log in place of made-up load")
    parser.add_argument("--speed", type=float, default=1.0, help="of the trace (default: %(default)s)")
    parser.add_argument("--batch-ms", type=float, default=1.2, help="of a batch, with --trace (default: %(default)s)")
    parser.add_argument("--row-ms", type=float, default=0.05, help="and of each row (default: %(default)s)")
    parser.add_argument("--max-batch-rows", type=int, default=128, help="of a batch (default: %(default)s)")
    options = parser.parse_args()
    if options.trace is not None:
        device = Machine(options.batch_ms, options.row_ms, options.max_batch_rows, 0.0)
        arrivals = read_trace(options.trace, options.speed)
        print("\n".join(replay(device, arrivals, options.jitter, options.devices)))
        return
    for machine in _MACHINES:
        print(
            f"{machine.batch_ms(machine.max_batch_rows):g} ms for {machine.max_batch_rows} rows, jitter {options.jitter:g}, "
            f"{options.devices} device(s): {machine.rows_per_s * options.devices:.0f} rows/s"
        )
        print(" load     deadlines/ms goodput%    late% refused% dropped%   p50/ms   p99/ms  sim s/s")
        for load in _LOADS:
            for deadlines_ms in _DEADLINES_MS:
                for blind in (False, True):
                    line = overload(machine, load, deadlines_ms, options.jitter, options.devices, blind=blind)
                    print(line, flush=True)
        print(recovery(machine, options.jitter))
        print(neighbours(machine, options.jitter), flush=True)


if __name__ == "__main__":
    main()
