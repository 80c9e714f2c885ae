"""The host's time for an operation, a replay, a plan and whole nets, beside PyTorch's in the same run on one GPU.

Operations are timed between two synchronisations, few enough at a time for the launch queue to take them all: what is timed is the
host. Nets are timed by the wall, and their kernels by PyTorch's profiler. Figures are medians.

    python -m benchmarks.host --out benchmarks/results
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.document import Document
from benchmarks.host import layers, nets, operations, parts
from benchmarks.host.row import Row

GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "operations": operations.rows,
    "layers": layers.rows,
    "nets": nets.rows,
    "parts": parts.rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--only", choices=GROUPS, action="append", help="these alone; may be repeated")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    document = Document(options.out / "host.json", ["name"])
    for group in options.only or GROUPS:
        for row in GROUPS[group]():
            document.add([row.values])
            print(row, flush=True)


if __name__ == "__main__":
    main()
