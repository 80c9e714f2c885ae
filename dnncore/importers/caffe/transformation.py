"""What a net's data layer does to images: facts for whoever prepares them, since the file that names a net names these too."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.errors import ModelImportError
from dnncore.importers.caffe.dnncore_caffe_pb2 import NetParameter
from dnncore.importers.caffe.net import decimal
from dnncore.importers.caffe.net_state import NetState
from dnncore.importers.caffe.reading import Source, name_of, read_text
from dnncore.importers.caffe.upgrade import upgraded_layers

__all__ = ["Transformation", "read_transformation"]


@dataclass(frozen=True)
class Transformation:
    """scale (image - mean), of a crop: random in training, else of the middle. Immutable.

    Images are of bytes as numbers, 0 to 255, [C, H, W], with channels in the order BGR.

    Args:
        scale: Factor of what is left once the mean is subtracted.
        mirror: Whether images are mirrored at random, in any phase.
        crop_size: Extent of the square crop; 0 for none. A mean image is cropped at the same place.
        mean_value: One for all channels, or one for each; () for none.
        mean_file: Path of the mean image as the file says it, for `read_mean`; "" for none. It is not opened.
        force_color: Whether images are in color, whatever was stored.
        force_gray: Whether they are in gray.
        resize: (rows, columns) that images are brought to, or have, before; None where the layer leaves them as they were stored.
    """

    scale: float = 1.0
    mirror: bool = False
    crop_size: int = 0
    mean_value: tuple[float, ...] = ()
    mean_file: str = ""
    force_color: bool = False
    force_gray: bool = False
    resize: tuple[int, int] | None = None


def read_transformation(prototxt: Source, *, phase: str = "test") -> Transformation | None:
    """What the data layer of a phase does to images; None where the net has none, as those for deployment.

    Args:
        prototxt: Path of the net's definition, or its text as bytes.
        phase: "test" or "train".

    Raises:
        ModelImportError: the file is malformed, or the layer names two means.
        BadParamError: the phase is neither.
    """
    state = NetState(phase)
    layers, problems = upgraded_layers(read_text(prototxt, NetParameter))
    if problems:
        raise ModelImportError(name_of(prototxt), problems)
    for layer in state.kept(layers):
        if layer.HasField("transform_param") or layer.type == "MemoryData":
            found = layer.transform_param
            if found.mean_file and found.mean_value:
                raise ModelImportError(name_of(prototxt), [f"layer {layer.name!r} has both mean_file and mean_value"])
            means = tuple(map(decimal, found.mean_value))
            image, memory = layer.image_data_param, layer.memory_data_param
            size = (image.new_height, image.new_width) if image.new_height and image.new_width else None
            gray = found.force_gray or not image.is_color
            if layer.type == "MemoryData":  # which is as large as the layer says, and as it is where that says no more
                size, gray = (memory.height, memory.width), gray or memory.channels == 1
            return Transformation(
                *(decimal(found.scale), found.mirror, found.crop_size, means, found.mean_file),
                *(found.force_color, gray, size),
            )
    return None
