"""Every optimizer takes the steps of its formula, in NumPy in float64, and PyTorch's where both have the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from dnncore import Handle, TensorDescriptor
from dnncore.errors import CheckpointError, ConfigError
from dnncore.nn.trainable import Multipliers
from dnncore.train.config import OptimizerConfig
from dnncore.train.optimizers import OPTIMIZERS

RATES = (0.1, 0.1, 0.01, 0.2, 0.05)
SHAPES = {"a.weight": (3, 4), "a.bias": (5,)}
MULTIPLIERS = {"a.bias": Multipliers(2.0, 0.5)}

Array = Any
Step = Callable[[Array, Array, dict[str, Array], float, int], Array]


def _sgd(ahead: float, style: str) -> Step:
    def step(w: Array, g: Array, s: dict[str, Array], lr: float, _t: int) -> Array:
        before = s.get("v", np.zeros_like(w))
        v = s["v"] = 0.9 * before + (lr * g if style == "caffe" else g)
        if style == "caffe":
            return w - ((1 + ahead) * v - ahead * before)
        return w - lr * ((g + ahead * v) if ahead else v)

    return step


def _adam(w: Array, g: Array, s: dict[str, Array], lr: float, t: int) -> Array:
    m = s["m"] = 0.9 * s.get("m", 0 * g) + 0.1 * g
    v = s["v"] = 0.99 * s.get("v", 0 * g) + 0.01 * g * g
    return w - lr * np.sqrt(1 - 0.99**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-3)


def _adagrad(w: Array, g: Array, s: dict[str, Array], lr: float, _t: int) -> Array:
    h = s["h"] = s.get("h", 0 * g) + g * g
    return w - lr * g / (np.sqrt(h) + 1e-3)


def _rmsprop(w: Array, g: Array, s: dict[str, Array], lr: float, _t: int) -> Array:
    h = s["h"] = 0.98 * s.get("h", 0 * g) + 0.02 * g * g
    return w - lr * g / (np.sqrt(h) + 1e-3)


def _adadelta(w: Array, g: Array, s: dict[str, Array], lr: float, _t: int) -> Array:
    h = s["h"] = 0.95 * s.get("h", 0 * g) + 0.05 * g * g
    u = g * np.sqrt((s.get("d", 0 * g) + 1e-3) / (h + 1e-3))
    s["d"] = 0.95 * s.get("d", 0 * g) + 0.05 * u * u
    return w - lr * u


class Method(NamedTuple):
    name: str
    config: Mapping[str, Any]
    step: Step
    twin: Callable[..., torch.optim.Optimizer] | None = None


METHODS = (
    Method("sgd", {"momentum": 0.9}, _sgd(0.0, "torch"), lambda p: torch.optim.SGD(p, 1, 0.9)),
    Method("sgd", {"momentum": 0.9, "nesterov": True}, _sgd(0.9, "torch"), lambda p: torch.optim.SGD(p, 1, 0.9, nesterov=True)),
    Method("sgd", {"momentum": 0.9, "momentum_style": "caffe"}, _sgd(0.0, "caffe")),
    Method("sgd", {"momentum": 0.9, "momentum_style": "caffe", "nesterov": True}, _sgd(0.9, "caffe")),
    Method("adam", {"momentum": 0.9, "momentum2": 0.99}, _adam),
    Method("adagrad", {"momentum": 0.0}, _adagrad, lambda p: torch.optim.Adagrad(p, 1, eps=1e-3)),
    Method("rmsprop", {"momentum": 0.0, "rms_decay": 0.98}, _rmsprop, lambda p: torch.optim.RMSprop(p, 1, 0.98, 1e-3)),
    Method("adadelta", {"momentum": 0.95}, _adadelta, lambda p: torch.optim.Adadelta(p, 1, 0.95, 1e-3)),
)  # fmt: skip


def _gradients() -> Iterator[dict[str, Array]]:
    rng = np.random.default_rng(1)
    while True:
        yield {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def _weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def _moved(handle: Handle, config: OptimizerConfig, resume_after: int = 99) -> dict[str, Array]:
    """Weights after a step at each of `RATES`; from one step on by another optimizer, which gets the first one's buffers."""
    parameters = {name: handle.upload(array) for name, array in _weights().items()}
    gradients = {name: handle.tensor(shape) for name, shape in SHAPES.items()}
    optimizer = OPTIMIZERS[config.kind](handle, parameters, config, multipliers=MULTIPLIERS)
    for number, (rate, arrays) in enumerate(zip(RATES, _gradients(), strict=False), 1):
        for name, array in arrays.items():
            gradients[name].assign(array)
        if number == resume_after:
            state = optimizer.download()
            optimizer.close()
            optimizer = OPTIMIZERS[config.kind](handle, parameters, config, state, MULTIPLIERS)
        optimizer.update(gradients, rate, number)
    optimizer.close()
    found = {name: tensor.numpy() for name, tensor in parameters.items()}
    for tensor in (*parameters.values(), *gradients.values()):
        tensor.close()
    return found


@pytest.mark.parametrize(
    "method", METHODS, ids=lambda method: "-".join([method.name, *map(str, method.config.values())])
)
@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_steps_are_those_of_the_formula(handle: Handle, method: Method, penalty: str) -> None:
    config = OptimizerConfig(**method.config, kind=method.name, epsilon=1e-3, weight_decay=0.05, decay_biases=True, penalty=penalty)  # type: ignore[arg-type]  # fmt: skip
    expected = {name: array.astype(np.float64) for name, array in _weights().items()}
    states: dict[str, dict[str, Array]] = {name: {} for name in expected}
    for number, (rate, arrays) in enumerate(zip(RATES, _gradients(), strict=False), 1):
        for name, w in expected.items():
            own = MULTIPLIERS.get(name, Multipliers())
            g = arrays[name] + 0.05 * own.decay * (np.sign(w) if penalty == "l1" else w)
            expected[name] = method.step(w, g, states[name], rate * own.lr, number)
    found = _moved(handle, config)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=2e-6)
    resumed = _moved(handle, config, resume_after=3)
    assert all(array.tobytes() == resumed[name].tobytes() for name, array in found.items())


@pytest.mark.parametrize("method", [one for one in METHODS if one.twin], ids=lambda method: method.name)
def test_the_formula_is_pytorchs(method: Method) -> None:
    assert method.twin is not None
    ours = _weights()["a.weight"].astype(np.float64)
    theirs = torch.tensor(ours, requires_grad=True)
    optimizer, state = method.twin([theirs]), {}  # type: ignore[var-annotated]
    for number, (rate, arrays) in enumerate(zip(RATES, _gradients(), strict=False), 1):
        g = arrays["a.weight"].astype(np.float64)
        ours = method.step(ours, g, state, rate, number)
        theirs.grad, optimizer.param_groups[0]["lr"] = torch.tensor(g), rate
        optimizer.step()
    np.testing.assert_allclose(theirs.detach().numpy(), ours, rtol=1e-12)


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_gradients_are_clipped_together_as_pytorch_does(handle: Handle, limit: float) -> None:
    config = OptimizerConfig(momentum=0.0, weight_decay=0.0, clip_norm=limit)
    theirs = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in _weights().items()}
    groups = [{"params": [theirs[name]], "multiplier": MULTIPLIERS.get(name, Multipliers()).lr} for name in theirs]
    optimizer = torch.optim.SGD(groups, 1)
    for rate, arrays in zip(RATES, _gradients(), strict=False):
        for name, array in arrays.items():
            theirs[name].grad = torch.tensor(array, dtype=torch.float64)
        torch.nn.utils.clip_grad_norm_(theirs.values(), limit)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["multiplier"]
        optimizer.step()
    for name, array in _moved(handle, config).items():
        np.testing.assert_allclose(array, theirs[name].detach().numpy(), rtol=1e-5, atol=1e-6)


def test_buffers_of_another_method_are_refused(handle: Handle) -> None:
    with handle.upload(np.zeros((3, 4), np.float32)) as w:
        sgd = OPTIMIZERS["sgd"](handle, {"w": w}, OptimizerConfig())
        with pytest.raises(CheckpointError, match=r"momentum of \['w'\] does not fit"):
            OPTIMIZERS["adam"](handle, {"w": w}, OptimizerConfig(kind="adam"), sgd.download())
        sgd.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "rmsprop"}, "optimizer.momentum is 0.9; it must be 0 for rmsprop"),
        ({"kind": "adam", "nesterov": True}, "optimizer.nesterov is true; it must be false for adam"),
        ({"kind": "adam", "momentum_style": "caffe"}, "optimizer.momentum_style is caffe"),
        ({"epsilon": 0.0}, "optimizer.epsilon is 0.0"),
        ({"momentum2": 1.0}, "optimizer.momentum2 is 1.0"),
        ({"clip_norm": -1.0}, "optimizer.clip_norm is -1.0"),
    ],
)  # fmt: skip
def test_what_a_method_does_not_have_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**values)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adagrad"])
def test_a_gradient_that_lies_otherwise_than_its_parameter_is_taken_by_place(handle: Handle, kind: str) -> None:
    shape = (4, 3, 2, 5)
    rng = np.random.default_rng(3)
    w, g = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    config = OptimizerConfig(kind=kind, momentum=0.0 if kind == "adagrad" else 0.9, weight_decay=0.0)  # type: ignore[arg-type]
    found = []
    for layout in ("NCHW", "NHWC"):
        with handle.upload(w) as weight, handle.tensor(TensorDescriptor.packed(shape, "float32", layout)) as gradient:
            gradient.assign(g)
            optimizer = OPTIMIZERS[kind](handle, {"w": weight}, config)
            for step in (1, 2):
                gradient.assign(g)
                optimizer.update({"w": gradient}, 0.1, step)
            optimizer.close()
            found.append(weight.numpy())
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], w)
