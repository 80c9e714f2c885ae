"""What the data layer of a net of Caffe does to images, as our preprocessing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from dnncore.errors import PreprocessingError
from dnncore.importers.caffe.mean import read_mean
from dnncore.importers.caffe.transformation import read_transformation
from dnncore.preprocessing import Preprocessing, from_caffe

__all__ = ["read_preprocessing"]

_USUAL_SIZE = (256, 256)
"""What convert_imageset makes of ImageNet's images, which no prototxt says."""


def read_preprocessing(
    prototxt: str | os.PathLike[str],
    input_shape: tuple[int, ...] | None = None,
    *,
    crop: bool = True,
    image_shape: tuple[int, ...] | None = None,
) -> Preprocessing:
    """The preprocessing that a net's definition for training names for its phase TEST, train_val.prototxt say; or for TRAIN,
    without mirroring, where TEST has no data layer.

    A mean image is looked for beside the definition, whatever folder it names. The size that images had before the crop is what the
    layer says (new_height and new_width), or the mean image's, or, where there is neither, 256 x 256, or the net's input where
    nothing is cropped.

    Args:
        prototxt: Path of the definition.
        input_shape: (C, H, W) of the net's input; None for three channels, and a size that the definition must say.
        crop: Whether the middle is cut out, as the definition says; else everything else is done to the whole image.
        image_shape: (C, H, W) of the images as they are stored, where somebody knows.

    Raises:
        ModelImportError: a file is malformed.
        PreprocessingError: the definition says nothing of images, or not how large they are, its mean image is not there, or images
            are mirrored at random when the net is run.
    """
    path = Path(prototxt)
    found = read_transformation(path)
    if found is None:
        trained = read_transformation(path, phase="train")
        found = None if trained is None else replace(trained, mirror=False)
    if found is None:
        raise PreprocessingError(f"{path} has no data layer with a transform_param")
    channels, *extents = image_shape or input_shape or (3,)
    guessed = _USUAL_SIZE if found.crop_size and image_shape is None else tuple(extents)
    size, mean = found.resize or guessed, None
    if found.mean_file:
        mean_path = path.parent / Path(found.mean_file).name
        if not mean_path.is_file():
            raise PreprocessingError(f"{path} names the mean image {found.mean_file}; put it at {mean_path}")
        mean = read_mean(mean_path)
        size = found.resize or mean.shape[1:]
    if len(size) != 2:
        raise PreprocessingError(f"{path} does not say how large images are: no crop_size, no new_height and new_width")
    if not crop:
        found = replace(found, crop_size=0)
    return from_caffe(found, resize=(size[0], size[1]), channels=channels, mean_image=mean)
