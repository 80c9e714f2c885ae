from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnncore.errors import ChecksumError, PackageError, UnknownLayerError
from dnncore.nn import Package
from dnncore.nn.package import MODEL_FILE, WEIGHTS_FILE
from dnncore.nn.zoo import lenet
from dnncore.preprocessing import CenterCrop, Color, ExifOrientation, Preprocessing, Resize, SubtractMeanImage

GRAY = Preprocessing.squash("gray", 8, 8, 1 / 255, (0.0,), (1.0,))


@pytest.fixture
def package() -> Package:
    net = lenet()
    return Package("digits", net, net.initialize(0), GRAY, tuple("0123456789"), {"seed": 0})


@pytest.fixture
def folder(package: Package, tmp_path: Path) -> Path:
    package.save(tmp_path / "digits")
    return tmp_path / "digits"


def test_what_was_saved_is_loaded(package: Package, folder: Path) -> None:
    loaded = Package.load(folder)
    assert (loaded.name, loaded.net, loaded.preprocessing, loaded.labels) == (
        package.name, package.net, package.preprocessing, package.labels
    )  # fmt: skip
    assert dict(loaded.provenance) == {"seed": 0}
    assert all(np.array_equal(loaded.weights[name], array) for name, array in package.weights.items())


def test_a_package_keeps_a_pipeline_and_a_mean_image(package: Package, tmp_path: Path) -> None:
    mean = SubtractMeanImage.of(np.random.default_rng(0).random((1, 8, 8)))
    pipeline = Preprocessing((ExifOrientation(), Color("gray"), Resize(9, 9, "cover"), CenterCrop(8, 8), mean))
    dataclasses.replace(package, preprocessing=pipeline).save(tmp_path / "with_mean")
    assert Package.load(tmp_path / "with_mean").preprocessing == pipeline


def test_a_package_from_before_there_were_steps_is_loaded(folder: Path) -> None:
    settings = {
        "color": "gray",
        "height": 8,
        "width": 8,
        "scale": 1 / 255,
        "mean": [0.0],
        "std": [1.0],
        "max_pixels": 50_000_000,
    }
    _edit(folder, lambda document: document.update(preprocessing=settings))
    assert Package.load(folder).preprocessing == GRAY


def test_saving_again_replaces_the_folder_and_leaves_nothing_behind(package: Package, folder: Path) -> None:
    package.save(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["digits"]
    assert Package.load(folder).name == "digits"


def test_saving_over_something_else_is_refused(package: Package, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(PackageError, match="is no model package"):
        package.save(tmp_path / "precious")
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"


def test_a_flipped_bit_is_found_and_the_tensor_named(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS_FILE).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS_FILE).write_bytes(data)
    with pytest.raises(ChecksumError, match=r"tensor '.*' in weights.safetensors"):
        Package.load(folder)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_truncated_weights_are_refused(folder: Path, keep: int) -> None:
    data = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(data[:keep])
    with pytest.raises(PackageError, match=r"weights\.safetensors"):
        Package.load(folder)


def _edit(folder: Path, change: Any) -> None:
    document = json.loads((folder / MODEL_FILE).read_text())
    change(document)
    (folder / MODEL_FILE).write_text(json.dumps(document))


def test_an_unknown_layer_is_refused_with_the_known_ones(folder: Path) -> None:
    _edit(folder, lambda d: d["net"]["nodes"][1].update(type="Transformer"))
    with pytest.raises(UnknownLayerError, match=r"'Transformer'; this version of dnncore knows Add, Convolution"):
        Package.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="zip"), "not a model package"),
        (lambda d: d.update(format_version=99), "version 99"),
        (lambda d: d.pop("labels"), "malformed: KeyError"),
        (lambda d: d.update(labels=["a"]), "1 labels"),
        (lambda d: d["net"].update(nodes=3), "malformed: TypeError"),
        (lambda d: d["net"]["nodes"][0]["settings"].update(num_output="many"), "malformed"),
        (lambda d: d["net"]["nodes"][0]["settings"].update(speed=3), "unexpected keyword argument 'speed'"),
        (lambda d: d["net"]["nodes"][0]["settings"].update(num_output=17), "conv1.weight|node 'conv2'"),
        (lambda d: d["net"]["input"].update(shape=[1, float("inf"), 8]), "malformed: OverflowError"),
        (lambda d: d["net"]["nodes"][1].update(inputs=["nowhere"]), "reads 'nowhere'"),
        (lambda d: d["preprocessing"]["steps"][1].update(height=9), "preprocessing makes"),
        (lambda d: d["preprocessing"]["steps"][0].update(order="pink"), "pink"),
        (lambda d: d["weights"].pop("ip1.bias"), "unknown"),
    ],
)
def test_a_malformed_model_file_is_refused_with_the_reason(folder: Path, change: Any, message: str) -> None:
    _edit(folder, change)
    with pytest.raises(PackageError, match=message):
        Package.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "null"])
def test_files_that_are_no_document_are_refused(folder: Path, text: str) -> None:
    (folder / MODEL_FILE).write_text(text)
    with pytest.raises(PackageError, match=r"model\.json"):
        Package.load(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="nothing-here"):
        Package.load(tmp_path / "nothing-here")
