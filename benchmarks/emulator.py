"""How fast the emulator runs a convolution, with and without its checks.

make emulator pycuda && .venv/bin/python -m benchmarks.emulator --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.environment import environment
from dnncore import Handle, TensorDescriptor
from dnncore.descriptors import ConvolutionDescriptor
from dnncore.problems import ConvolutionProblem, Direction

ROOT = Path(__file__).parents[1]
REPEATS = 3


def measure() -> float:
    """Million multiply-adds a second of a 3x3 convolution in fp32 by implicit_gemm; the best of a few runs."""
    conv = ConvolutionDescriptor.make(padding=1)
    x, w = TensorDescriptor.packed((1, 16, 32, 32)), TensorDescriptor.packed((64, 16, 3, 3))
    y = TensorDescriptor.packed(conv.output_shape(x.shape, w.shape))
    problem = ConvolutionProblem(Direction.FORWARD, x, w, y, conv)
    multiply_adds = y.size * 16 * 9
    seconds = []
    with Handle("cuda:0") as handle:
        plan = handle.plan(problem, algorithm="implicit_gemm")
        inputs = [handle.upload(np.ones(descriptor.shape, np.float32)) for descriptor in (x, w)]
        output = handle.upload(np.zeros(y.shape, np.float32))
        for _ in range(REPEATS + 1):  # the first one compiles
            started = time.perf_counter()
            handle.run(plan, 1.0, inputs, 0.0, [output])
            handle.synchronize()
            seconds.append(time.perf_counter() - started)
    return multiply_adds / min(seconds[1:]) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the JSON")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(measure())
        return 0
    figures = {}
    for build in ("check", "fast"):
        emulated = {
            "EMU_BUILD": build,
            "LD_LIBRARY_PATH": str(ROOT / ".build/emulator/lib"),
            "DNNCORE_CACHE_DIR": str(ROOT / ".build/kernels"),
            "PATH": f"{ROOT / 'emulator/bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command = [sys.executable, "-m", "benchmarks.emulator", "--measure"]
        ran = subprocess.run(command, env=os.environ | emulated, stdout=subprocess.PIPE, text=True, check=True)
        figures[build] = round(float(ran.stdout), 1)
        print(f"{build}: {figures[build]} million multiply-adds a second")
    if options.out is not None:
        document = {"environment": environment(), "million_multiply_adds_a_second": figures}
        (options.out / "emulator.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
