"""The host's time for an operation, a replay, a plan and whole nets, beside PyTorch's in the same run on one GPU.

Operations are timed between two synchronisations, few enough at a time for the launch queue to take them all: what is timed is the
host. Nets are timed by the wall, and their kernels by PyTorch's profiler. Figures are medians. Plans, and what calls
cost in front of the driver, are timed on any machine.

    python -m benchmarks.host --out benchmarks/results
    python -m benchmarks.host --out /tmp/host --only plans --only calls
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.document import Document
from benchmarks.host.row import Row

__all__ = ["verdict"]

_GROUPS = ("operations", "layers", "parts", "nets", "plans", "calls")
"""Modules of this package, that with a profiler behind those that time launches."""

_WITHOUT_A_GPU = ("plans", "calls")
"""Those that need no GPU, and no PyTorch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--only", choices=_GROUPS, action="append", help="these alone; may be repeated")
    options = parser.parse_args()
    groups = options.only or _GROUPS
    options.out.mkdir(parents=True, exist_ok=True)
    if not set(groups) <= set(_WITHOUT_A_GPU):
        _settle_torch()
    document = Document(options.out / "host.json", ["name"])
    found: list[Row] = []
    for group in groups:
        for row in import_module(f"benchmarks.host.{group}").rows():
            document.add([row.values])
            print(row, flush=True)
            found.append(row)
    print(verdict(found))


def verdict(rows: Sequence[Row]) -> str:
    """How many goals were met, and each row that missed one."""
    missed = [row for row in rows if row.is_met is False]
    goals = sum(row.is_met is not None for row in rows)
    return "\n".join([f"{goals - len(missed)} of {goals} rows with a goal meet it", *(f"  {row}" for row in missed)])


def _settle_torch() -> None:
    """Full precision in float32, and cuDNN's fastest."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


if __name__ == "__main__":
    main()
