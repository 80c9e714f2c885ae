"""solver.prototxt as a configuration: rates and updates by Caffe's formulas, runs from images in its own kinds of lists."""

from __future__ import annotations

import json
import math
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from dnncore.errors import ConfigError, PreprocessingError
from dnncore.importers.caffe.dnncore_caffe_pb2 import BlobProto
from dnncore.nn import Package
from dnncore.preprocessing import Preprocessing, from_caffe
from dnncore.train.__main__ import main
from dnncore.train.caffe_solver import solver_table
from dnncore.train.config import DataConfig, OptimizerConfig, load_config
from dnncore.train.data.arrays import ArrayImages
from dnncore.train.data.hdf5 import HDF5Images
from dnncore.train.data.image_list import ImageList
from dnncore.train.recipe import Recipe
from dnncore.train.schedule import make_schedule
from tests.importers.caffe.files import layer
from tests.train.fixtures import make_folder
from tests.train.test_lmdb import datum, write
from tests.train.test_nets import PROTOTXT

MAX_ITER = 40


def _caffe_rates(policy: str, settings: dict[str, float], values: tuple[int, ...] = ()) -> list[float]:
    """The rate of each iteration by the formulas of Caffe's documents, its counter of steps included."""
    gamma, power, stepsize = (settings.get(name, 0.0) for name in ("gamma", "power", "stepsize"))
    rates, current = [], 0
    for i in range(MAX_ITER):
        if policy == "multistep" and current < len(values) and i >= values[current]:
            current += 1
        match policy:
            case "fixed":
                factor = 1.0
            case "step":
                factor = gamma ** math.floor(i / stepsize)
            case "exp":
                factor = gamma**i
            case "inv":
                factor = (1 + gamma * i) ** -power
            case "multistep":
                factor = gamma**current
            case "poly":
                factor = (1 - i / MAX_ITER) ** power
            case _:
                factor = 1 / (1 + math.exp(-gamma * (i - stepsize)))
        rates.append(0.01 * factor)
    return rates


@pytest.mark.parametrize(
    ("policy", "settings", "values"),
    [
        ("fixed", {}, ()),
        ("step", {"gamma": 0.1, "stepsize": 7}, ()),
        ("exp", {"gamma": 0.9}, ()),
        ("inv", {"gamma": 0.0001, "power": 0.75}, ()),
        ("multistep", {"gamma": 0.5}, (5, 5, 9, 8, 30)),
        ("poly", {"power": 0.5}, ()),
        ("sigmoid", {"gamma": -0.3, "stepsize": 20}, ()),
    ],
)
def test_rates_are_those_of_caffes_formulas(
    tmp_path: Path, policy: str, settings: dict[str, float], values: tuple[int, ...]
) -> None:
    text = f'base_lr: 0.01 lr_policy: "{policy}" max_iter: {MAX_ITER} '
    text += " ".join(f"{name}: {value}" for name, value in settings.items())
    text += "".join(f" stepvalue: {value}" for value in values)
    path = tmp_path / "solver.prototxt"
    path.write_text(text)
    config = load_config(path, ["net.name=lenet", "data.kind=digits"])
    schedule = make_schedule(config.schedule, config.optimizer.lr, 10, config.training.iterations)
    assert [schedule.rate(i) for i in range(MAX_ITER)] == pytest.approx(
        _caffe_rates(policy, settings, values), rel=1e-12
    )


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", ("sgd", 0.9, "caffe", False)),
        ('type: "Nesterov"', ("sgd", 0.9, "caffe", True)),
        ('type: "Adam" momentum2: 0.99 delta: 1e-3', ("adam", 0.9, "torch", False, 0.99, 0.99, 1e-3)),
        ("solver_type: ADADELTA", ("adadelta", 0.9, "torch", False, 0.999, 0.99, 1e-8)),
        ('type: "RMSProp" rms_decay: 0.98 momentum: 0', ("rmsprop", 0.0, "torch", False, 0.999, 0.98, 1e-8)),
        ('type: "AdaGrad" momentum: 0', ("adagrad", 0.0, "torch", False, 0.999, 0.99, 1e-8)),
    ],
)
def test_every_method_of_caffe_is_ours(tmp_path: Path, text: str, values: tuple[object, ...]) -> None:
    path = tmp_path / "solver.prototxt"
    momentum = "" if "momentum: 0" in text else "momentum: 0.9"
    path.write_text(f'base_lr: 0.01 lr_policy: "fixed" max_iter: 9 {momentum} {text} clip_gradients: 8 iter_size: 4')
    found = load_config(path, ["net.name=lenet", "data.kind=digits"]).optimizer
    fields = (found.kind, found.momentum, found.momentum_style, found.nesterov)
    assert (*fields, found.momentum2, found.rms_decay, found.epsilon)[: len(values)] == values
    assert (found.clip_norm, found.penalty) == (2.0, "l2")


def test_momentum_where_caffe_has_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_text('base_lr: 0.01 lr_policy: "fixed" max_iter: 9 type: "RMSProp" momentum: 0.9')
    with pytest.raises(ConfigError, match=r"momentum 0.9 with type RMSProp, which has none"):
        load_config(path, ["net.name=lenet", "data.kind=digits"])


SOLVER = """
net: "train_val.prototxt"
base_lr: 0.01 lr_policy: "step" gamma: 0.5 stepsize: 6
momentum: 0.9 weight_decay: 0.0005
max_iter: 10 test_iter: 3 test_interval: 5 display: 2 snapshot: 4 snapshot_prefix: "snap/stripes"
random_seed: 3 solver_mode: CPU average_loss: 4
"""


def _listed(folder: Path, name: str, files: list[tuple[Path, int]]) -> None:
    folder.joinpath(name).write_text("".join(f"{path} {label}\n" for path, label in files))


@pytest.fixture
def caffe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as users of Caffe have it: a solver, a net, lists of images, of which one part is tested on."""
    root = make_folder(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    classes = sorted(path.name for path in root.iterdir())
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((root / name).iterdir())]
    _listed(tmp_path, "train.txt", [one for place, one in enumerate(files) if place % 5])
    _listed(tmp_path, "test.txt", files[::5])
    sized = "image_data_param { is_color: false new_height: 8 new_width: 8"
    net = PROTOTXT.replace(sized, f'{sized} source: "train.txt" batch_size: 8')
    transform = "include { phase: TEST } transform_param { scale: 0.0078125 mean_value: 127.5 }"
    tested = f'{transform} {sized} source: "test.txt" batch_size: 2 }}'
    net += f'layer {{ name: "t" type: "ImageData" top: "data" top: "label" {tested} }}'
    (tmp_path / "train_val.prototxt").write_text(net)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    return tmp_path


def test_a_solver_is_one_command_from_a_package(caffe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solver.prototxt"]) == 0, capsys.readouterr().err
    lines = [json.loads(line) for line in (caffe / "snap/stripes/journal.jsonl").read_text().splitlines()]
    rates = {line["iteration"]: line["lr"] for line in lines if line["event"] == "step"}
    assert rates == {2: 0.01, 4: 0.01, 6: 0.01, 8: 0.005, 10: 0.005}
    assert [line["iteration"] for line in lines if line["event"] == "evaluation"] == [5, 10]
    assert [line["iteration"] for line in lines if line["event"] == "checkpoint"] == [4, 8, 10]
    evaluation = json.loads((caffe / "snap/stripes/evaluation.json").read_text())
    assert evaluation["num_images"] == 6
    package = Package.load(caffe / "snap/stripes/package")
    assert package.labels == ("0", "1", "2")
    assert package.provenance["split"]["held_out"] == list(range(24, 30))
    config = load_config(caffe / "solver.prototxt")
    assert (config.seed, config.device, config.training.batch, config.training.mirror) == (3, "cpu", 8, True)
    assert load_config(caffe / "solver.prototxt", ["training.batch=4", "data.classes=n.txt"]).training.batch == 4


def test_what_a_solver_has_that_dnntrain_has_not_is_listed_at_once(caffe: Path) -> None:
    (caffe / "solver.prototxt").write_text(
        """train_net: "none.prototxt" type: "AdamW" lr_policy: "cyclic" regularization_type: "L3"
        weight_decay: 1 iter_size: 2 weights: "a" weights: "b" train_state { stage: "x" }"""
    )
    with pytest.raises(ConfigError) as caught:
        solver_table(caffe / "solver.prototxt", ["net.path"])
    for expected in (
        "max_iter",
        "base_lr",
        "type 'AdamW': there are SGD",
        "lr_policy 'cyclic'",
        "'L3'",
        "2 files",
        "stages",
    ):
        assert expected in str(caught.value)
    text = SOLVER + 'iter_size: 2 weights: "none.caffemodel"'
    (caffe / "solver.prototxt").write_text(text)
    net = (caffe / "train_val.prototxt").read_text()
    (caffe / "train_val.prototxt").write_text(
        net.replace('type: "ImageData"', 'type: "Data"').replace("scale: 0.0078125", "scale: 0.0078125 crop_size: 7")
    )
    with pytest.raises(ConfigError) as caught:
        load_config(caffe / "solver.prototxt")
    for expected in (
        "iter_size 2 for a net with BatchNorm",
        "LEVELDB '' is none that dnntrain reads",
        "none.caffemodel",
    ):
        assert expected in str(caught.value)
    for settings in ("normalization: NONE", "ignore_label: 1"):
        loss = f'type: "SoftmaxWithLoss" loss_param {{ {settings} }}'
        (caffe / "train_val.prototxt").write_text(net.replace('type: "SoftmaxWithLoss"', loss))
        with pytest.raises(ConfigError, match="iter_size 2 for the losses 'auxloss', 'loss', of which"):
            load_config(caffe / "solver.prototxt")
    overrides = ["net.path=train_val.prototxt", "data.kind=folder", "data.path=images"]
    assert load_config(caffe / "solver.prototxt", overrides).data == DataConfig("folder", "images")
    with pytest.raises(ConfigError, match="is no text of a SolverParameter"):
        load_config(caffe / "train_val.prototxt")


def test_images_to_test_on_that_are_found_in_another_way_are_refused(caffe: Path) -> None:
    net = (caffe / "train_val.prototxt").read_text()
    wrong = [
        ('source: "test.txt"', 'source: "test.txt" root_folder: "other/"', "root_folder 'other/' is not the ''"),
        ('"t" type: "ImageData"', '"t" type: "HDF5Data"', r"'t' \(HDF5Data\) of phase TEST"),
    ]
    for old, new, message in wrong:
        assert old in net
        (caffe / "train_val.prototxt").write_text(net.replace(old, new))
        with pytest.raises(ConfigError, match=message):
            load_config(caffe / "solver.prototxt")
        assert load_config(caffe / "solver.prototxt", ["data.held_out=test.txt"]).data.held_out == "test.txt"


def test_lengths_in_epochs_that_are_given_besides_win(caffe: Path) -> None:
    path = caffe / "solver.prototxt"
    config = load_config(path, ["training.epochs=3", "training.evaluate_every=2", "schedule.step_epochs=1.5"])
    training, schedule = config.training, config.schedule
    assert (training.epochs, training.iterations, training.evaluate_iterations) == (3, 0, 0)
    assert (schedule.step_epochs, schedule.step_iterations) == (1.5, 0)
    path.write_text(SOLVER.replace('"step"', '"multistep" stepvalue: 4'))
    schedule = load_config(path, ["schedule.milestones=[1.0, 2.0]"]).schedule
    assert (schedule.milestones, schedule.milestone_iterations) == ((1.0, 2.0), ())
    path.write_text(SOLVER.replace("stepsize: 6", "stepsize: 0"))
    with pytest.raises(ConfigError, match="stepsize 0: it must be 1 or more"):
        load_config(path)
    assert load_config(path, ["schedule.step_epochs=2.0"]).schedule.step_epochs == 2


def test_accumulated_batches_are_one_where_no_statistics_are_taken(caffe: Path) -> None:
    (caffe / "solver.prototxt").write_text(SOLVER + 'iter_size: 3 type: "Nesterov"')
    net = (
        (caffe / "train_val.prototxt")
        .read_text()
        .replace(layer("BatchNorm", "bn", "conv"), "")
        .replace('"bn"', '"conv"')
    )
    (caffe / "train_val.prototxt").write_text(net)
    config = load_config(caffe / "solver.prototxt")
    assert config.training.batch == 24
    assert config.optimizer == OptimizerConfig(0.01, 0.9, "caffe", True, 0.0005, True)


def test_mirrored_images_are_those_of_an_epoch_and_half_of_them(caffe: Path) -> None:
    recipes = [Recipe.of(load_config(caffe / "solver.prototxt", [f"training.mirror={on}"])) for on in ("false", "true")]
    turned = []
    for epoch in (0, 1, 0):
        plain, mirrored = (next(recipe.loader.batches(epoch, 0)).images for recipe in recipes)
        is_turned = [not np.array_equal(a, b) for a, b in zip(plain, mirrored, strict=True)]
        for a, b, turn in zip(plain, mirrored, is_turned, strict=True):
            assert np.array_equal(a[..., ::-1] if turn else a, b)
        turned.append(is_turned)
    assert turned[0] == turned[2] != turned[1]
    assert 0 < sum(turned[0]) < 8


def test_images_are_cropped_at_random_places_to_train_on_and_in_the_middle_to_test_on(caffe: Path) -> None:
    net = (
        (caffe / "train_val.prototxt").read_text().replace("new_height: 8 new_width: 8", "new_height: 11 new_width: 10")
    )
    net = net.replace("mean_value: 127.5", 'mean_file: "mean.binaryproto" crop_size: 8').replace("mirror: true", "")
    (caffe / "train_val.prototxt").write_text(net)
    mean = np.arange(110, dtype=np.float32).reshape(1, 11, 10)
    blob = BlobProto(channels=1, height=11, width=10, num=1, data=mean.reshape(-1))
    (caffe / "mean.binaryproto").write_bytes(blob.SerializeToString())
    config = load_config(caffe / "solver.prototxt")
    assert config.training.crop == "random"
    recipe = Recipe.of(config)
    files = [line.rpartition(" ")[0] for line in (caffe / "train.txt").read_text().splitlines()]
    whole = from_caffe({"scale": 0.0078125, "mean_file": "x"}, resize=(11, 10), channels=1, mean_image=mean)
    images = np.stack([whole.from_bytes(Path(file).read_bytes()) for file in files])
    windows = np.lib.stride_tricks.sliding_window_view(images, (8, 8), (2, 3))  # [n, 1, 4, 3, 8, 8]
    places = set()
    for epoch in (0, 1):
        order, batch = recipe.loader.order(epoch)[:8], next(recipe.loader.batches(epoch, 0))
        for image, index in zip(batch.images, order, strict=True):
            (place,) = np.argwhere((windows[index, 0] == image[0]).all((-1, -2))).tolist()
            places.add(tuple(place))
        assert np.array_equal(batch.images, next(recipe.loader.batches(epoch, 0)).images)
    assert {row for row, _ in places} == {0, 1, 2, 3}
    assert {column for _, column in places} == {0, 1, 2}
    tested = [Path(line.rpartition(" ")[0]) for line in (caffe / "test.txt").read_text().splitlines()]
    middles = np.stack([recipe.preprocessing.decode(path.read_bytes()) for path in tested])
    np.testing.assert_array_equal(recipe.split.held_out.read(np.arange(6)), middles)
    assert main(["solver.prototxt", "training.iterations=2"]) == 0
    with pytest.raises(ConfigError, match="preprocessing ends in resize; end it in center_crop"):
        Recipe.of(load_config(caffe / "solver.prototxt", ["preprocessing.of_net=false", "training.crop=random"]))


def test_a_database_is_trained_from(caffe: Path) -> None:
    for name in ("train", "test"):
        lines = (line.rpartition(" ") for line in (caffe / f"{name}.txt").read_text().splitlines())
        write(
            caffe / f"{name}_lmdb", [datum(np.asarray(Image.open(file))[None], int(label)) for file, _, label in lines]
        )
    net = (caffe / "train_val.prototxt").read_text().replace('type: "ImageData"', 'type: "Data"')
    net = net.replace("is_color: false new_height: 8 new_width: 8", "backend: LMDB").replace(
        "image_data_param", "data_param"
    )
    net = net.replace("scale: 0.0078125", "scale: 0.0078125 crop_size: 6").replace('.txt"', '_lmdb"')
    (caffe / "train_val.prototxt").write_text(net)
    config = load_config(caffe / "solver.prototxt")
    assert (config.data.kind, config.data.path, config.data.held_out) == ("lmdb", "train_lmdb", "test_lmdb")
    split = Recipe.of(config).split
    assert np.bincount(split.training.labels).tolist() == [8, 8, 8]
    expected = [
        np.asarray(Image.open(line.rpartition(" ")[0])) for line in (caffe / "test.txt").read_text().splitlines()
    ]
    np.testing.assert_array_equal(split.held_out.read(np.arange(6))[..., 0], np.stack(expected)[:, 1:7, 1:7])
    assert main(["solver.prototxt", "training.iterations=2"]) == 0


def test_lists_of_images_are_refused_with_the_line(tmp_path: Path) -> None:
    gray = Preprocessing.squash("gray", 4, 4, 1.0, (0.0,), (1.0,))
    path = tmp_path / "list.txt"
    Image.fromarray(np.full((4, 4), 7, np.uint8)).save(tmp_path / "a b.png")
    path.write_text("a b.png 1\n\na b.png 0\n")
    images = ImageList(path, f"{tmp_path}/", gray, ("no", "yes"))
    assert images.labels.tolist() == [1, 0]
    assert images.read(np.array([1])).tolist() == np.full((1, 4, 4, 1), 7).tolist()
    assert images.fingerprint != ImageList(path, f"{tmp_path}/./", gray, ("no", "yes")).name
    wrong = [("a.png\n", "list.txt:1: 'a.png' is no path"), ("a -1", "no path"), ("", "no images"), ("a 2", "label 2")]
    for text, message in wrong:
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            ImageList(path, "", gray, ("no", "yes"))


def _hdf5(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["data"], file["label"] = images, labels


def test_arrays_of_hdf5_are_images_if_they_are_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, 3, 4, 4))
    _hdf5(tmp_path / "a.h5", pixels[:2].astype(np.float32), np.array([[1.0], [0.0]]))
    _hdf5(tmp_path / "b.h5", pixels[2:].astype(np.uint8), np.array([2, 0, 1]))
    listed = tmp_path / "list.txt"
    listed.write_text(f"{tmp_path / 'a.h5'}\nb.h5\n")
    images = HDF5Images(listed, (3, 4, 4))
    assert (images.labels.tolist(), images.class_names) == ([1, 0, 2, 0, 1], ("0", "1", "2"))
    order = np.array([4, 0, 2])
    np.testing.assert_array_equal(images.read(order), np.moveaxis(pixels[order], 1, -1))
    _hdf5(tmp_path / "a.h5", pixels[:2] / 255, np.array([1, 0]))
    with pytest.raises(PreprocessingError, match=r"a.h5: image 1 has values that are no whole numbers"):
        HDF5Images(listed, (3, 4, 4)).read(np.array([1]))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["data"], file["label"] = h5py.ExternalLink("a.h5", "data"), np.zeros(2)
    with pytest.raises(ConfigError, match=r"b.h5.*/data is a ExternalLink"):
        HDF5Images(listed, (3, 4, 4))
    whole, other = (2, 3, 4, 4), (2, 1, 4, 4)
    wrong = [(np.zeros(3), whole, "2 images and 3 labels"), (np.array([0.5, 1]), whole, "labels that are no whole")]
    for labels, shape, message in [*wrong, (np.zeros(2), other, r"images \[1, 4, 4\]")]:
        _hdf5(tmp_path / "b.h5", np.zeros(shape, np.uint8), labels)
        with pytest.raises(ConfigError, match=message):
            HDF5Images(listed, (3, 4, 4))
    with h5py.File(
        tmp_path / "b.h5", "w"
    ) as file:  # of more than 2 GiB, which are read image by image; never written, so 0
        file.create_dataset("data", (1 << 20, 3, 4, 4), np.float64, chunks=(8, 3, 4, 4))
        file["label"] = np.zeros(1 << 20, np.uint8)
    assert not HDF5Images(listed, (3, 4, 4)).read(np.array([1 << 20])).any()
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("data", (1 << 24, 3, 4, 4), np.uint8, chunks=(1 << 24, 3, 4, 4))
        file["label"] = np.zeros(1 << 24, np.uint8)
    with pytest.raises(ConfigError, match="lies in chunks"):
        HDF5Images(listed, (3, 4, 4))
    (tmp_path / "b.h5").unlink()
    with pytest.raises(ConfigError, match=r"b.h5.*is not there"):
        HDF5Images(listed, (3, 4, 4))
    (tmp_path / "b.h5").write_bytes(b"\x89HDF\r\n\x1a\nnothing")
    with pytest.raises(ConfigError, match=r"b.h5.*is no HDF5 file, or damaged"):
        HDF5Images(listed, (3, 4, 4))


def _in_memory(caffe: Path, settings: str = "") -> str:
    """The net with its images in memory, [1, 8, 8], and these as arrays; returns the settings of a run that say where."""
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 3
    images = np.clip(rng.integers(0, 60, (30, 1, 8, 8)) + 90 * labels[:, None, None, None], 0, 255)
    (caffe / "arrays").mkdir()
    np.save(caffe / "arrays" / "data.npy", images.astype(np.float32))
    np.save(caffe / "arrays" / "label.npy", labels)
    memory = f"memory_data_param {{ batch_size: 6 channels: 1 height: 8 width: 8 }} {settings}"
    net = f'layer {{ name: "m" type: "MemoryData" top: "data" top: "label" {memory} }}\n'
    net += layer("InnerProduct", "fc", "data", 'inner_product_param { num_output: 3 weight_filler { type: "xavier" } }')
    (caffe / "train_val.prototxt").write_text(net + layer("SoftmaxWithLoss", "loss", "fc label"))
    return "arrays"


def test_what_is_in_memory_is_given_as_arrays(caffe: Path) -> None:
    _in_memory(caffe, "transform_param { scale: 0.0078125 mean_value: 127.5 }")
    with pytest.raises(ConfigError, match=r"'m' \(MemoryData\): a program gives the images: data.kind=arrays"):
        load_config(caffe / "solver.prototxt")
    given = ["data.kind=arrays", "data.path=arrays", "data.held_out=arrays"]
    config = load_config(caffe / "solver.prototxt", given)
    assert config.training.batch == 6
    recipe = Recipe.of(config)
    assert recipe.preprocessing.input_shape == (1, 8, 8)
    images = np.load(caffe / "arrays" / "data.npy")
    batch = next(recipe.loader.batches(0, 0))
    np.testing.assert_array_equal(batch.images, (images[recipe.loader.order(0)[:6]] - 127.5) / 128)
    assert main(["solver.prototxt", *given]) == 0
    evaluation = json.loads((caffe / "snap/stripes/evaluation.json").read_text())
    assert evaluation["num_images"] == 30
    assert evaluation["top1"] > 0.6


def test_what_is_in_memory_is_taken_as_it_is_where_nothing_is_said(caffe: Path) -> None:
    _in_memory(caffe)
    recipe = Recipe.of(load_config(caffe / "solver.prototxt", ["data.kind=arrays", "data.path=arrays"]))
    assert recipe.preprocessing == from_caffe({}, resize=(8, 8), channels=1)


def test_images_that_fillers_make_are_refused_with_what_to_give(caffe: Path) -> None:
    _in_memory(caffe)
    net = (caffe / "train_val.prototxt").read_text()
    shapes = "shape { dim: 4 dim: 1 dim: 8 dim: 8 } shape { dim: 4 }"
    dummy = net.replace('"MemoryData"', '"DummyData"').replace(
        "memory_data_param", f"dummy_data_param {{ {shapes} }} memory_data_param"
    )
    (caffe / "train_val.prototxt").write_text(dummy)
    with pytest.raises(ConfigError, match=r"'m' \(DummyData\): its fillers make no images .* data.kind=arrays"):
        load_config(caffe / "solver.prototxt", ["training.batch=4", "preprocessing.height=8"])


def test_arrays_that_are_no_images_with_labels_are_refused(tmp_path: Path) -> None:
    whole, label = np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 1, 0])
    wrong = [
        (whole, label[:3], "4 images and 3 labels"),
        (whole, label - 1, "labels that are no whole numbers"),
        (whole[:, :, 1:], label, r"images \[1, 1, 2\], preprocessing gives"),
        (whole.astype(object), label, "data.npy: cannot be read"),
        (whole.astype("S1"), label, r"holds \|S1"),
    ]
    for data, labels, message in wrong:
        np.save(tmp_path / "data.npy", data)
        np.save(tmp_path / "label.npy", labels)
        with pytest.raises(ConfigError, match=message):
            ArrayImages(tmp_path, (1, 2, 2))
    np.save(tmp_path / "data.npy", whole + 0.5)
    with pytest.raises(PreprocessingError, match=r"data.npy: among the images \[2, 0\] are values that are no whole"):
        ArrayImages(tmp_path, (1, 2, 2)).read(np.array([2, 0]))
    (tmp_path / "label.npy").unlink()
    with pytest.raises(ConfigError, match=r"label.npy: cannot be read"):
        ArrayImages(tmp_path, (1, 2, 2))
