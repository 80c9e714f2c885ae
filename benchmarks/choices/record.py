"""What was measured, and the choices that follow: where an estimate was wrong, and by more than measurements scatter."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.race import METHOD
from dnncore.cache import write_atomically
from dnncore.errors import ConfigError
from dnncore.measured import MOST_KEPT, MeasuredChoice

__all__ = ["MARGIN", "Measured", "Record"]

MARGIN = 1.03
"""An estimate is right where what it takes for the fastest takes no longer than this many times the fastest."""


@dataclass(frozen=True)
class Measured:
    """What the algorithms for a problem took. Immutable.

    Args:
        problem: Its text (`dnncore.measured.problem_text`).
        algorithms: Digest of the names of all that there were.
        kernels: Digest of the kernels of those that were measured.
        commit: At which it was measured, where that is known.
        estimated_us: Of those that were to be measured, the fastest first.
        us: Of those that could be.
    """

    problem: str
    algorithms: str
    kernels: str
    commit: str | None
    estimated_us: Mapping[str, float]
    us: Mapping[str, float]

    @property
    def loss(self) -> float:
        """How many times the fastest that takes which is the fastest by estimate; infinite where that could not be run."""
        first = next(iter(self.estimated_us))
        return self.us[first] / min(self.us.values()) if first in self.us else math.inf

    def choice(self, device: str, architecture: str) -> MeasuredChoice:
        """As a plan goes by it."""
        seconds = sorted(((name, us * 1e-6) for name, us in self.us.items()), key=lambda each: each[1])
        return MeasuredChoice(self.problem, device, architecture, self.algorithms, tuple(seconds[:MOST_KEPT]))


class Record:
    """A file of what was measured on one model of GPU, a line a problem; what is broken off loses none. Owned by one thread.

    Args:
        path: The file; it need not be there.
        gpu: What the hardware calls itself.

    Raises:
        ConfigError: the file is of another GPU or method, or damaged.
    """

    def __init__(self, path: Path, gpu: str) -> None:
        self._path = path
        self._head = {"gpu": gpu, "method": METHOD}
        self._found: dict[str, Measured] = {}
        if path.is_file():
            self._read(path.read_text(encoding="utf-8"))
        self._write()

    def _read(self, text: str) -> None:
        try:
            head, *rows = (json.loads(line) for line in text.splitlines())
            self._found = {row["problem"]: Measured(**row) for row in rows}
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{self._path} is damaged ({error}); give --out another folder, or remove it") from error
        if head != self._head:
            raise ConfigError(f"{self._path} is of {head}, and this is {self._head}; give --out another folder")

    def _write(self) -> None:
        lines = [self._head, *(asdict(self._found[problem]) for problem in sorted(self._found))]
        write_atomically(self._path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def has(self, problem: str, algorithms: str, kernels: str) -> bool:
        """Whether a problem was measured with these algorithms to choose from and these kernels, at whatever commit."""
        found = self._found.get(problem)
        return found is not None and (found.algorithms, found.kernels) == (algorithms, kernels)

    def add(self, measured: Measured) -> None:
        """Put it in the place of what was known of the problem."""
        self._found[measured.problem] = measured
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(measured))}\n")

    def close(self) -> None:
        """Leave each problem once, sorted."""
        self._write()

    @property
    def losses(self) -> list[float]:
        """Of all problems in which what is the fastest by estimate could be run."""
        return [one.loss for one in self._found.values() if math.isfinite(one.loss)]

    def wrong(self) -> Iterator[Measured]:
        """Those in which an estimate was not right."""
        return (one for one in self._found.values() if MARGIN < one.loss < math.inf)

    def facts(self) -> dict[str, Any]:
        """What a file of choices says of how it was made: problems that were measured, and in how many the estimate was right."""
        losses = self.losses
        commits = sorted({one.commit for one in self._found.values() if one.commit})
        return {
            "measured": len(losses),
            "estimate_was_right": sum(loss <= MARGIN for loss in losses),
            "commits": commits,
        }
