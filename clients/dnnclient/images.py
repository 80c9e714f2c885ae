"""Where a command's images come from: files, folders, or a seeded generator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dnncore.errors import BadParamError
from dnncore.preprocessing import SUFFIXES

__all__ = ["image_files", "synthetic_images"]


def image_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that paths name: each file as it is, and each folder's image files, by name.

    Raises:
        BadParamError: a path does not exist, or a folder has no such file.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES)
            if not found:
                raise BadParamError(f"folder {path} has no file that ends in {', '.join(SUFFIXES)}")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            raise BadParamError(f"{path} is neither a file nor a folder")
    return files


def synthetic_images(input_shape: Sequence[int], count: int, seed: int = 0) -> list[np.ndarray]:
    """Return count arrays of random pixels, uint8 [H, W, C], for a model with inputs [C, H, W].

    They need no decoding by the server, and what is predicted for them means nothing.

    Raises:
        BadParamError: the model reads something else.
    """
    if len(input_shape) != 3:
        raise BadParamError(
            f"synthetic images are [C, H, W]; a row of the model's only input is {list(input_shape)}, if it has one"
        )
    channels, height, width = input_shape
    generator = np.random.default_rng(seed)
    return list(generator.integers(0, 256, (count, height, width, channels), np.uint8))
