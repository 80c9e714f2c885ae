"""From image bytes to a net's input: the one code path that training, evaluation, the server and clients share.

`Preprocessing` is a pipeline of named steps and part of the model package, so an image is treated when it is served as it was when
the net was trained. Needs Pillow (extra `[image]`, part of `[server]`, `[client]` and `[train]`) to decode and resize; the
arithmetic needs NumPy only.
"""

from dnncore.preprocessing.decoding import Background, Color, ExifOrientation
from dnncore.preprocessing.formats import SUFFIXES
from dnncore.preprocessing.geometry import CenterCrop, CentralFraction, Resize
from dnncore.preprocessing.mappings import from_caffe, from_timm, from_torchvision
from dnncore.preprocessing.normalization import Divide, Normalization, Scale, SubtractMean, SubtractMeanImage
from dnncore.preprocessing.presets import PRESETS, preset
from dnncore.preprocessing.specification import Preprocessing
from dnncore.preprocessing.steps import STEPS, Step

__all__ = [
    "PRESETS",
    "STEPS",
    "SUFFIXES",
    "Background",
    "CenterCrop",
    "CentralFraction",
    "Color",
    "Divide",
    "ExifOrientation",
    "Normalization",
    "Preprocessing",
    "Resize",
    "Scale",
    "Step",
    "SubtractMean",
    "SubtractMeanImage",
    "from_caffe",
    "from_timm",
    "from_torchvision",
    "preset",
]
