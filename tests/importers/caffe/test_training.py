"""Nets as their files say that they are trained: losses with weights, multipliers of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import ModelImportError
from dnncore.importers.caffe import import_trainable
from dnncore.nn import Executor, Parameters
from dnncore.nn.graph import Role
from dnncore.nn.heads import Head
from dnncore.nn.losses import EuclideanLoss
from dnncore.nn.model import Model
from dnncore.nn.trainable import Multipliers, Trainable
from dnncore.nn.training import for_training
from dnncore.testing import tolerance
from dnncore.train.metrics import ranks
from tests.importers.caffe.files import caffemodel, data, layer, run

LABELS = 'layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN } }\n'
BODY = layer("Convolution", "conv", "data", "convolution_param { num_output: 4 kernel_size: 3 }") + layer(
    "ReLU", "relu", "conv", tops="conv"
)


_ROWS = (
    'layer { name: "d" type: "Data" top: "d" top: "label" }\n'
    + data(1, 4, name="logits")
    + layer("Power", "x", "logits")
)


def _classes(name: str, bottom: str, settings: str = "") -> str:
    return layer("InnerProduct", name, bottom, f"inner_product_param {{ num_output: 3 }} {settings}")


def _loss(name: str, bottom: str, settings: str = "", kind: str = "SoftmaxWithLoss") -> str:
    return layer(kind, name, f"{bottom} label", settings)


def test_losses_are_heads_of_which_the_heaviest_is_served() -> None:
    text = (
        LABELS
        + BODY
        + _classes("aux", "conv")
        + _loss("aux/loss", "aux", "loss_weight: 0.3")
        + _classes("own", "conv", "param { lr_mult: 10 } param { lr_mult: 20 decay_mult: 0 }")
        + _loss("own/loss", "own", "propagate_down: true propagate_down: false")
        + _loss("shown", "conv", "loss_weight: 0", "EuclideanLoss")
        + layer("Accuracy", "accuracy", "own label", "propagate_down: false propagate_down: false")
    )
    net, weights = import_trainable(text.encode(), image_shape=(3, 6, 6))
    assert net.heads == (Head("own"), Head("aux", 0.3))
    assert net.multipliers == {"own.weight": Multipliers(10), "own.bias": Multipliers(20, 0)}
    assert [value.name for value in net.graph.inputs] == ["data"]
    assert net.num_classes == 3
    assert {name.partition(".")[0] for name in net.graph.constant} == {"conv", "aux", "own"}
    assert {name.partition(".")[0] for name in net.served.constant} == {"conv", "own"}
    assert weights == {}


def test_a_file_without_losses_is_trained_by_what_its_softmax_reads() -> None:
    convolution = "convolution_param { num_output: 5 kernel_size: 6 } param { lr_mult: 0 }"
    text = data(10, 2, 6, 6) + layer("Convolution", "fc", "data", convolution) + layer("Softmax", "prob", "fc")
    blobs = [np.ones((5, 2, 6, 6), np.float32), np.ones(5, np.float32)]
    net, weights = import_trainable(text.encode(), caffemodel({"fc": blobs}))
    assert net.graph.values[net.heads[0].logits].shape == ("N", 5)
    assert [node.operator.kind for node in net.graph.nodes] == ["convolution", "flatten"]
    assert net.graph.constant["fc.weight"].role is Role.FIXED
    np.testing.assert_array_equal(weights["fc.weight"], blobs[0])


def test_losses_that_are_not_trained_with_are_listed_by_name() -> None:
    text = (
        LABELS
        + BODY
        + _classes("a", "conv", "propagate_down: false")
        + _loss("l1", "a", kind="InfogainLoss")
        + _loss("l2", "a", kind="SigmoidCrossEntropyLoss")
        + layer("EuclideanLoss", "l3", "a conv")
        + layer("SoftmaxWithLoss", "l4", "a conv")
        + layer("Power", "l5", "conv", "loss_weight: 2")
        + _loss("l6", "a", "propagate_down: false propagate_down: true")
        + _loss("l7", "a", "loss_weight: -1")
        + layer("HingeLoss", "l8", "a")
        + layer("SigmoidCrossEntropyLoss", "l9", "conv conv", "loss_param { ignore_label: 3 }")
    )
    with pytest.raises(ModelImportError) as caught:
        import_trainable(text.encode(), image_shape=(3, 6, 6))
    wrong = [problem for problem in caught.value.problems if "layer" in problem]
    assert [problem.split("'")[1] for problem in wrong] == ["a", "l6", "l5", "l1", "l2", "l3", "l4", "l7", "l8", "l9"]


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "normalization: VALID",
        "normalization: FULL",
        "normalization: BATCH_SIZE",
        "normalize: false",
        "normalize: true",
    ],
)
def test_a_loss_is_the_mean_over_the_batch_however_it_is_normalised(settings: str) -> None:
    """Of rows of classes, every image has one: the number of losses, of those that count and of images is the same."""
    net, _ = import_trainable((_ROWS + _loss("loss", "x", f"loss_param {{ {settings} }}")).encode())
    logits = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    labels = np.array([1, 3, 0], np.int32)
    loss, gradient = _step(net, logits, labels)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(probabilities[np.arange(3), labels]), rtol=1e-5)
    np.testing.assert_allclose(gradient, (probabilities - np.eye(4)[labels]) / 3, rtol=1e-4, atol=1e-6)


def test_the_loss_of_what_is_unlikely_is_not_cut_off_where_caffes_is() -> None:
    """A difference that docs/caffe.md lists: Caffe takes log(max(p, FLT_MIN)), and yet the same gradient."""
    net, _ = import_trainable((_ROWS + _loss("loss", "x")).encode())
    loss, gradient = _step(net, np.array([[200, 0, 0, 0], [1, 1, 1, 1]], np.float32), np.array([1, 2], np.int32))
    assert -np.log(np.finfo(np.float32).tiny) < 87.4
    np.testing.assert_allclose(loss, [200, np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(gradient[0], [0.5, -0.5, 0, 0], atol=1e-6)


def test_of_tied_scores_the_lower_class_is_right_where_caffe_counts_neither() -> None:
    """A difference that docs/caffe.md lists: Caffe's Accuracy counts who scores as much among those that are better."""
    scores = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 2]], np.float32)
    labels = np.array([0, 1, 2])
    own = scores[np.arange(3), labels][:, None]
    assert ((scores >= own).sum(1) - 1 < 1).tolist() == [False, False, True]  # Caffe's
    assert (ranks(scores, labels) < 1).tolist() == [True, False, True]


def _step(net: Trainable, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The losses of images, and the gradient of what they are of."""
    graph = for_training(net).graph
    graph = graph.rewritten(graph.nodes, outputs=("loss", "d.loss"))
    found = run(Model(graph, {}), logits, labels)
    return found["loss"], found["d.loss"]


f = torch.nn.functional


class Minimised(NamedTuple):
    """A net's losses by its file, and what Caffe minimises of logits [N, 3], labels, images [N, 3] and a single logit [N, 1].

    `normalize` and `normalization` are those of Caffe's loss_layer.cpp: VALID divides by what counts, at least 1, FULL by all,
    BATCH_SIZE by the images and NONE by 1.
    """

    name: str
    layers: str
    total: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _hinge(x: torch.Tensor, labels: torch.Tensor, power: int) -> torch.Tensor:
    signs = 1 - 2 * f.one_hot(labels, 3)
    return (1 + signs * x).clamp(min=0).pow(power).sum() / len(x)


def _softmax(settings: str) -> str:
    return _loss("loss", "x", f"loss_param {{ {settings} }}")


def _sigmoid(settings: str) -> str:
    sigmoid = layer("SigmoidCrossEntropyLoss", "more", "x data", f"loss_weight: 0.5 loss_param {{ {settings} }}")
    return _loss("loss", "x") + sigmoid


def _contrastive(settings: str) -> str:
    return layer("ContrastiveLoss", "more", "x data label", f"loss_weight: 0.5 contrastive_loss_param {{ {settings} }}")


def _contrasted(a: torch.Tensor, b: torch.Tensor, labels: torch.Tensor, margin: float, *, legacy: bool) -> torch.Tensor:
    """Caffe's formula: label 0 says that a pair is dissimilar, any other that it is similar."""
    squared = (a - b).square().sum(1)
    apart = (margin - squared).clamp(min=0) if legacy else (margin - squared.sqrt()).clamp(min=0).square()
    return torch.where(labels != 0, squared, apart).sum() / (2 * len(a))


MINIMISED = (
    Minimised("valid", _softmax("ignore_label: 1"), lambda x, c, _, __: f.cross_entropy(x, c, ignore_index=1)),
    Minimised(
        "ignored of the batch",
        _softmax("ignore_label: 1 normalization: BATCH_SIZE"),
        lambda x, c, _, __: f.cross_entropy(x, c, ignore_index=1, reduction="sum") / len(x),
    ),
    Minimised(
        "ignored in old files",
        _softmax("ignore_label: 1 normalize: false"),
        lambda x, c, _, __: f.cross_entropy(x, c, ignore_index=1, reduction="sum") / len(x),
    ),
    Minimised(
        "ignored of nothing",
        _softmax("ignore_label: 1 normalization: NONE"),
        lambda x, c, _, __: f.cross_entropy(x, c, ignore_index=1, reduction="sum"),
    ),
    Minimised("no class is ignored", _softmax("ignore_label: 255"), lambda x, c, _, __: f.cross_entropy(x, c)),
    Minimised("sum", _softmax("normalization: NONE"), lambda x, c, _, __: f.cross_entropy(x, c, reduction="sum")),
    Minimised("hinge", _loss("loss", "x", "", "HingeLoss"), lambda x, c, _, __: _hinge(x, c, 1)),
    Minimised(
        "squared hinge beside softmax",
        _loss("loss", "x") + _loss("hinge", "x", "loss_weight: 0.25 hinge_loss_param { norm: L2 }", "HingeLoss"),
        lambda x, c, _, __: f.cross_entropy(x, c) + 0.25 * _hinge(x, c, 2),
    ),
    Minimised(
        "distance from the images",
        _loss("loss", "x") + layer("EuclideanLoss", "more", "x data", "loss_weight: 0.5"),
        lambda x, c, t, __: f.cross_entropy(x, c) + 0.5 * (x - t).square().sum() / (2 * len(x)),
    ),
    Minimised(
        "distance of two values",
        _loss("loss", "x") + layer("Sigmoid", "y", "x") + layer("EuclideanLoss", "more", "x y", "loss_weight: 0.5"),
        lambda x, c, _, __: f.cross_entropy(x, c) + 0.5 * (x - x.sigmoid()).square().sum() / (2 * len(x)),
    ),
    Minimised(
        "distance from the label",
        _loss("loss", "x") + layer("EuclideanLoss", "more", "label single", "loss_weight: 0.5"),
        lambda x, c, _, z: f.cross_entropy(x, c) + 0.5 * (z[:, 0] - c).square().sum() / (2 * len(x)),
    ),
    Minimised(
        "sigmoids",
        _sigmoid(""),
        lambda x, c, t, _: (
            f.cross_entropy(x, c) + 0.5 * f.binary_cross_entropy_with_logits(x, t, reduction="sum") / len(x)
        ),
    ),
    Minimised(
        "logarithms of a softmax",
        layer("Softmax", "p", "x") + _loss("loss", "p", "", "MultinomialLogisticLoss"),
        lambda x, c, _, __: f.nll_loss(x.softmax(1).log(), c),
    ),
    Minimised(
        "logarithms of other probabilities",
        layer("Sigmoid", "p", "x") + _loss("loss", "p", "", "MultinomialLogisticLoss"),
        lambda x, c, _, __: -x.sigmoid().gather(1, c[:, None]).log().mean(),
    ),
    Minimised(
        "pairs that are alike or not",
        _loss("loss", "x") + _contrastive("margin: 4"),
        lambda x, c, t, _: f.cross_entropy(x, c) + 0.5 * _contrasted(x, t, c, 4, legacy=False),
    ),
    Minimised(
        "pairs that are apart enough",
        _loss("loss", "x") + _contrastive("margin: 1"),
        lambda x, c, t, _: f.cross_entropy(x, c) + 0.5 * _contrasted(x, t, c, 1, legacy=False),
    ),
    Minimised(
        "pairs in old files",
        _loss("loss", "x") + _contrastive("margin: 5 legacy_version: true"),
        lambda x, c, t, _: f.cross_entropy(x, c) + 0.5 * _contrasted(x, t, c, 5, legacy=True),
    ),
    Minimised(
        "sigmoids, their mean",
        _sigmoid("normalization: FULL"),
        lambda x, c, t, _: f.cross_entropy(x, c) + 0.5 * f.binary_cross_entropy_with_logits(x, t),
    ),
    Minimised(
        "sigmoids, their sum",
        _sigmoid("normalization: NONE"),
        lambda x, c, t, _: f.cross_entropy(x, c) + 0.5 * f.binary_cross_entropy_with_logits(x, t, reduction="sum"),
    ),
)

_IMAGES = (
    'layer { name: "d" type: "Data" top: "d" top: "label" }\n'
    + data(1, 3)
    + _classes("x", "data")
    + layer("InnerProduct", "single", "data", "inner_product_param { num_output: 1 }")
)


@pytest.mark.parametrize("case", MINIMISED, ids=lambda case: case.name)
def test_what_is_minimised_is_what_caffe_minimises(handle: Handle, case: Minimised) -> None:
    """Its value, and the gradients of all weights."""
    net, _ = import_trainable((_IMAGES + case.layers).encode())
    _compare(handle, net, case.total, np.array([1, 2, 0, 1, 2], np.int32))


def test_a_batch_in_which_nothing_counts_has_a_loss_of_0(handle: Handle) -> None:
    net, _ = import_trainable((_IMAGES + _softmax("ignore_label: 1")).encode())
    _compare(handle, net, lambda x, _, __, ___: 0 * x.sum(), np.ones(4, np.int32))


def test_probabilities_of_a_softmax_are_trained_by_its_logits_which_are_what_is_served() -> None:
    text = _IMAGES + layer("Softmax", "p", "x") + _loss("loss", "p", "", "MultinomialLogisticLoss")
    net, _ = import_trainable(text.encode())
    assert net.heads == (Head("x"),)
    assert net.served.outputs == ("x",)


def test_a_pair_that_is_the_same_and_should_not_be_has_no_gradient() -> None:
    """Nor has it in Caffe: no direction is better than another one. NaN would be the other answer."""
    text = _IMAGES + _classes("y", "data") + _loss("loss", "x") + layer("ContrastiveLoss", "pair", "x y label")
    net, _ = import_trainable(text.encode())
    training = for_training(net)
    weights = {one.name: np.zeros(one.shape, np.float32) for one in net.graph.constants}
    graph = training.graph.rewritten(training.graph.nodes, outputs=("loss", *training.gradients.values()))
    found = run(Model(graph, weights), np.ones((2, 3), np.float32), np.array([0, 1], np.int32))
    np.testing.assert_allclose(found["loss"], [np.log(3) + 0.5, np.log(3)], rtol=1e-6)
    for name in ("y.weight", "y.bias"):
        np.testing.assert_array_equal(found[training.gradients[name]], 0)


def test_a_sigmoid_of_one_logit_tells_two_classes_apart(handle: Handle) -> None:
    """As a softmax of 0 and the logit does, which is what is served."""
    net, _ = import_trainable((_IMAGES + _loss("loss", "single", "", "SigmoidCrossEntropyLoss")).encode())
    assert net.num_classes == 2
    assert net.heads == (Head("loss.logits"),)

    def total(_: torch.Tensor, labels: torch.Tensor, __: torch.Tensor, single: torch.Tensor) -> torch.Tensor:
        return f.binary_cross_entropy_with_logits(single[:, 0], labels.double())

    _compare(handle, net, total, np.array([1, 0, 0, 1], np.int32))


def test_only_a_loss_of_classes_makes_a_classifier() -> None:
    text = _IMAGES + layer("EuclideanLoss", "loss", "x data")
    with pytest.raises(ModelImportError, match="no loss is of classes: SoftmaxWithLoss, HingeLoss"):
        import_trainable(text.encode())


def test_a_heavier_loss_that_is_not_of_classes_is_not_what_is_served() -> None:
    text = _IMAGES + layer("EuclideanLoss", "more", "x data", "loss_weight: 9") + _loss("loss", "x", "loss_weight: 0.5")
    net, _ = import_trainable(text.encode())
    assert net.heads == (Head("x", 0.5), Head("x", 9.0, EuclideanLoss("data")))
    assert net.served.outputs == ("x",)


def _compare(
    handle: Handle,
    net: Trainable,
    total: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    labels: np.ndarray,
) -> None:
    """The mean of the images' losses, and the gradients of the weights there are, with what PyTorch makes of a formula."""
    training, rng = for_training(net), np.random.default_rng(0)
    weights = {one.name: rng.standard_normal(one.shape).astype(np.float32) for one in net.graph.constants}
    images = rng.uniform(0.1, 0.9, (len(labels), 3)).astype(np.float32)
    with (
        Parameters.upload(handle, training.graph, weights) as parameters,
        Executor(training.graph, handle, parameters, len(labels)) as executor,
    ):
        found = executor.run({"data": images, "labels": labels})
        leaves = {name: torch.tensor(array).double().requires_grad_() for name, array in weights.items()}
        inputs = torch.tensor(images).double()

        def product(name: str, classes: int) -> torch.Tensor:
            if f"{name}.weight" not in leaves:
                return torch.zeros(len(labels), classes, dtype=torch.float64)
            return f.linear(inputs, leaves[f"{name}.weight"], leaves[f"{name}.bias"])

        expected = total(product("x", 3), torch.tensor(labels).long(), inputs, product("single", 1))
        expected.backward()
        allowed = 10 * tolerance(DType.FLOAT32, 100)
        np.testing.assert_allclose(found["loss"].mean(), expected.item(), rtol=allowed, atol=allowed)
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            ours = found[training.gradients[name]]
            np.testing.assert_allclose(ours, leaf.grad.numpy(), rtol=allowed, atol=allowed, err_msg=name)
