"""Every algorithm of the operations that move bytes and compute next to nothing, in fp32, beside PyTorch in the same run.

TB/s count the fewest bytes that an operation can move: each tensor that it needs once, its output twice where it blends. The
ceiling is what a copy reaches on an H200. Large tensors are several times its L2 cache; the small ones show what a launch costs.
PyTorch 2.11 gets the gradient of overlapping average pooling wrong on channels-last CUDA tensors: it differs from PyTorch's own
CPU build, ours does not. There alone the relative difference is about 1.

    python -m benchmarks.memory_bound --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import environment
from benchmarks.timing import milliseconds
from dnncore import RELU, Handle, Preference, SoftmaxAlgorithm, SoftmaxMode, TensorDescriptor
from dnncore.descriptors import Layout, PoolingDescriptor, PoolingMode
from dnncore.plan import candidates
from dnncore.problems import (
    ActivationBackwardProblem,
    ActivationForwardProblem,
    AddProblem,
    PoolingBackwardProblem,
    PoolingForwardProblem,
    Problem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
    SumProblem,
)

COPY_TBPS = 4.26
"""Bytes read and written by a device-to-device copy of 4 GiB on an H200."""

LARGE, SMALL = (64, 64, 112, 112), (64, 64, 14, 14)


@dataclass(frozen=True)
class Measurement:
    """A problem, the tensors that it cannot do without, and PyTorch's function of the same inputs."""

    name: str
    problem: Problem
    moved: tuple[TensorDescriptor, ...]
    torch: Callable[..., Any]
    beta: float = 0.0

    @property
    def bytes(self) -> int:
        blended = self.problem.outputs if self.beta else ()
        return sum(tensor.nbytes for tensor in (*self.moved, *blended))


class TorchPooling:
    """PyTorch's functions for one kind of pooling."""

    def __init__(self, mode: PoolingMode, window: int, stride: int, padding: int) -> None:
        import torch

        self._torch = torch
        self._is_max = mode is PoolingMode.MAX
        self._geometry = [window] * 2, [stride] * 2, [padding] * 2
        self._places: Any = None

    def forward(self, x: Any) -> Any:
        functions = self._torch.nn.functional
        return (functions.max_pool2d if self._is_max else functions.avg_pool2d)(x, *self._geometry)

    def backward(self, _y: Any, dy: Any, x: Any) -> Any:
        """Where ours looks for the maxima again, theirs keeps their places: found once, outside what is timed."""
        aten, geometry = self._torch.ops.aten, self._geometry
        if not self._is_max:
            return aten.avg_pool2d_backward(dy, x, *geometry, False, True, None)
        if self._places is None:
            self._places = aten.max_pool2d_with_indices(x, *geometry)[1]
        return aten.max_pool2d_with_indices_backward(dy, x, *geometry, [1, 1], False, self._places)


def poolings(shape: tuple[int, ...], layout: Layout) -> Iterator[Measurement]:
    for mode, window, stride, padding in (
        (PoolingMode.MAX, 3, 2, 1),
        (PoolingMode.MAX, 2, 2, 0),
        (PoolingMode.AVERAGE_INCLUDE_PADDING, 2, 2, 0),
        (PoolingMode.AVERAGE_INCLUDE_PADDING, 3, 2, 1),
    ):
        pooling = PoolingDescriptor.make(mode, window, stride=stride, padding=padding)
        x = TensorDescriptor.packed(shape, layout=layout)
        y = TensorDescriptor.packed(pooling.output_shape(shape), layout=layout)
        name = f"{mode.value.split('_')[0]}-{window}x{window}-stride-{stride} {layout.value} {shape[2]}"
        theirs = TorchPooling(mode, window, stride, padding)
        forward, backward = PoolingForwardProblem(x, y, pooling), PoolingBackwardProblem(y, y, x, x, pooling)
        needed = (x, y, x) if mode is PoolingMode.MAX else (y, x)  # backward; y itself is not
        yield Measurement(f"pooling-forward {name}", forward, (x, y), theirs.forward)
        yield Measurement(f"pooling-backward {name}", backward, needed, theirs.backward)


def measurements() -> Iterator[Measurement]:
    import torch

    for shape in (LARGE, SMALL):
        for layout in (Layout.NCHW, Layout.NHWC):
            x = TensorDescriptor.packed(shape, layout=layout)
            bias = TensorDescriptor.packed((1, shape[1], 1, 1), layout=layout)
            size = f"{layout.value} {shape[2]}"
            yield Measurement(f"bias-gradient {size}", SumProblem(x, bias), (x,), lambda x: x.sum((0, 2, 3)))
            yield Measurement(f"bias-add {size}", AddProblem(bias, x), (x,), lambda b, c: c.add_(b), 1.0)
            yield from poolings(shape, layout)
    nchw, nhwc = (TensorDescriptor.packed(LARGE, layout=layout) for layout in (Layout.NCHW, Layout.NHWC))
    t = nchw
    moved = (nchw, nhwc)
    yield Measurement("nchw-to-nhwc", AddProblem(nchw, nhwc), moved, lambda a, c: c.copy_(a))
    yield Measurement("nhwc-to-nchw", AddProblem(nhwc, nchw), moved, lambda a, c: c.copy_(a))
    yield Measurement("relu-forward", ActivationForwardProblem(t, t, RELU), (t, t), torch.relu)
    yield Measurement(
        "relu-backward",
        ActivationBackwardProblem(t, t, t, t, RELU),
        (t, t, t),
        lambda _y, dy, x: torch.ops.aten.threshold_backward(dy, x, 0),
    )
    for rows in (8192, 65536):
        t = TensorDescriptor.packed((rows, 1000))
        accurate, mode = SoftmaxAlgorithm.ACCURATE, SoftmaxMode.CHANNEL
        forward, backward = SoftmaxForwardProblem(t, t, accurate, mode), SoftmaxBackwardProblem(t, t, t, accurate, mode)
        yield Measurement(f"softmax-forward {rows}x1000", forward, (t, t), lambda x: x.softmax(1))
        yield Measurement(
            f"softmax-backward {rows}x1000",
            backward,
            (t, t, t),
            lambda y, dy: torch.ops.aten._softmax_backward_data(dy, y, 1, torch.float32),
        )


def operands(handle: Handle, measurement: Measurement, noise: np.ndarray) -> list[Any]:
    """Inputs on the device, drawn from `noise`; y of a pooling is what the forward pass makes of x."""
    problem = measurement.problem
    tensors = []
    for place, descriptor in enumerate(problem.inputs):
        drawn = np.roll(noise, place)[: descriptor.size].reshape(descriptor.shape)
        tensor = handle.tensor(descriptor)
        tensor.assign(drawn)
        tensors.append(tensor)
    if isinstance(problem, PoolingBackwardProblem):
        plan = handle.plan(PoolingForwardProblem(problem.x, problem.y, problem.pooling))
        handle.run(plan, 1.0, [tensors[2]], 0.0, [tensors[0]])
    return tensors


def torch_ms(measurement: Measurement, tensors: list[Any], result: Any) -> tuple[float, np.ndarray]:
    """PyTorch's time, and its answer."""
    import torch

    arrays = [torch.as_tensor(tensor.numpy(), device="cuda") for tensor in tensors]
    if isinstance(measurement.problem, AddProblem):
        arrays.append(torch.as_tensor(result.numpy(), device="cuda"))
        tensors = [*tensors, result]
    for place, tensor in enumerate(tensors):
        if tensor.descriptor.ndim == 4:
            last = tensor.descriptor.strides[1] == 1
            arrays[place] = arrays[place].to(
                memory_format=torch.channels_last if last else torch.contiguous_format, copy=True
            )
    answer = measurement.torch(*arrays).cpu().numpy()
    return milliseconds(lambda: measurement.torch(*arrays), torch.cuda.synchronize), answer


def measure(handle: Handle, measurement: Measurement, noise: np.ndarray) -> list[dict[str, Any]]:
    problem = measurement.problem
    (output,) = problem.outputs
    tensors = operands(handle, measurement, noise)
    result = handle.tensor(output)
    rows: list[dict[str, Any]] = []
    for algorithm, why in candidates(problem, handle.device, Preference.PREFER_FASTEST):
        if why is not None:
            continue
        plan = handle.plan(problem, algorithm=algorithm.name)

        def launch(plan: Any = plan) -> None:
            handle.run(plan, 1.0, tensors, measurement.beta, [result])

        result.assign(np.zeros(output.shape, np.float32))
        if not rows:
            theirs, expected = torch_ms(measurement, tensors, result)
        launch()
        error = float(np.linalg.norm(result.numpy().ravel() - expected.ravel()) / np.linalg.norm(expected))
        ours = milliseconds(launch, handle.synchronize)
        tbps = measurement.bytes / ours / 1e9
        rows.append(
            {
                "name": measurement.name,
                "algorithm": algorithm.name,
                "ms": round(ours, 4),
                "tbps": round(tbps, 2),
                "of_copy": round(tbps / COPY_TBPS, 2),
                "torch_ms": round(theirs, 4),
                "of_torch": round(theirs / ours, 2),
                "relative_difference": float(f"{error:.1e}"),
            }
        )
        print(" ".join(f"{value!s:>8}" for value in rows[-1].values()), flush=True)
    for tensor in (*tensors, result):
        tensor.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", default="", help="only those whose name contains this")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    elements = max(math.prod(LARGE), 65536 * 1000) + 8  # as many as the largest tensor, and a few to draw the next from
    noise = np.random.default_rng(0).standard_normal(elements, np.float32)
    rows = []
    path = options.out / "memory_bound.json"
    with Handle(options.device) as handle:
        for measurement in measurements():
            if options.only in measurement.name:
                rows += measure(handle, measurement, noise)
                document = {"environment": environment(), "dtype": "float32", "copy_tbps": COPY_TBPS, "results": rows}
                path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
