"""Crops at random places: what becomes of an image before it, and where its middle is."""

from __future__ import annotations

from pathlib import Path

from dnncore.errors import BackendUnavailableError, ConfigError, ModelImportError, PreprocessingError
from dnncore.importers.loading import load_preprocessing
from dnncore.preprocessing import CenterCrop, Preprocessing
from dnncore.train.config import Config

__all__ = ["middle_of", "uncropped"]


def uncropped(
    config: Config, preprocessing: Preprocessing, image_shape: tuple[int, ...] | None = None
) -> Preprocessing:
    """A run's preprocessing without the crop at its end; a mean image is that of the whole image.

    Args:
        config: Of the run.
        preprocessing: With the crop.
        image_shape: (C, H, W) of the images as they are stored, where that is known.

    Raises:
        ConfigError: it does not end in a crop, or nobody knows how to do the rest to a whole image.
    """
    path, crop = Path(config.net.path), preprocessing.geometry[-1]
    if not isinstance(crop, CenterCrop):
        raise ConfigError(f'training.crop is "random", but preprocessing ends in {crop.name}; end it in center_crop')
    try:
        if config.preprocessing.of_net and path.suffix == ".prototxt":
            whole = load_preprocessing(path, crop=False, image_shape=image_shape)
        else:
            steps = tuple(step for step in preprocessing.steps if step is not crop)
            whole = Preprocessing(steps, preprocessing.max_pixels)
    except (BackendUnavailableError, ModelImportError, OSError, PreprocessingError) as error:
        raise ConfigError(f'training.crop is "random", but of whole images: {error}') from error
    if crop.height > whole.height or crop.width > whole.width:
        raise ConfigError(
            f'training.crop is "random", but {crop.height} x {crop.width} cannot be cut out of {whole.height} x {whole.width}'
        )
    return whole


def middle_of(preprocessing: Preprocessing, whole: Preprocessing) -> tuple[slice, slice]:
    """Rows and columns that preprocessing, which ends in a crop, leaves of whole images."""
    crop = preprocessing.geometry[-1]
    assert isinstance(crop, CenterCrop)
    top, left = crop.offset(whole.height, whole.width)
    return slice(top, top + crop.height), slice(left, left + crop.width)
