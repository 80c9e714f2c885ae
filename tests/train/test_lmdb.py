"""Databases of Caffe: written by python-lmdb and protobuf, read by ours."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image

from dnncore.errors import ConfigError, PreprocessingError
from dnncore.importers.caffe.dnncore_caffe_pb2 import Datum
from dnncore.preprocessing import Preprocessing, from_caffe
from dnncore.train.data.datum import read_datum
from dnncore.train.data.lmdb_images import LmdbImages

RNG = np.random.default_rng(0)
BGR = RNG.integers(0, 256, (4, 3, 9, 8), np.uint8)
GRAY = Preprocessing.squash("gray", 4, 4, 1.0, (0.0,), (1.0,))


def write(path: Path, values: Sequence[bytes]) -> Path:
    with lmdb.open(str(path), map_size=1 << 22) as environment, environment.begin(write=True) as transaction:
        for number, value in enumerate(values):
            transaction.put(b"%08d" % number, value)
    return path


def datum(planes: np.ndarray, label: int) -> bytes:
    channels, height, width = planes.shape
    message = Datum(channels=channels, height=height, width=width, data=planes.tobytes(), label=label)
    return bytes(message.SerializeToString())


def png(planes: np.ndarray, label: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.moveaxis(planes[::-1], 0, -1)).save(file, "PNG")
    return bytes(Datum(data=file.getvalue(), encoded=True, label=label).SerializeToString())


def test_pixels_and_files_in_a_database_are_the_same_images(tmp_path: Path) -> None:
    """Pixels lie blue, green, red; a net may want another order, or the middle."""
    preprocessing = from_caffe({"crop_size": 6, "mean_value": (1.0, 2.0, 3.0)}, resize=(9, 8))
    mixed = [(datum, png)[place % 2](planes, 2 - place % 3) for place, planes in enumerate(BGR)]
    images = LmdbImages(write(tmp_path / "mixed", mixed), preprocessing)
    assert (images.labels.tolist(), images.class_names) == ([2, 1, 0, 2], ("0", "1", "2"))
    order = np.array([3, 0, 1])
    np.testing.assert_array_equal(images.read(order), np.moveaxis(BGR[order][:, :, 1:7, 1:7], 1, -1))
    rgb = Preprocessing.squash("rgb", 9, 8, 1.0, (0.0,) * 3, (1.0,) * 3)
    turned = LmdbImages(tmp_path / "mixed", rgb, ("a", "b", "c")).read(order)
    np.testing.assert_array_equal(turned, np.moveaxis(BGR[order][:, ::-1], 1, -1))
    pixels = LmdbImages(write(tmp_path / "pixels", [datum(BGR[0], 2), datum(BGR[1], 1)]), rgb)
    assert pixels.fingerprint != images.fingerprint


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (datum(BGR[0], 0), r"key b'00000000': pixels are uint8\[9, 8, 3\]; uint8 \[H, W, 1\] is needed"),
        (bytes(Datum(channels=1, height=3, width=3, data=b"abc").SerializeToString()), r"3 B are no pixels \[1, 3, 3\]"),
        (bytes(Datum(encoded=True, data=b"no image").SerializeToString()), "are not a readable"),
        (bytes(Datum(channels=1, height=1, width=1, float_data=[0.5]).SerializeToString()), "0 B are no pixels"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_named_by_its_key(tmp_path: Path, value: bytes, message: str) -> None:
    images = LmdbImages(write(tmp_path / "images", [value]), GRAY)
    with pytest.raises(PreprocessingError, match=message):
        images.read(np.array([0]))


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    wrong = [
        (datum(BGR[0], 5), "data.classes 2 names"),
        (b"\x0f", "key b'00000000': no Datum"),
        (b"\x22\xff", "no Datum"),
    ]
    for number, (value, message) in enumerate([*wrong, (datum(BGR[0], -1), "no Datum|is none from 0")]):
        path = write(tmp_path / str(number), [value])
        with pytest.raises(ConfigError, match=message):
            LmdbImages(path, GRAY, ("a", "b"))
    with pytest.raises(ConfigError, match="holds no images"):
        LmdbImages(write(tmp_path / "none", []), GRAY)
    with pytest.raises(ConfigError, match="is no LMDB database"):
        LmdbImages(tmp_path / "nowhere", GRAY)


def test_a_datum_that_was_cut_or_changed_is_read_or_refused() -> None:
    whole = datum(BGR[0], 7)
    for number in range(2000):
        rng = np.random.default_rng(number)
        changed = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        changed[rng.integers(min(16, len(changed)))] = rng.integers(256)
        try:
            found = read_datum(memoryview(changed))
        except PreprocessingError:
            continue
        assert len(found.data) <= len(changed)
