"""The nets whose ONNX files are compared with PyTorch: that they are made, in a process that has imported nothing before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import torch
from benchmarks.families import _net

for library, name in (("timm", "lcnet_050"), ("torchvision", "squeezenet1_1")):
    net, size = _net(library, name)
    with torch.no_grad():
        print(size, *net(torch.zeros(2, 3, size, size)).shape)
"""


def test_nets_of_torchvision_and_timm_are_made_beside_any_build_of_pytorch() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert ran.stdout == "224 2 1000\n" * 2, ran.stderr
