"""The preprocessing that a definition for training names for its phase TEST."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dnncore.errors import PreprocessingError
from dnncore.importers.caffe import read_preprocessing
from dnncore.importers.model_file import ModelFile
from dnncore.preprocessing import from_caffe
from tests.importers.caffe.files import blob, caffemodel, random_blobs
from tests.importers.caffe.nets import NETS


def _definition(folder: Path, settings: str) -> Path:
    path = folder / "train_val.prototxt"
    train = 'layer { name: "t" type: "Data" top: "data" include { phase: TRAIN } transform_param { mirror: true } }'
    test = f'layer {{ name: "d" type: "Data" top: "data" include {{ phase: TEST }} {settings} }}'
    path.write_text(f'{train}\n{test}\nlayer {{ name: "y" type: "ReLU" bottom: "data" top: "y" }}')
    return path


def test_crop_mean_values_and_scale_are_those_of_the_test_phase(tmp_path: Path) -> None:
    path = _definition(
        tmp_path, "transform_param { crop_size: 224 mean_value: [104, 117, 123] scale: 0.5 mirror: false }"
    )
    expected = from_caffe({"crop_size": 224, "mean_value": [104, 117, 123], "scale": 0.5}, resize=(256, 256))
    assert read_preprocessing(path, (3, 224, 224)) == expected


def test_a_mean_image_is_beside_the_definition_and_tells_the_size(tmp_path: Path) -> None:
    path = _definition(tmp_path, 'transform_param { crop_size: 8 mean_file: "data/of/others/mean.binaryproto" }')
    with pytest.raises(PreprocessingError, match=r"names the mean image data/of/others/mean.binaryproto; put it at"):
        read_preprocessing(path, (3, 8, 8))
    mean = np.random.default_rng(0).uniform(0, 255, (3, 12, 10)).astype(np.float32)
    (tmp_path / "mean.binaryproto").write_bytes(blob(mean[None]).SerializeToString())
    expected = from_caffe({"crop_size": 8}, resize=(12, 10), mean_image=mean)
    assert read_preprocessing(path, (3, 8, 8)) == expected


def test_a_net_is_served_as_it_was_trained(tmp_path: Path) -> None:
    lenet = NETS["lenet"][0](4)
    (tmp_path / "lenet.prototxt").write_text(lenet)
    (tmp_path / "lenet.caffemodel").write_bytes(caffemodel(random_blobs(lenet)))
    path = _definition(tmp_path, "transform_param { scale: 0.00390625 }")
    package = ModelFile(tmp_path / "lenet.prototxt", preprocess=str(path)).package("test")
    assert package.preprocessing == from_caffe({"scale": 0.00390625}, resize=(28, 28), channels=1)


def test_images_that_are_read_from_files_have_the_size_and_the_colors_that_the_layer_says(tmp_path: Path) -> None:
    sized = "image_data_param { new_height: 20 new_width: 30 is_color: false }"
    path = _definition(tmp_path, f"transform_param {{ crop_size: 8 scale: 2 }} {sized}")
    path.write_text(path.read_text().replace('"Data"', '"ImageData"'))
    expected = from_caffe({"crop_size": 8, "scale": 2, "force_gray": True}, resize=(20, 30))
    assert read_preprocessing(path) == expected


def test_without_a_layer_of_phase_test_that_of_training_counts_but_for_mirroring(tmp_path: Path) -> None:
    path = _definition(tmp_path, "")
    assert read_preprocessing(path, (3, 8, 9)) == from_caffe({}, resize=(8, 9))
    with pytest.raises(PreprocessingError, match="does not say how large images are"):
        read_preprocessing(path)


def test_what_cannot_be_served_so_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreprocessingError, match="mirror"):
        read_preprocessing(_definition(tmp_path, "transform_param { mirror: true }"), (3, 8, 8))
    deploy = tmp_path / "deploy.prototxt"
    deploy.write_text(NETS["lenet"][0](4))
    with pytest.raises(PreprocessingError, match="has no data layer"):
        read_preprocessing(deploy, (1, 28, 28))
