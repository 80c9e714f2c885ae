"""Every algorithm for matrix products beside PyTorch with cuBLAS in the same run: linear layers of nets, and large squares.

Milliseconds are medians over repetitions of a batch of launches between two synchronisations, on the same operands, so that small
ones are in the second-level cache; TFLOP/s count two operations a multiply-add. `estimate_ms` is what the algorithm is ranked by.
Results are checked against PyTorch's before they are timed. In float32 cuBLAS's TF32 is off.

    python -m benchmarks.products --out benchmarks/results
    python -m benchmarks.products --out benchmarks/results --dtype float32 --products square
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.comparison import DEFAULT_STREAM, algorithms, difference, empty, launcher, noise, release, time_ms
from benchmarks.document import Document
from dnncore import DType, Handle, TensorDescriptor
from dnncore.problems import MatmulProblem

LINEAR = {
    "alexnet-fc6": (9216, 4096),
    "vgg-fc6": (25088, 4096),
    "fc7": (4096, 4096),
    "fc8": (4096, 1000),
    "resnet-fc": (2048, 1000),
    "vit-mlp": (768, 3072),
}
"""Inputs and outputs."""

BATCHES = (1, 32, 128, 1024)
SQUARES = (1024, 4096, 8192)

_MOST_PLAIN_MACS = 10**9
"""The plain kernel is there to be right: on larger products it takes long, and is left out."""


def products(dtype: DType) -> Iterator[tuple[str, MatmulProblem]]:
    """By name: squares in every layout of a and b, linear layers and their gradients at every batch."""

    def packed(rows: int, columns: int, *, by_columns: bool = False) -> TensorDescriptor:
        if by_columns:
            return TensorDescriptor.packed((columns, rows), dtype).transposed()
        return TensorDescriptor.packed((rows, columns), dtype)

    for size in SQUARES:
        for a_by_columns in (False, True):
            for b_by_columns in (False, True):
                a, b = (packed(size, size, by_columns=by_columns) for by_columns in (a_by_columns, b_by_columns))
                lie = "-".join("columns" if by_columns else "rows" for by_columns in (a_by_columns, b_by_columns))
                yield f"square-{size}-{lie}", MatmulProblem(a, b, packed(size, size))
    for name, (inputs, outputs) in LINEAR.items():
        for batch in BATCHES:
            x, y, w = packed(batch, inputs), packed(batch, outputs), packed(outputs, inputs)
            yield f"{name}-{batch}-forward", MatmulProblem(x, w.transposed(), y)
            yield f"{name}-{batch}-backward-data", MatmulProblem(y, w, x)
            yield f"{name}-{batch}-backward-weights", MatmulProblem(y.transposed(), x, w)


def measure(handle: Handle, name: str, problem: MatmulProblem) -> list[dict[str, Any]]:
    """A row for each algorithm."""
    a, b, result = noise(problem.a, 0), noise(problem.b, 1), empty(problem.c)
    expected = a @ b
    theirs = time_ms(lambda: torch.mm(a, b, out=expected))
    rows = []
    for algorithm in algorithms(handle, problem):
        if algorithm == "direct" and problem.macs > _MOST_PLAIN_MACS:
            continue
        launch = launcher(handle, problem, algorithm, (a, b), [result])
        launch()
        error = difference(result, expected)
        ours = time_ms(launch)
        offer = handle.plan(problem, algorithm=algorithm).offer
        rows.append(
            {
                "product": name,
                "algorithm": algorithm,
                "ms": round(ours, 4),
                "estimate_ms": round(offer.seconds * 1e3, 4),
                "tflops": round(2 * problem.macs / ours / 1e9, 2),
                "cublas_ms": round(theirs, 4),
                "of_cublas": round(theirs / ours, 3),
                "relative_difference": float(f"{error:.2e}"),
                "workspace_bytes": offer.workspace_bytes,
            }
        )
        print(" ".join(f"{value!s:>10}" for value in rows[-1].values()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--dtype", default="float16", help="element type (default: %(default)s)")
    parser.add_argument(
        "--products", default="", help="only those whose name contains one of these, with commas between"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    dtype = DType.of(options.dtype)
    torch.backends.cuda.matmul.allow_tf32 = False
    path = options.out / f"products-{dtype.value}.json"
    document = Document(path, ["product"], dtype=dtype.value)
    with Handle("cuda:0", stream=DEFAULT_STREAM) as handle:
        for name, problem in products(dtype):
            if any(word in name for word in options.products.split(",")):
                document.add(measure(handle, name, problem))
                release()
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
