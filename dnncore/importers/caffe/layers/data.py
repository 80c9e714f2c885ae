"""Where images come from: each becomes an input of the graph, whatever the file says of its source, which is never opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dnncore.errors import BadParamError
from dnncore.importers.caffe.dnncore_caffe_pb2 import DummyDataParameter
from dnncore.importers.caffe.net import Site, at_least, with_batch
from dnncore.nn.graph import BATCH, Extent

__all__ = ["LAYERS"]

Shapes = list[Sequence[Extent] | None]


def _input(site: Site) -> None:
    site.takes(0, at_least(1))
    shapes = [tuple(shape.dim) for shape in site.layer.input_param.shape]
    if len(shapes) not in (0, 1, len(site.layer.top)):
        raise BadParamError(
            f"has {len(site.layer.top)} tops and {len(shapes)} shapes; one for all is needed, or one for each"
        )
    _declare(site, [*shapes * (len(site.layer.top) if len(shapes) == 1 else 1)])


def _dummy(site: Site) -> None:
    site.takes(0, at_least(1))
    param: DummyDataParameter = site.layer.dummy_data_param
    shapes = [tuple(shape.dim) for shape in param.shape]
    shapes += list(zip(param.num, param.channels, param.height, param.width, strict=False))
    _declare(site, [*shapes * (len(site.layer.top) if len(shapes) == 1 else 1)])


def _memory(site: Site) -> None:
    site.takes(0, range(1, 3))
    param = site.layer.memory_data_param
    side = site.layer.transform_param.crop_size
    _declare(site, [(param.batch_size, param.channels, side or param.height, side or param.width)])


def _records(site: Site) -> None:
    """Records of a database, whose extents a crop tells, and their channels if they are forced or somebody has looked."""
    site.takes(0, at_least(1))
    transform, found = site.layer.transform_param, site.net.image_shape
    side, stored = transform.crop_size, 3 if found is None else int(found[0])
    channels = 1 if transform.force_gray else 3 if transform.force_color else stored
    _declare(site, [(1, channels, side, side) if side else None])


def _images(site: Site) -> None:
    site.takes(0, range(1, 3))
    param, side = site.layer.image_data_param, site.layer.transform_param.crop_size
    height, width = side or param.new_height, side or param.new_width
    _declare(site, [(1, 3 if param.is_color else 1, height, width) if height and width else None])


def _windows(site: Site) -> None:
    site.takes(0, range(1, 3))
    side = site.layer.transform_param.crop_size
    _declare(site, [(1, 3, side, side) if side else None])


def _unknown(site: Site) -> None:
    site.takes(0, at_least(1))
    _declare(site, [None])


def _declare(site: Site, shapes: Sequence[tuple[int, ...] | None]) -> None:
    """An input for each top: of the extents that the caller gives, those found here, or one label for each image."""
    net = site.net
    for place, blob in enumerate(site.layer.top):
        if blob in net.input_shapes:
            net.input(blob, (BATCH, *net.input_shapes[blob]))
        elif place < len(shapes):
            shape = shapes[place]
            if shape is None and place == 0 and net.image_shape is not None:
                shape = (1, *net.image_shape)
            if shape and net.declared_batch is None:
                net.declared_batch = shape[0]
            net.input(blob, None if shape is None else with_batch(shape))
        else:
            net.input(blob, (BATCH,) if site.layer.type not in ("Input", "DummyData") else None)


LAYERS: dict[str, Callable[[Site], None]] = {
    "Data": _records,
    "DummyData": _dummy,
    "HDF5Data": _unknown,
    "ImageData": _images,
    "Input": _input,
    "MemoryData": _memory,
    "WindowData": _windows,
}
