"""torchvision, and so timm, beside whatever build of PyTorch there is."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["torchvision"]


def torchvision() -> Any:
    """The package, to be asked for before anything imports it, as timm does.

    Its wheel on PyPI is built for PyTorch with CUDA, and its compiled operators do not load beside a PyTorch without. Nets and
    transforms need none, but importing it describes two of them, which are declared here.
    """
    import torch

    if torch.version.cuda is None and "torchvision" not in sys.modules:
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
    return importlib.import_module("torchvision")
