from __future__ import annotations

import numpy as np
import pytest

from dnncore import Handle
from dnncore.nn import Executor, Parameters, Role
from dnncore.nn.model import Model
from dnncore.nn.passes import for_inference
from dnncore.nn.zoo import ZOO

# Parameters as torchvision publishes them (GoogLeNet without its auxiliary heads), and thousands of millions of multiply-adds.
SIZES = {
    "alexnet": (61_100_840, 0.714),
    "googlenet": (6_624_904, 1.498),
    "mobilenet_v2": (3_504_872, 0.301),
    "resnet18": (11_689_512, 1.814),
    "resnet50": (25_557_032, 4.089),
    "vgg16": (138_357_544, 15.470),
}


@pytest.mark.parametrize(("name", "sizes"), SIZES.items())
def test_parameters_and_work_are_those_of_the_architecture(name: str, sizes: tuple[int, float]) -> None:
    graph = ZOO[name](1000, (3, 224, 224))
    trainable = sum(constant.spec.size for constant in graph.constants if constant.role is Role.TRAINABLE)
    assert (trainable, round(graph.macs() / 1e9, 3)) == sizes
    assert graph.values[graph.outputs[0]].shape == ("N", 1000)


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2", "resnet18"])
def test_what_is_served_computes_what_was_trained(name: str) -> None:
    graph = ZOO[name](10, (3, 32, 32))
    rng = np.random.default_rng(0)
    weights = {
        n: array * np.float32(0.9) if n.endswith("variance") else array + rng.normal(0, 0.01, array.shape).astype("f4")
        for n, array in graph.initialize(0).items()
    }
    x = rng.standard_normal((2, 3, 32, 32)).astype(np.float32)
    found = []
    with Handle("cpu") as handle:
        for model in (Model(graph, weights), for_inference(Model(graph, weights))):
            with (
                Parameters.upload(handle, model.graph, model.weights) as parameters,
                Executor(model.graph, handle, parameters, 2) as executor,
            ):
                found.append(executor.run({"data": x})[graph.outputs[0]].copy())
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=2e-4 * np.abs(found[0]).max())
