"""What the data layer of a net of Caffe does to images, as our preprocessing."""

from __future__ import annotations

import os
from pathlib import Path

from dnncore.errors import PreprocessingError
from dnncore.importers.caffe.mean import read_mean
from dnncore.importers.caffe.transformation import read_transformation
from dnncore.preprocessing import Preprocessing, from_caffe

__all__ = ["read_preprocessing"]

_USUAL_SIZE = (256, 256)
"""What convert_imageset makes of ImageNet's images, which no prototxt says."""


def read_preprocessing(prototxt: str | os.PathLike[str], input_shape: tuple[int, ...]) -> Preprocessing:
    """The preprocessing that a net's definition for training names for its phase TEST, train_val.prototxt say.

    A mean image is looked for beside the definition, whatever folder it names, and says the size that images had before the crop;
    without one that is 256 x 256, or the net's input where nothing is cropped.

    Args:
        prototxt: Path of the definition.
        input_shape: (C, H, W) of the net's input.

    Raises:
        ModelImportError: a file is malformed.
        PreprocessingError: the definition says nothing of images, its mean image is not there, or images are mirrored at random.
    """
    path = Path(prototxt)
    found = read_transformation(path)
    if found is None:
        raise PreprocessingError(f"{path} has no data layer with a transform_param for the phase TEST")
    size, mean = (_USUAL_SIZE if found.crop_size else input_shape[1:]), None
    if found.mean_file:
        mean_path = path.parent / Path(found.mean_file).name
        if not mean_path.is_file():
            raise PreprocessingError(f"{path} names the mean image {found.mean_file}; put it at {mean_path}")
        mean = read_mean(mean_path)
        size = mean.shape[1:]
    return from_caffe(found, resize=(size[0], size[1]), channels=input_shape[0], mean_image=mean)
