"""Nets of Caffe: prototxt of all three generations, `.caffemodel` and mean images, of BVLC's and of NVIDIA's Caffe."""

from dnncore.importers.caffe.importer import import_caffe, import_trainable
from dnncore.importers.caffe.mean import read_mean
from dnncore.importers.caffe.preprocessing import read_preprocessing
from dnncore.importers.caffe.transformation import Transformation, read_transformation

__all__ = [
    "Transformation",
    "import_caffe",
    "import_trainable",
    "read_mean",
    "read_preprocessing",
    "read_transformation",
]
