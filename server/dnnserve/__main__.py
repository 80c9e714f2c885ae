"""The command `dnnserve`: see `program`, which is imported when signals are held already, for that takes a second."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dnnserve.signals import Signals, held

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `dnnserve` and return its exit code."""
    with held():
        from dnnserve.program import run  # here: see above

        return run(arguments, Signals())


if __name__ == "__main__":
    sys.exit(main())
