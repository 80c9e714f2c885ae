from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dnncore import Handle
from dnncore.errors import ConfigError, DivergedError
from dnncore.nn import Package
from dnncore.nn.zoo import lenet
from dnncore.preprocessing import Preprocessing
from dnncore.train.config import DataConfig
from dnncore.train.data import Dataset, open_dataset
from dnncore.train.evaluate import evaluate
from tests.train.fixtures import CLASSES, make_folder

GRAY = Preprocessing.squash("gray", 8, 8, 1 / 255, (0.5,), (0.5,))


@pytest.fixture
def stripes(tmp_path: Path) -> Dataset:
    return open_dataset(DataConfig("folder", str(make_folder(tmp_path / "stripes", per_class=5))), GRAY)


def package(labels: tuple[str, ...] = CLASSES, scale: float = 1.0) -> Package:
    net = lenet(len(labels), (1, 8, 8))
    weights = {name: array * np.float32(scale) for name, array in net.initialize(0).items()}
    return Package("stripes", net, weights, GRAY, labels)


def test_an_evaluation_is_what_running_the_package_image_by_image_gives(handle: Handle, stripes: Dataset) -> None:
    evaluation = evaluate(handle, package(), stripes, batch=4)
    alone = [evaluate(handle, package(), _Only(stripes, index), batch=1) for index in range(15)]
    assert evaluation.num_images == 15
    assert evaluation.predictions.tolist() == [int(one.predictions[0]) for one in alone]
    assert evaluation.loss == pytest.approx(np.mean([one.loss for one in alone]), rel=1e-5)
    assert evaluation.top1 == np.mean(evaluation.predictions == stripes.labels)
    assert evaluation.top5 == 1.0
    assert evaluation.confusion.sum(axis=1).tolist() == [5, 5, 5]
    assert evaluation.confusion.trace() / 15 == evaluation.top1


class _Only:
    """One image of a dataset."""

    def __init__(self, dataset: Dataset, index: int) -> None:
        self.name, self.class_names, self.fingerprint = dataset.name, dataset.class_names, dataset.fingerprint
        self.labels = dataset.labels[index : index + 1]
        self._dataset, self._index = dataset, index

    def read(self, indices: np.ndarray) -> np.ndarray:
        return self._dataset.read(indices + self._index)


def test_an_evaluation_is_plain_json_and_a_table(handle: Handle, stripes: Dataset) -> None:
    evaluation = evaluate(handle, package(), stripes)
    values = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert values["class_names"] == list(CLASSES)
    assert [entry["label"] for entry in values["per_class"]] == list(CLASSES)
    assert values["confusion"] == evaluation.confusion.tolist()
    assert len(evaluation.table().splitlines()) == 4


def test_other_classes_than_the_packages_are_refused(handle: Handle, stripes: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"has the classes \['a', 'b', 'c'\], the data have \['diagonal'"):
        evaluate(handle, package(("a", "b", "c")), stripes)


def test_probabilities_that_are_not_finite_are_refused(handle: Handle, stripes: Dataset) -> None:
    with np.errstate(all="ignore"), pytest.raises(DivergedError, match="not finite"):
        evaluate(handle, package(scale=1e30), stripes)
