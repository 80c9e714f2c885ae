"""torchvision and timm as what preprocessing is compared with, and the photographs that it is compared on.

Both are imported when they are used: it takes seconds, and every process of a test run collects every module.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.vision import torchvision

__all__ = [
    "PHOTOGRAPHS",
    "photograph",
    "run",
    "timm_configs",
    "timm_transform",
    "torchvision_preset",
    "torchvision_presets",
    "torchvision_segmentation",
]

_COUNTED = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std")


def _folder(package: str, *parts: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], *parts)


PHOTOGRAPHS = sorted(
    path
    for folder in (_folder("skimage", "data"), _folder("sklearn", "datasets", "images"))
    for path in folder.iterdir()
    if path.suffix in (".jpg", ".png")
)
"""Those that scikit-image and scikit-learn ship: colour, gray, 1 bit, with alpha, 128 x 128 to 2000 x 1411."""


def photograph(name: str) -> Path:
    """One of them."""
    return next(path for path in PHOTOGRAPHS if path.name == name)


def run(transform: Any, path: Path) -> np.ndarray:
    """What a transform makes of a file that is opened as torchvision's and timm's loaders open it."""
    with Image.open(path) as image:
        result: np.ndarray = transform(image.convert("RGB")).numpy()
    return result


def torchvision_preset(*, interpolation: str = "bilinear", **settings: Any) -> Any:
    """A preset for classification."""
    transforms = torchvision().transforms
    mode = transforms.InterpolationMode(interpolation)
    return transforms._presets.ImageClassification(interpolation=mode, **settings)


def torchvision_segmentation() -> Any:
    """A preset for something else."""
    return torchvision().transforms._presets.SemanticSegmentation(resize_size=520)


def torchvision_presets() -> list[Any]:
    """The preset of every classification model's weights, each once."""
    package = torchvision()
    models = package.models
    weights = [weight for name in models.list_models() for weight in models.get_model_weights(name)]
    presets = [weight.transforms() for weight in weights]
    kind = package.transforms._presets.ImageClassification
    return list({repr(preset): preset for preset in presets if isinstance(preset, kind)}.values())


def timm_configs() -> list[dict[str, Any]]:
    """What every pretrained model's configuration says of images, each once."""
    torchvision()
    models = importlib.import_module("timm.models")
    configs = [models.get_pretrained_cfg(name).to_dict() for name in models.list_pretrained()]
    counted = [{key: config.get(key) for key in _COUNTED} for config in configs]
    return list({str(config): config for config in counted}.values())


def timm_transform(config: dict[str, Any]) -> Any:
    """What timm evaluates such a model with."""
    torchvision()
    data = importlib.import_module("timm.data")
    return data.create_transform(**data.resolve_data_config(pretrained_cfg=config))
