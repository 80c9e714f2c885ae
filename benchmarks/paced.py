"""dnnserve as its command runs it, on devices that take a set time for each batch: they bound it then, and not the cores that it
shares with its clients.

    python -c "from benchmarks.paced import main; main()" SECONDS_PER_BATCH [ARGUMENT OF DNNSERVE ...]

By name, because processes of engines import it, too. What is answered is computed all the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial

from dnnserve import __main__ as command
from dnnserve import assembly
from dnnserve.engine.instance import Instance
from dnnserve.engine.net import NetHost, ServedModel, Terms
from dnnserve.engine.pipeline import LocalPipeline, Timing
from dnnserve.envelope import ModelKey

__all__ = ["PacedHost", "main", "program"]


def program(batch_s: float) -> list[str]:
    """The command line of a server whose batches take that many seconds and what they really take."""
    return [sys.executable, "-c", "from benchmarks.paced import main; main()", str(batch_s)]


class PacedPipeline(LocalPipeline):
    """A pipeline that waits before a batch is ready. Owned as its base is.

    Args:
        instance: Loaded and warm.
        batch_s: Seconds it waits for.
    """

    def __init__(self, instance: Instance, batch_s: float) -> None:
        super().__init__(instance)
        self._batch_s = batch_s

    def finish(self) -> Timing:
        """Wait that long, and then for the outputs."""
        time.sleep(self._batch_s)
        return super().finish()


class PacedHost(NetHost):
    """A device whose batches take that many seconds more. Owned by one thread; the handles check.

    Args:
        device, models, terms: As `NetHost` has them.
        batch_s: Seconds.
    """

    def __init__(self, device: str, models: Mapping[ModelKey, ServedModel], *, terms: Terms, batch_s: float) -> None:
        super().__init__(device, models, terms=terms)
        self._batch_s = batch_s

    def load(self, model: ModelKey, max_batch_rows: int) -> LocalPipeline:
        """As `NetHost` does."""
        return PacedPipeline(super().load(model, max_batch_rows).instance, self._batch_s)


def main() -> None:
    """Serve until SIGTERM; ends with the command's exit code."""
    batch_s, *arguments = sys.argv[1:]
    setattr(assembly, NetHost.__name__, partial(PacedHost, batch_s=float(batch_s)))
    sys.exit(command.main(arguments))
