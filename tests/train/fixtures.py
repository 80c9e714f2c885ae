"""Small runs to train on: three classes of stripes as PNG files, and configurations for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from dnncore.train.config import Config, parse_config

__all__ = ["CLASSES", "make_folder", "small_config"]

CLASSES = ("diagonal", "horizontal", "vertical")


def make_folder(root: Path, per_class: int = 10, seed: int = 0) -> Path:
    """Write per_class noisy 8 x 8 gray images of each class."""
    rng = np.random.default_rng(seed)
    rows, columns = np.indices((8, 8))
    patterns = {"diagonal": rows + columns, "horizontal": rows, "vertical": columns}
    for name in CLASSES:
        (root / name).mkdir(parents=True)
        for index in range(per_class):
            bright = (patterns[name] + rng.integers(4)) // 2 % 2 * 160 + rng.integers(0, 90, (8, 8))
            Image.fromarray(bright.astype(np.uint8)).save(root / name / f"{index:02}.png")
    return root


def small_config(run: Path, data: Path, *overrides: str) -> Config:
    """24 images to train on and 6 held out; batches of 7, 7, 7 and 3; 3 epochs: 12 iterations."""
    text = f"""
        device = "cpu"
        data = {{ kind = "folder", path = '{data}', holdout = 0.2 }}
        training = {{ epochs = 3, batch = 7, report_every = 1 }}
        optimizer = {{ lr = 0.02 }}
        schedule = {{ kind = "cosine", warmup_epochs = 0.5 }}
        checkpoint = {{ every = 2, keep = 2 }}
        output = {{ run = '{run}' }}
    """
    return parse_config(text, overrides)
