"""Every algorithm of the operations that move bytes and compute next to nothing, beside PyTorch in the same run.

TB/s count the fewest bytes that an operation can move: each tensor that it needs once, its output twice where it blends. The
ceiling is what a copy of 1 GiB reaches in the same run. Large tensors are several times an H200's L2 cache; the small ones show
what a launch costs. PyTorch 2.11 gets the gradient of overlapping average pooling wrong on channels-last CUDA tensors: it differs
from PyTorch's own CPU build, ours does not. There alone the relative difference is about 1.

    python -m benchmarks.memory_bound --out benchmarks/results
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.comparison import DEFAULT_STREAM, algorithms, difference, empty, launcher, noise, release, time_ms
from benchmarks.document import Document
from benchmarks.memory_bound.depthwise import depthwise
from benchmarks.memory_bound.elementwise import elementwise
from benchmarks.memory_bound.inverted_residuals import inverted_residuals
from benchmarks.memory_bound.measurement import Measurement
from benchmarks.memory_bound.normalizations import normalizations
from benchmarks.memory_bound.poolings import poolings
from benchmarks.memory_bound.rows import rows
from dnncore import DType, Handle

FAMILIES: tuple[Callable[[DType], Iterator[Measurement]], ...] = (
    elementwise,
    rows,
    normalizations,
    depthwise,
    inverted_residuals,
    poolings,
)


def copy_tbps() -> float:
    """Bytes read and written a second by a device-to-device copy."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    nbytes: int = 2 * source.numel()
    return nbytes / time_ms(lambda: target.copy_(source)) / 1e9


def measure(handle: Handle, measurement: Measurement, copy: float, most: int | None) -> list[dict[str, Any]]:
    problem = measurement.problem
    inputs = [noise(descriptor, seed) for seed, descriptor in enumerate(problem.inputs)]
    measurement.prepare(inputs)
    outputs = [empty(descriptor) for descriptor in problem.outputs]
    blended = [torch.zeros_like(outputs[0])] if measurement.beta else []
    results = measurement.torch(*inputs, *blended)
    expected = results if isinstance(results, torch.Tensor) else results[0]
    expected = expected.clone()
    theirs = time_ms(lambda: measurement.torch(*inputs, *blended))
    table = []
    for algorithm in itertools.islice(algorithms(handle, problem), most):
        launch = launcher(handle, problem, algorithm, inputs, outputs, measurement.beta)
        outputs[0].zero_()
        launch()
        error = difference(outputs[0], expected) if measurement.comparable else None
        ours = time_ms(launch)
        tbps = measurement.nbytes / ours / 1e9
        table.append(
            {
                "name": measurement.name,
                "algorithm": algorithm,
                "ms": round(ours, 4),
                "tbps": round(tbps, 2),
                "of_copy": round(tbps / copy, 2),
                "torch_ms": round(theirs, 4),
                "of_torch": round(theirs / ours, 2),
                "relative_difference": None if error is None else float(f"{error:.1e}"),
            }
        )
        print(" ".join(f"{value!s:>8}" for value in table[-1].values()), flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--dtype", default="float32", help="element type (default: %(default)s)")
    parser.add_argument("--only", default="", help="only those whose name contains one of these, with commas between")
    parser.add_argument("--chosen", action="store_true", help="only the algorithm that would be chosen")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    dtype, copy = DType.of(options.dtype), copy_tbps()
    path = options.out / f"memory_bound-{dtype.value}.json"
    document = Document(path, ["name"], dtype=dtype.value)
    with Handle("cuda:0", stream=DEFAULT_STREAM) as handle:
        for family in FAMILIES:
            for measurement in family(dtype):
                if any(part in measurement.name for part in options.only.split(",")):
                    document.add(measure(handle, measurement, copy, 1 if options.chosen else None))
                release()
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
