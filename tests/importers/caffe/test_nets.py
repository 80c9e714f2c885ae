from __future__ import annotations

import numpy as np
import pytest
import torch

from dnncore.importers.caffe import import_caffe
from dnncore.importers.caffe.importer import translate
from dnncore.importers.caffe.net_state import NetState
from dnncore.nn.graph import Role
from dnncore.nn.passes import for_inference
from dnncore.nn.training import for_training
from tests.importers.caffe.files import assert_close, caffemodel, opencv, random_blobs, run
from tests.importers.caffe.nets import NETS, vgg

f = torch.nn.functional

_NARROWER = {
    "lenet": 1,
    "cifar10_quick": 1,
    "cifar10_full": 1,
    "mobilenet_v1": 8,
    "squeezenet1.0": 8,
    "mobilenet_v2": 8,
}


@pytest.mark.parametrize("name", NETS)
def test_the_published_nets_have_as_many_parameters_as_published(name: str) -> None:
    text, count = NETS[name][0](1), NETS[name][1]
    stored = translate(text.encode(), NetState(), {}).stored
    assert sum(int(np.prod(shape)) for one in stored.values() for shape in one.shapes) == count


@pytest.mark.parametrize("name", NETS)
def test_narrow_nets_agree_with_opencv(name: str) -> None:
    """But for the softmax, which would hide what is small beside the largest."""
    text = NETS[name][0](_NARROWER.get(name, 16))
    text = text[: text.rindex("layer")]
    weights = caffemodel(random_blobs(text))
    model = import_caffe(text.encode(), weights)
    x = np.random.default_rng(0).standard_normal((2, *model.graph.inputs[0].spec(1).shape[1:])).astype(np.float32)
    x[1] += np.linspace(-3, 3, x[1].size, dtype=np.float32).reshape(x[1].shape)
    (found,), expected = run(model, x).values(), opencv(text, weights, x)
    assert np.abs(expected[0] - expected[1]).max() > 0.01 * np.abs(expected).max(), "the images do not tell"
    assert_close(found, expected)


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "googlenet"])
def test_passes_leave_an_imported_net_what_it_is(name: str) -> None:
    """Normalisations go into convolutions together with the layers "Scale" behind them, so that none is left."""
    text = NETS[name][0](_NARROWER.get(name, 16))
    model = import_caffe(text.encode(), caffemodel(random_blobs(text)))
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    passed = for_inference(model)
    assert not {"batch_norm", "dropout"}.intersection(node.operator.kind for node in passed.graph.nodes)
    assert_close(run(passed, x)["prob"], run(model, x)["prob"], 1e-4)


@pytest.mark.parametrize("name", ["lenet", "cifar10_full", "alexnet", "googlenet", "resnet50"])
def test_imported_nets_can_be_trained(name: str) -> None:
    text = NETS[name][0](16)
    graph = import_caffe(text[: text.rindex("layer")].encode(), phase="train").graph
    assert for_training(graph).gradients.keys() == {one.name for one in graph.constants if one.role is Role.TRAINABLE}


_EXTENTS = {
    "alexnet": {"pool1": 27, "pool2": 13, "pool5": 6},
    "googlenet": {"pool1/3x3_s2": 56, "pool2/3x3_s2": 28, "pool3/3x3_s2": 14, "pool4/3x3_s2": 7},
    "resnet50": {"pool1": 56, "pool5": 1},
    "squeezenet1.1": {"pool3": 28, "pool5": 14},
    "cifar10_full": {"pool1": 16, "pool2": 8, "pool3": 4},
    "vgg16": {"pool5": 7},
}


@pytest.mark.parametrize("name", _EXTENTS)
def test_poolings_have_the_extents_that_caffe_gives_them(name: str) -> None:
    graph = translate(NETS[name][0](1).encode(), NetState(), {}).graph
    outputs = {node.name: node.outputs[0] for node in graph.nodes}
    found = {pool: graph.values[outputs[pool]].shape[2] for pool in _EXTENTS[name]}
    assert found == _EXTENTS[name]


def test_vgg_agrees_with_the_same_net_in_pytorch() -> None:
    """Of smaller images, with weights as old files have them."""
    text = vgg(16, 16).replace("input_dim: 224", "input_dim: 32")
    blobs = random_blobs(text)
    x = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    y = torch.tensor(x, dtype=torch.float64)
    block = "1"
    for name, arrays in blobs.items():
        weight, bias = (torch.tensor(array, dtype=torch.float64) for array in arrays)
        if name.startswith("conv"):
            y = y if name[4] == block else f.max_pool2d(y, 2)
            block = name[4]
            y = f.conv2d(y, weight, bias, padding=1).relu()
        else:
            y = f.max_pool2d(y, 2).flatten(1) if name == "fc6" else y.relu()
            y = f.linear(y, weight, bias)
    expected = y.softmax(1).numpy()
    assert_close(run(import_caffe(text.encode(), caffemodel(blobs, "legacy", 1)), x)["prob"], expected)
