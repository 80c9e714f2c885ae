"""Every convolution algorithm on well-known layers, beside PyTorch with cuDNN in the same run.

Milliseconds are medians over repetitions of a batch of launches between two synchronisations; TFLOP/s count two operations a
multiply-add of the direct method. Results are checked against PyTorch's before they are timed. In float32 cuDNN's TF32 is off, but
with `--math tf32`, which permits it to both.
Beside the three directions there is `fused`: convolution, bias and ReLU in one, theirs cuDNN's fused operation.

    python -m benchmarks.convolution --out benchmarks/results
    python -m benchmarks.convolution --out benchmarks/results --dtype float16 --layout NHWC
    python -m benchmarks.convolution --out benchmarks/results --layout NHWC --math tf32
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.comparison import DEFAULT_STREAM, algorithms, difference, empty, launcher, noise, release, time_ms
from benchmarks.document import Document
from benchmarks.layers import LAYERS, LayerGeometry
from dnncore import RELU, DType, Handle, MathType, TensorDescriptor
from dnncore.descriptors import Layout
from dnncore.problems import Direction, FusedConvolutionProblem, Problem

_MOST_PLAIN_MACS = 10**11
"""The plain kernel is there to be right: on larger problems it takes seconds, and is left out."""


@dataclass(frozen=True)
class Pass:
    """One direction of a layer: our problem, its inputs, and PyTorch's function without arguments. Immutable."""

    name: str
    problem: Problem
    inputs: tuple[torch.Tensor, ...]
    torch: Callable[[], torch.Tensor]


def passes(layer: LayerGeometry, dtype: DType, layout: Layout, math: MathType) -> Iterator[Pass]:
    forward = layer.problem(Direction.FORWARD, dtype, layout, math)
    x, w, dy = (noise(descriptor, seed) for seed, descriptor in enumerate((forward.x, forward.w, forward.y)))
    geometry = ([layer.stride] * 2, [layer.padding] * 2, [1, 1])

    def gradient(which: int) -> Callable[[], torch.Tensor]:
        mask = [which == 0, which == 1, False]
        backward = torch.ops.aten.convolution_backward
        return lambda: backward(dy, x, w, None, *geometry, False, [0, 0], 1, mask)[which]

    yield Pass("forward", forward, (x, w), lambda: torch.nn.functional.conv2d(x, w, None, *geometry))
    for direction, inputs in ((Direction.BACKWARD_DATA, (w, dy)), (Direction.BACKWARD_FILTER, (x, dy))):
        which = int(direction is Direction.BACKWARD_FILTER)
        yield Pass(direction.value, layer.problem(direction, dtype, layout, math), inputs, gradient(which))
    bias = noise(TensorDescriptor.packed((1, layer.k, 1, 1), dtype), 3)
    fused = FusedConvolutionProblem(
        forward.x,
        forward.w,
        forward.y,
        forward.convolution,
        bias=TensorDescriptor.packed((1, layer.k, 1, 1), dtype),
        activation=RELU,
    )
    flat = bias.flatten()
    yield Pass("fused", fused, (x, w, bias), lambda: torch.cudnn_convolution_relu(x, w, flat, *geometry, 1))


def measure(handle: Handle, layer: LayerGeometry, one: Pass, wanted: str, most: int | None) -> list[dict[str, Any]]:
    """Rows of as many algorithms as are asked for, of those whose names are among the wanted."""
    names = [name for name in algorithms(handle, one.problem) if _is_among(name, wanted)][:most]
    if not names:
        return []
    (output,) = one.problem.outputs
    result = empty(output)
    expected = one.torch().clone()
    theirs = time_ms(one.torch)
    macs = layer.problem(Direction.FORWARD).macs
    rows = []
    for algorithm in names:
        if algorithm == "direct" and macs > _MOST_PLAIN_MACS:
            continue
        launch = launcher(handle, one.problem, algorithm, one.inputs, [result])
        launch()
        error = difference(result, expected)
        ours = time_ms(launch)
        rows.append(
            {
                "layer": layer.name,
                "direction": one.name,
                "algorithm": algorithm,
                "ms": round(ours, 4),
                "tflops": round(2 * macs / ours / 1e9, 2),
                "cudnn_ms": round(theirs, 4),
                "of_cudnn": round(theirs / ours, 3),
                "relative_difference": float(f"{error:.2e}"),
                "workspace_bytes": handle.plan(one.problem, algorithm=algorithm).workspace_bytes,
            }
        )
        print(" ".join(f"{value!s:>10}" for value in rows[-1].values()), flush=True)
    return rows


def _is_among(name: str, wanted: str) -> bool:
    """Whether a name contains one of the words, with commas between; every name does if there are none."""
    return any(word in name for word in wanted.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--dtype", default="float32", help="element type (default: %(default)s)")
    parser.add_argument("--layout", default="NCHW", help="of all tensors (default: %(default)s)")
    parser.add_argument("--math", default="strict", help="tf32: float32 may be rounded to it (default: %(default)s)")
    parser.add_argument("--layers", default="", help="only those whose name contains one of these, with commas between")
    parser.add_argument("--directions", default="", help="only those, likewise: backward_filter")
    parser.add_argument("--algorithms", default="", help="only those, likewise: space_to_depth")
    parser.add_argument("--chosen", action="store_true", help="only the algorithm that would be chosen")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    dtype, layout, math = DType.of(options.dtype), Layout(options.layout), MathType(options.math)
    is_tf32 = math is MathType.TF32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_tf32
    torch.backends.cudnn.benchmark = True
    path = options.out / f"convolution-{dtype.value}-{layout.value}{'-tf32' if is_tf32 else ''}.json"
    facts = {"math": math.value} if is_tf32 else {}
    document = Document(path, ["layer", "direction"], dtype=dtype.value, layout=layout.value, **facts)
    with Handle("cuda:0", stream=DEFAULT_STREAM) as handle:
        for layer in LAYERS:
            if _is_among(layer.name, options.layers):
                for one in passes(layer, dtype, layout, math):
                    if not _is_among(one.name, options.directions):
                        continue
                    document.add(measure(handle, layer, one, options.algorithms, 1 if options.chosen else None))
                release()
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
