"""Every convolution algorithm on well-known layers in fp32, beside PyTorch with cuDNN (TF32 off) in the same run.

Milliseconds are medians over repetitions of a batch of launches between two synchronisations; TFLOP/s count two operations a
multiply-add of the direct method. Results are checked against PyTorch's before they are timed.

    python -m benchmarks.convolution --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import environment
from benchmarks.layers import LAYERS, LayerGeometry
from benchmarks.timing import milliseconds
from dnncore import Handle, Preference
from dnncore.plan import candidates
from dnncore.problems import ConvolutionProblem, Direction


class CuDNN:
    """PyTorch's convolutions, on the tensors of one layer."""

    def __init__(self, layer: LayerGeometry, arrays: dict[str, np.ndarray]) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self._torch = torch
        self._layer = layer
        self._x, self._w, self._dy = (torch.tensor(arrays[name], device="cuda") for name in ("x", "w", "dy"))

    def run(self, direction: Direction) -> Any:
        conv = self._torch.ops.aten.convolution_backward
        stride, padding = [self._layer.stride] * 2, [self._layer.padding] * 2
        if direction is Direction.FORWARD:
            return self._torch.nn.functional.conv2d(self._x, self._w, stride=stride, padding=padding)
        mask = [direction is Direction.BACKWARD_DATA, direction is Direction.BACKWARD_FILTER, False]
        results = conv(self._dy, self._x, self._w, None, stride, padding, [1, 1], False, [0, 0], 1, mask)
        return results[0 if mask[0] else 1]

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()


def inputs_of(problem: ConvolutionProblem) -> tuple[str, str]:
    return {
        Direction.FORWARD: ("x", "w"),
        Direction.BACKWARD_DATA: ("w", "dy"),
        Direction.BACKWARD_FILTER: ("x", "dy"),
    }[problem.direction]


def measure(handle: Handle, layer: LayerGeometry) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    forward = layer.problem(Direction.FORWARD)
    shapes = {"x": forward.x.shape, "w": forward.w.shape, "dy": forward.y.shape}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    tensors = {name: handle.upload(array) for name, array in arrays.items()}
    cudnn = CuDNN(layer, arrays)
    rows = []
    for direction in Direction:
        problem = layer.problem(direction)
        (output,) = problem.outputs
        result = handle.tensor(output)
        reference = cudnn.run(direction).cpu().numpy()
        theirs = milliseconds(lambda d=direction: cudnn.run(d), cudnn.synchronize)  # type: ignore[misc]
        for algorithm, why in candidates(problem, handle.device, Preference.PREFER_FASTEST):
            if why is not None:
                continue
            plan = handle.plan(problem, algorithm=algorithm.name)
            operands = [tensors[name] for name in inputs_of(problem)]

            def launch(plan: Any = plan, operands: Any = operands, result: Any = result) -> None:
                handle.run(plan, 1.0, operands, 0.0, [result])

            ours = milliseconds(launch, handle.synchronize)
            error = float(np.linalg.norm(result.numpy() - reference) / np.linalg.norm(reference))
            rows.append(
                {
                    "layer": layer.name,
                    "direction": direction.value,
                    "algorithm": algorithm.name,
                    "ms": round(ours, 4),
                    "tflops": round(2 * problem.macs / ours / 1e9, 2),
                    "cudnn_ms": round(theirs, 4),
                    "of_cudnn": round(theirs / ours, 3),
                    "relative_difference": float(f"{error:.2e}"),
                    "workspace_bytes": plan.workspace_bytes,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
        result.close()
    for tensor in tensors.values():
        tensor.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--layers", default="", help="only those whose name contains this")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    path = options.out / "convolution.json"
    with Handle(options.device) as handle:
        for layer in LAYERS:
            if options.layers in layer.name:
                rows += measure(handle, layer)
                document = {"environment": environment(), "dtype": "float32", "results": rows}
                path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
