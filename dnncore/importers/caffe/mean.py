"""mean.binaryproto: the mean of the images a net was trained with."""

from __future__ import annotations

import numpy as np

from dnncore.errors import ModelImportError
from dnncore.importers.caffe.blobs import to_array
from dnncore.importers.caffe.dnncore_caffe_pb2 import BlobProto
from dnncore.importers.caffe.reading import Source, name_of, read_binary

__all__ = ["read_mean"]


def read_mean(source: Source) -> np.ndarray:
    """The mean image, or another blob in a file of its own.

    Args:
        source: Path of a `.binaryproto`, or what is in one.

    Returns:
        float32 [C, H, W], channels in the order of the images, which is BGR where Caffe's tools made it; without the
        leading dimension, of extent 1, that the file has.

    Raises:
        ModelImportError: it cannot be read or is no such image.
    """
    what = name_of(source)
    mean = to_array(read_binary(source, BlobProto), what)
    if mean.ndim == 4 and mean.shape[0] == 1:
        mean = mean[0]
    if mean.ndim != 3 or mean.size == 0:
        raise ModelImportError(what, [f"is no mean image: its extents are {list(mean.shape)}"])
    return mean
