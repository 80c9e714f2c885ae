"""Nets in int8: what the operators compute, what a calibration finds, what the pass makes, and what a trained net loses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError, PackageError
from dnncore.nn import BATCH, Executor, Graph, NetBuilder, Package, Parameters
from dnncore.nn.calibration import Calibration, calibrate
from dnncore.nn.graph import Constant, Node, Value
from dnncore.nn.model import Model
from dnncore.nn.operator import Operator
from dnncore.nn.operators import (
    Concat,
    Dequantize,
    Quantize,
    QuantizedConvolution,
    QuantizedInnerProduct,
)
from dnncore.nn.passes import for_inference, quantize
from tests.nn.nets import TWINS, residual

I8, F32 = DType.INT8, DType.FLOAT32


def _run(handle: Handle, model: Model, feeds: dict[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, batch) as executor,
    ):
        return {name: array.copy() for name, array in executor.run(feeds).items()}


def _one_node(operator: Operator, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray]) -> Model:
    """A net of one node, which reads the feeds it knows and then the constants, by the operator's names."""
    names = [name for name in operator.input_names if name in feeds or name in constants]
    inputs = tuple(Value(name, DType.of(x.dtype), (BATCH, *x.shape[1:])) for name, x in feeds.items())
    known = tuple(Constant(name, x.shape, DType.of(x.dtype)) for name, x in constants.items())
    return Model(Graph("one", inputs, ("y",), (Node("y", operator, tuple(names), ("y",)),), known), constants)


def test_values_are_rounded_to_even_and_saturate(handle: Handle) -> None:
    x = np.array([[0.25, -0.25, 0.75, 63, 64, -63.9, -1e9, np.nan]], np.float32)
    found = _run(handle, _one_node(Quantize(0.5), {"x": x}, {}), {"x": x}, 1)["y"]
    assert found.tolist() == [[0, 0, 2, 126, 127, -128, -128, 0]]
    back = _run(handle, _one_node(Dequantize(0.5, "float16"), {"x": found}, {}), {"x": found}, 1)["y"]
    assert back.dtype == np.float16
    assert back.tolist() == [[0, 0, 1, 63, 63.5, -64, -64, 0]]


@pytest.mark.parametrize("activation", [None, "relu", "sigmoid"])
def test_a_convolution_adds_up_whole_numbers_and_rounds_once(handle: Handle, activation: str | None) -> None:
    rng = np.random.default_rng(0)
    x, w, z = (
        rng.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 16, 6, 5), (32, 16, 3, 3), (2, 32, 6, 5))
    )
    scale = rng.uniform(1e-5, 2e-5, 32).astype(np.float32)
    bias = rng.uniform(-1, 1, 32).astype(np.float32)
    operator = QuantizedConvolution(padding=1, y_scale=0.01, residual_scale=0.005, activation=activation)
    model = _one_node(operator, {"x": x, "residual": z}, {"weight": w, "scale": scale, "bias": bias})
    found = _run(handle, model, {"x": x, "residual": z}, 2)["y"]
    wide = [torch.from_numpy(array.astype(np.float64)) for array in (x, w)]
    sums = torch.nn.functional.conv2d(wide[0], wide[1], padding=1).numpy()
    value = sums * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1) + 0.005 * z
    after = {"relu": np.maximum(value, 0), "sigmoid": 1 / (1 + np.exp(-value))}.get(str(activation), value) / 0.01
    assert found.dtype == np.int8
    assert np.abs(found - np.clip(after, -128, 127)).max() <= 0.5 + 1e-3
    assert len(np.unique(found)) > 50


def test_an_inner_product_does_too(handle: Handle) -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 48), (32, 48)))
    scale = rng.uniform(1e-4, 2e-4, 32).astype(np.float32)
    model = _one_node(QuantizedInnerProduct(y_scale=0.1), {"x": x}, {"weight": w, "scale": scale})
    found = _run(handle, model, {"x": x}, 3)["y"]
    exact = (x.astype(np.int64) @ w.astype(np.int64).T) * scale / 0.1
    assert np.abs(found - np.clip(exact, -128, 127)).max() <= 0.5 + 1e-3


def _calibrated(model: Model, feeds: dict[str, np.ndarray], method: str = "mse") -> Calibration:
    with Handle("cpu") as handle:
        return calibrate(for_inference(model), [feeds], handle, method)


def test_a_calibration_knows_what_layers_read_and_write() -> None:
    model = Model(residual(16), residual(16).initialize(0))
    x = np.random.default_rng(2).standard_normal((4, 3, 8, 8)).astype(np.float32)
    with Handle("cpu") as handle:
        fused = for_inference(model)
        found = calibrate(fused, [{"data": x[:3]}, {"data": x[3:]}], handle, "max")
        assert found.images == 4
        assert found.ranges.keys() >= {"data", "stem.relu", "a.relu", "join.relu", "logits"}
        assert "probabilities" not in found.ranges
        assert found.ranges["data"] == np.abs(x).max()
        with pytest.raises(BadParamError, match="no inputs"):
            calibrate(fused, [], handle)
        with pytest.raises(BadParamError, match="'data' has elements that are not finite"):
            calibrate(fused, [{"data": np.full_like(x, np.inf)}], handle)
    assert Calibration.from_dict(found.to_dict()) == found
    for wrong in ({"ranges": {"a": -1.0}}, {"ranges": {"a": float("nan")}}, {"method": "best"}):
        with pytest.raises(BadParamError, match=r"range|method"):
            Calibration.from_dict(found.to_dict() | wrong)


def test_the_least_error_lets_outliers_saturate() -> None:
    net = NetBuilder("wide")
    graph = net.build(net.inner_product("y", net.input("x", (BATCH, 100001)), 2))
    x = np.random.default_rng(3).standard_normal((1, 100001)).astype(np.float32)
    x[0, 0] = 12
    model = Model(graph, graph.initialize(0))
    assert _calibrated(model, {"x": x}, "max").ranges["x"] == 12
    least = _calibrated(model, {"x": x}).ranges["x"]
    assert 4 < least < 9

    def error(limit: float) -> float:
        step = limit / 127
        return float(np.square(np.clip(np.rint(x / step), -127, 127) * step - x).sum())

    assert error(least) <= 1.05 * min(error(limit) for limit in np.linspace(3, 12, 100))


def test_layers_between_the_ends_are_quantized_and_a_residual_too() -> None:
    model = Model(residual(16), residual(16).initialize(0))
    x = np.random.default_rng(4).standard_normal((4, 3, 8, 8)).astype(np.float32)
    fused, calibration = for_inference(model), _calibrated(model, {"data": x})
    changed = quantize(fused, calibration).graph
    kinds = [node.operator.kind for node in changed.nodes]
    assert kinds[:5] == [
        "fused_convolution",
        "quantize",
        "quantized_convolution",
        "quantized_convolution",
        "dequantize",
    ]
    assert "quantized_inner_product" not in kinds
    a, b = changed.nodes[2:4]
    assert a.inputs[0] == b.inputs[4] == "stem.relu.int8"
    operator = b.operator
    assert isinstance(operator, QuantizedConvolution)
    assert operator.residual_scale == calibration.scale(["stem.relu"])
    assert changed.constant["a.weight.int8"].dtype is I8
    assert "a.weight" not in changed.constant
    narrow = for_inference(model, I8, calibration=calibration)
    assert narrow.graph.constant["a.weight.scale"].dtype is F32
    assert narrow.graph.values["join.relu"].dtype is DType.FLOAT16
    assert for_inference(model, I8, ["quantize"], calibration).weights.keys() == fused.weights.keys()
    with pytest.raises(BadParamError, match="'residual' cannot be run in int8: it is not calibrated"):
        for_inference(model, I8)
    with pytest.raises(BadParamError, match=r"does not know a\.relu"):
        quantize(fused, Calibration({"stem.relu": 1.0, "join.relu": 1.0}, "max", 1))


def test_parts_of_a_whole_share_a_scale_and_few_channels_stay_as_they_are() -> None:
    net = NetBuilder("parts")
    x = net.relu("relu0", net.convolution("conv0", net.input("x", (BATCH, 3, 6, 6)), 16, 3, padding=1))
    one = net.relu("relu1", net.convolution("conv1", x, 16, 3, padding=1))
    two = net.relu("relu2", net.convolution("conv2", x, 32, 3, padding=1))
    whole = net.pooling("pool", net.concat("whole", one, two), "max", 2)
    deep = net.convolution("deep", whole, 48, 3, padding=1, groups=48)
    few = net.convolution("few", deep, 12, 1)
    graph = net.build(net.inner_product("logits", few, 5))
    model = Model(graph, graph.initialize(0))
    x0 = np.random.default_rng(5).standard_normal((4, 3, 6, 6)).astype(np.float32)
    calibration = _calibrated(model, {"x": x0})
    changed = quantize(for_inference(model), calibration).graph
    by_name = {node.name: node for node in changed.nodes}
    (whole_node,) = (node for node in changed.nodes if isinstance(node.operator, Concat))
    assert changed.values[whole_node.outputs[0]].dtype is I8
    scales = {by_name[name].operator.attributes["y_scale"] for name in ("conv1", "conv2")}
    assert scales == {calibration.scale(["relu1", "relu2", "whole", "pool"])}
    assert {by_name[name].operator.kind for name in ("deep", "few")} == {"convolution"}
    (back,) = (node for node in changed.nodes if isinstance(node.operator, Dequantize))
    assert back.outputs == ("pool",)


def test_a_net_on_every_device_is_near(handle: Handle) -> None:
    model = Model(residual(16), residual(16).initialize(0))
    x = np.random.default_rng(6).standard_normal((4, 3, 8, 8)).astype(np.float32)
    expected = _run(handle, for_inference(model), {"data": x}, 4)["probabilities"]
    narrow = for_inference(model, I8, calibration=_calibrated(model, {"data": x}))
    found = _run(handle, narrow, {"data": x}, 4)["probabilities"]
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() <= 0.02
    assert np.array_equal(found.argmax(1), expected.argmax(1))


def test_a_trained_net_names_the_same_digits() -> None:
    """Nine of ten images train LeNet, to other bits on other machines; of all of them int8 must agree with float32 on 99 %."""
    from sklearn.datasets import load_digits  # here: it takes seconds, and every process of a run imports every module

    twin = next(twin for twin in TWINS if twin.graph.name == "lenet")
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    held = np.arange(len(images)) % 10 == 0
    torch.manual_seed(0)
    weights = {name: torch.tensor(array, requires_grad=True) for name, array in twin.graph.initialize(0).items()}
    x, labels = torch.from_numpy(images[~held]), torch.from_numpy(digits.target[~held])
    for _ in range(200):
        picked = torch.randint(len(x), (64,))
        loss = torch.nn.functional.cross_entropy(twin.function(x[picked], weights)[0], labels[picked])
        gradients = torch.autograd.grad(loss, list(weights.values()))
        for weight, gradient in zip(weights.values(), gradients, strict=True):
            weight.data -= 0.2 * gradient
    model = Model(twin.graph, {name: array.detach().numpy() for name, array in weights.items()})
    narrow = for_inference(model, I8, calibration=_calibrated(model, {"data": images[~held][:128]}))
    kinds = {node.operator.kind for node in narrow.graph.nodes}
    assert {"quantized_convolution", "quantized_inner_product", "pooled_convolution"} <= kinds
    with Handle("cpu") as handle:
        expected = _run(handle, model, {"data": images}, len(images))["logits"]
        found = _run(handle, narrow, {"data": images}, len(images))["logits"]
    assert np.mean((expected.argmax(1) == digits.target)[held]) > 0.95
    assert np.mean(found.argmax(1) == expected.argmax(1)) >= 0.99
    assert np.linalg.norm(found - expected) <= 0.03 * np.linalg.norm(expected)


def test_a_package_keeps_its_calibration(tmp_path: Path) -> None:
    graph = residual(16)
    calibration = Calibration({"data": 1.5, "a": 0.0}, "max", 7)
    Package("net", graph, graph.initialize(0), None, None, calibration=calibration).save(tmp_path / "net")
    assert Package.load(tmp_path / "net").calibration == calibration
    document = (tmp_path / "net" / "model.json").read_text()
    (tmp_path / "net" / "model.json").write_text(document.replace('"data": 1.5', '"data": -1.5'))
    with pytest.raises(PackageError, match=r"range -1\.5 of 'data'"):
        Package.load(tmp_path / "net")


def test_operands_that_do_not_fit_are_refused() -> None:
    x = np.zeros((1, 16, 4, 4), np.float32)
    whole, weight, row = x.astype(np.int8), np.zeros((16, 16, 1, 1), np.int8), np.ones(16, np.float32)
    refused: tuple[tuple[Operator, dict[str, np.ndarray], str], ...] = (
        (Quantize(0.0), {"x": x}, "scale 0.0 must be finite and more than 0"),
        (Quantize(1.0), {"x": whole}, "quantized already"),
        (Dequantize(1.0), {"x": x}, "is not quantized"),
        (QuantizedConvolution(), {"x": x}, "x .* must be int8"),
        (QuantizedConvolution(y_scale=float("inf")), {"x": whole}, "y_scale inf"),
        (QuantizedConvolution(), {"x": whole, "residual": x}, "residual .* must be as the output"),
    )
    for operator, feeds, message in refused:
        constants: dict[str, np.ndarray] = {}
        if isinstance(operator, QuantizedConvolution):
            constants = {"weight": weight, "scale": row, "bias": row}
        with pytest.raises(BadParamError, match=message):
            _one_node(operator, feeds, constants)
