from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import ChecksumError, PackageError, UnknownLayerError
from dnncore.nn import Executor, NetBuilder, Package, Parameters
from dnncore.nn.example import Example
from dnncore.nn.operators import Binary
from dnncore.nn.package import EXAMPLE_FILE, MODEL_FILE, WEIGHTS_FILE
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
    assert (loaded.name, loaded.graph, loaded.preprocessing, loaded.labels) == (
        package.name, package.graph, package.preprocessing, package.labels
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


def test_a_package_says_in_which_precision_it_is_to_be_served(package: Package, tmp_path: Path) -> None:
    assert package.precision is None
    dataclasses.replace(package, precision=DType.FLOAT16).save(tmp_path / "half")
    assert Package.load(tmp_path / "half").precision is DType.FLOAT16


def test_a_package_that_says_nothing_of_precision_is_read(folder: Path) -> None:
    """As those that were written before there was such a field."""
    _edit(folder, lambda document: document.pop("precision"))
    assert Package.load(folder).precision is None


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ("float8", "malformed.*float8"),
        ("bool", "not computed in bool; use one of float32"),
        ("int8", "int8 needs a calibration"),
    ],
)
def test_a_precision_that_cannot_be_is_refused(folder: Path, precision: str, message: str) -> None:
    _edit(folder, lambda document: document.update(precision=precision))
    with pytest.raises(PackageError, match=message):
        Package.load(folder)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/null")


IMPOSTORS: dict[str, tuple[Callable[[Path], object], str]] = {
    "FIFO": (os.mkfifo, "a FIFO"),
    "folder": (Path.mkdir, "a folder"),
    "device": (make_device, "a device"),
}


@contextmanager
def nobody_waits_for_ever(path: Path) -> Iterator[None]:
    """Who still waits for a writer of a FIFO after a while gets one that writes nothing."""
    end = threading.Timer(20.0, lambda: os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK)))
    end.start()
    try:
        yield
    finally:
        end.cancel()
        end.join()


@pytest.mark.parametrize("name", [MODEL_FILE, WEIGHTS_FILE, EXAMPLE_FILE])
@pytest.mark.parametrize(("put", "kind"), IMPOSTORS.values(), ids=IMPOSTORS)
def test_what_is_no_regular_file_is_refused_and_waited_for_by_nobody(
    package: Package, tmp_path: Path, put: Callable[[Path], object], kind: str, name: str
) -> None:
    example = Example({"data": np.zeros((1, 1, 8, 8), np.float32)}, {"logits": np.zeros((1, 10), np.float32)}, 0.0)
    dataclasses.replace(package, example=example).save(tmp_path / "digits")
    path = tmp_path / "digits" / name
    path.unlink()
    put(path)
    with nobody_waits_for_ever(path), pytest.raises(PackageError, match=rf"{name} is {kind}; put a regular file"):
        Package.load(tmp_path / "digits")


def test_files_that_are_too_large_are_not_read(folder: Path) -> None:
    os.truncate(folder / MODEL_FILE, (64 << 20) + 1)
    with pytest.raises(PackageError, match=r"model\.json has 67108865 B; at most 67108864 B are read"):
        Package.load(folder)


def _edit(folder: Path, change: Any) -> None:
    document = json.loads((folder / MODEL_FILE).read_text())
    change(document)
    (folder / MODEL_FILE).write_text(json.dumps(document))


def test_an_unknown_layer_is_refused_with_the_known_ones(folder: Path) -> None:
    _edit(folder, lambda d: d["graph"]["nodes"][1].update(operator="transformer.1"))
    with pytest.raises(UnknownLayerError, match=r"node 'relu1': operator 'transformer.1' .* has activation.1, "):
        Package.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="zip"), "not a model package"),
        (lambda d: d.update(format_version=99), "version 99"),
        (lambda d: d.pop("labels"), "malformed: KeyError"),
        (lambda d: d.update(labels=["a"]), "1 labels"),
        (lambda d: d["graph"].update(nodes=3), "malformed: TypeError"),
        (lambda d: d["graph"].update(outputs="logits"), "a list of names is needed"),
        (lambda d: d["graph"]["nodes"][0]["attributes"].update(stride="many"), "node 'conv1'.*stride many"),
        (lambda d: d["graph"]["nodes"][0]["attributes"].update(speed=3), "unexpected keyword argument 'speed'"),
        (lambda d: d["graph"]["constants"][0].update(shape=[17, 1, 3, 3]), "node 'conv1'"),
        (lambda d: d["graph"]["constants"][0].update(role="lead"), "malformed: ValueError"),
        (lambda d: d["graph"]["inputs"][0].update(shape=["N", 1, float("inf"), 8]), "malformed: OverflowError"),
        (lambda d: d["graph"]["inputs"][0].update(shape=["M", 1, 8, 8]), "must have extents of 0 or more"),
        (lambda d: d["graph"]["nodes"][1].update(inputs=["nowhere"]), "reads 'nowhere'"),
        (lambda d: d["preprocessing"]["steps"][1].update(height=9), "preprocessing makes"),
        (lambda d: d["preprocessing"]["steps"][0].update(order="pink"), "pink"),
        (lambda d: d["weights"].pop("ip1.bias"), "unknown"),
    ],
)
def test_a_malformed_model_file_is_refused_with_the_reason(folder: Path, change: Any, message: str) -> None:
    _edit(folder, change)
    with pytest.raises(PackageError, match=message):
        Package.load(folder)


def test_a_file_is_no_package_and_may_become_one(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").touch()
    with pytest.raises(PackageError, match=r"net\.onnx is no folder.*`dnncore import`"):
        Package.load(tmp_path / "net.onnx")


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "null"])
def test_files_that_are_no_document_are_refused(folder: Path, text: str) -> None:
    (folder / MODEL_FILE).write_text(text)
    with pytest.raises(PackageError, match=r"model\.json"):
        Package.load(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="nothing-here"):
        Package.load(tmp_path / "nothing-here")


def test_a_package_of_version_1_is_read_and_gives_what_it_gave(handle: Handle) -> None:
    package = Package.load(Path(__file__).parent / "data" / "package-v1")
    assert [node.operator.kind for node in package.graph.nodes] == [
        *("convolution", "activation", "convolution", "binary", "activation", "pooling", "activation"),
        *("flatten", "inner_product", "softmax"),
    ]
    x = (np.arange(72, dtype=np.float32) / 72).reshape(2, 1, 6, 6)
    with (
        Parameters.upload(handle, package.graph, package.weights) as parameters,
        Executor(package.graph, handle, parameters, 2) as executor,
    ):
        found = executor.run({"data": x})["probabilities"]
    # What dnncore at ff80be7, which wrote the package, computed on the CPU.
    expected = [[0.32358584, 0.45842263, 0.21799155], [0.3249992, 0.45410615, 0.22089463]]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["net"]["nodes"][1].update(type="Transformer"), r"'Transformer'; version 1 knows Add, Convolution"),
        (lambda d: d["net"]["nodes"][0]["settings"].update(speed=3), "node 'stem' .*unexpected keyword argument"),
        (lambda d: d["net"]["nodes"][0]["settings"].pop("kernel"), "node 'stem' .*missing .* 'kernel'"),
        (lambda d: d["net"]["nodes"][3].update(inputs=["left", "nowhere"]), "node 'join' reads 'nowhere'"),
        (lambda d: d["net"]["nodes"][3].update(inputs=["left"]), "node 'join'.*missing"),
        (lambda d: d["net"]["nodes"][0]["settings"].update(kernel=[9, 9]), "node 'stem'.*filter extent 9"),
    ],
)
def test_a_malformed_package_of_version_1_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    folder = shutil.copytree(Path(__file__).parent / "data" / "package-v1", tmp_path / "package")
    _edit(folder, change)
    with pytest.raises(PackageError, match=message):
        Package.load(folder)


def test_a_net_that_is_no_classifier_can_be_saved(tmp_path: Path) -> None:
    net = NetBuilder("two")
    a, b = net.input("a", ("N", 3)), net.input("b", (1,))
    graph = net.build(net.plus("sum", a, b), net.inner_product("score", a, 2))
    package = Package("two", graph, graph.initialize(0), None, None)
    package.save(tmp_path / "two")
    loaded = Package.load(tmp_path / "two")
    assert loaded.graph == graph
    assert loaded.serving_graph == graph
    assert (loaded.preprocessing, loaded.labels) == (None, None)


def test_a_constant_without_dimensions_keeps_none(tmp_path: Path) -> None:
    net = NetBuilder("scaled")
    graph = net.build(net.add("y", Binary("mul"), net.input("x", ("N", 3)), net.constant("factor", ())))
    Package("scaled", graph, graph.initialize(0), None, None).save(tmp_path / "scaled")
    assert Package.load(tmp_path / "scaled").weights["factor"].shape == ()
