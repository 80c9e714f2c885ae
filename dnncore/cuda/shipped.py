"""What was measured on a model of GPU and comes with the library: a file for each, none for those that nobody has measured.

`python -m benchmarks.choices` writes them. They are read when a device is opened, once in the process.
"""

from __future__ import annotations

import functools
from pathlib import Path

from dnncore.figures import GPUS, DeviceFigures
from dnncore.measured import MeasuredChoices, read

__all__ = ["FOLDER", "choices"]

FOLDER = Path(__file__).parent / "choices"
"""Where the files are, each called like its GPU in `figures.GPUS`."""


@functools.cache
def choices(figures: DeviceFigures) -> MeasuredChoices:
    """Those of the GPU with such figures, which decide how fast it is, whatever it calls itself; of any other nothing is known."""
    path = next((FOLDER / f"{name}.jsonl" for name, known in GPUS.items() if known == figures), None)
    return MeasuredChoices(read(path) if path is not None and path.is_file() else ())
