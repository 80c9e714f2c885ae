"""Statistics of BatchNorm while a net of Caffe is trained: sums over batches with a count, in which older ones fade."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.importers.caffe import import_caffe, import_trainable
from dnncore.nn import Executor, Graph, Package, Parameters
from dnncore.nn.graph import Role
from dnncore.nn.model import Model
from dnncore.nn.passes import for_inference
from dnncore.nn.training import in_training
from dnncore.train.checkpoint import Checkpoint, TrainingState
from tests.importers.caffe.files import assert_close, caffemodel, data, layer, random_blobs, run

CHANNELS = 3
FRACTION = 0.75
TEXT = data(8, CHANNELS, 4, 5) + layer(
    "BatchNorm", "bn", "data", f"batch_norm_param {{ moving_average_fraction: {FRACTION} }}"
)


class Blobs(NamedTuple):
    """The layer's three blobs as Caffe's solver has them."""

    mean: np.ndarray
    variance: np.ndarray
    factor: float

    def after(self, x: np.ndarray, fraction: float) -> Blobs:
        """What a forward pass in phase TRAIN makes of them."""
        size = x.size // x.shape[1]
        mean, variance = (getattr(x.astype(np.float64), what)((0, 2, 3)) for what in ("mean", "var"))
        return Blobs(
            fraction * self.mean + mean,
            fraction * self.variance + size / (size - 1) * variance,
            fraction * self.factor + 1,
        )

    @property
    def file(self) -> bytes:
        """A .caffemodel with them."""
        arrays = (self.mean, self.variance, np.array([self.factor]))
        return caffemodel({"bn": [array.astype(np.float32) for array in arrays]})


FRESH = Blobs(np.zeros(CHANNELS), np.zeros(CHANNELS), 0.0)
TRAINED = Blobs(np.array([3.0, -6.0, 0.5]), np.array([2.0, 30.0, 7.0]), 3.625)


def _batches(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [
        (rng.standard_normal((8, CHANNELS, 4, 5)) * (1 + batch) + batch).astype(np.float32) for batch in range(count)
    ]


def _trained(
    handle: Handle, graph: Graph, weights: Mapping[str, np.ndarray], batches: Iterable[np.ndarray]
) -> dict[str, np.ndarray]:
    training = in_training(graph)
    with (
        Parameters.upload(handle, training, weights) as parameters,
        Executor(training, handle, parameters, 8) as executor,
    ):
        for batch in batches:
            executor.run({"data": batch})
        return parameters.download()


def _assert_same(found: Mapping[str, np.ndarray], blobs: Blobs) -> None:
    np.testing.assert_allclose(found["bn.count"], [blobs.factor], rtol=1e-6)
    np.testing.assert_allclose(found["bn.mean"], blobs.mean / blobs.factor, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["bn.variance"], blobs.variance / blobs.factor, rtol=1e-5)


@pytest.fixture(name="cpu")
def _cpu() -> Iterator[Handle]:
    with Handle("cpu") as handle:
        yield handle


@pytest.mark.parametrize("fraction", [FRACTION, 0.999, 1.0, 0.0])
@pytest.mark.parametrize("blobs", [FRESH, TRAINED], ids=["fresh", "trained"])
def test_statistics_while_trained_are_caffes(handle: Handle, blobs: Blobs, fraction: float) -> None:
    """From a file whose factor is not 1, and from one that nobody has trained."""
    model = import_caffe(TEXT.replace(str(FRACTION), str(fraction)).encode(), blobs.file, phase="train")
    found = _trained(handle, model.graph, model.weights, _batches(4))
    for batch in _batches(4):
        blobs = blobs.after(batch, fraction)
    _assert_same(found, blobs)


def test_a_net_without_a_file_begins_with_its_first_batch(cpu: Handle) -> None:
    model = import_caffe(TEXT.encode(), phase="train")
    (batch,) = _batches(1)
    _assert_same(_trained(cpu, model.graph, model.weights, [batch]), FRESH.after(batch, FRACTION))


def test_checkpoints_and_packages_keep_the_count(cpu: Handle, tmp_path: Path) -> None:
    model = import_caffe(TEXT.encode(), TRAINED.file)
    batches, weights = _batches(3), dict(model.weights)
    expected = TRAINED
    for batch in batches:
        expected = expected.after(batch, FRACTION)
    weights = _trained(cpu, model.graph, weights, batches[:1])
    checkpoint = Checkpoint(TrainingState(), {}, "", weights, {})
    weights = dict(Checkpoint.decode(checkpoint.encode(), "there").weights)
    weights = _trained(cpu, model.graph, weights, batches[1:2])
    Package("bn", model.graph, weights, None, None).save(tmp_path / "package")
    package = Package.load(tmp_path / "package")
    assert package.graph.constant["bn.count"].role is Role.BUFFER
    weights = {name: np.asarray(package.weights[name]) for name in package.graph.constant}
    _assert_same(_trained(cpu, package.graph, weights, batches[2:]), expected)


def test_the_count_changes_nothing_of_a_net_that_is_run() -> None:
    (batch,) = _batches(1)
    model = import_caffe(TEXT.encode(), TRAINED.file)
    (node,) = model.graph.nodes
    without = model.graph.rewritten([replace(node, inputs=node.inputs[:5])])
    weights = {name: model.weights[name] for name in without.constant}
    assert_close(run(model, batch)["bn"], run(Model(without, weights), batch)["bn"], 0)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16], ids=lambda dtype: dtype.value)
def test_nor_of_one_that_is_served(dtype: DType) -> None:
    """Folded into the convolution before it, or by itself; the count stays in float32, as the statistics do."""
    text = TEXT + layer("Convolution", "conv", "bn", "convolution_param { num_output: 4 kernel_size: 3 }")
    text += layer("BatchNorm", "folded", "conv")
    (batch,) = _batches(1)
    model = import_caffe(text.encode(), caffemodel(random_blobs(text)))
    served = for_inference(model, dtype)
    assert [node.operator.kind for node in served.graph.nodes].count("batch_norm") == 1
    assert_close(run(served, batch)["folded"], run(model, batch)["folded"], 1e-5 if dtype is DType.FLOAT32 else 1e-2)


@pytest.mark.parametrize(
    ("settings", "updated"),
    [
        ("", {"bn.mean", "bn.variance", "bn.count"}),
        ("scale_bias: true", {"bn.mean", "bn.variance"}),
        ("use_global_stats: true", set()),
    ],
    ids=["BVLC", "NVIDIA", "global"],
)
def test_what_training_updates_is_what_the_layer_says(settings: str, updated: set[str]) -> None:
    text = data(8, CHANNELS, 4, 5) + layer("BatchNorm", "bn", "data", f"batch_norm_param {{ {settings} }}")
    net, _ = import_trainable(
        (text + layer("InnerProduct", "fc", "bn", "inner_product_param { num_output: 2 }")).encode()
    )
    assert in_training(net.graph).updates.keys() == updated
