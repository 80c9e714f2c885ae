from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import CheckpointError, DivergedError
from dnncore.nn.zoo import lenet
from dnncore.testing import tolerance
from dnncore.train.config import OptimizerConfig
from dnncore.train.learner import Learner

NET = lenet(10, (1, 8, 8))
STEPS = 5
BATCH = 13


@pytest.fixture
def learn(handle: Handle) -> Iterator[Callable[..., Learner]]:
    """Makes learners on the device under test, and closes them."""
    made: list[Learner] = []

    def make(config: OptimizerConfig, weights: dict[str, np.ndarray], **options: object) -> Learner:
        made.append(Learner(handle, NET, weights, config, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for learner in made:
        learner.close()


def batches(number: int, size: int = BATCH) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(11)
    return [
        (rng.standard_normal((size, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, size).astype(np.int32))
        for _ in range(number)
    ]


def torch_logits(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The net of the zoo, written again in PyTorch."""
    for name in ("conv1", "conv2"):
        x = torch.conv2d(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"].flatten(), padding=1)
        x = torch.max_pool2d(torch.relu(x), 2)
    x = x.flatten(1)
    x = torch.relu(x @ parameters["ip1.weight"].reshape(64, -1).T + parameters["ip1.bias"].flatten())
    return x @ parameters["logits.weight"].reshape(10, -1).T + parameters["logits.bias"].flatten()


def torch_train(
    weights: dict[str, np.ndarray], config: OptimizerConfig, rates: list[float]
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and weights of PyTorch's own SGD in float64, from the same weights and on the same batches."""
    parameters = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in weights.items()}
    biases = [value for name, value in parameters.items() if name.endswith("bias")]
    others = [value for name, value in parameters.items() if not name.endswith("bias")]
    optimizer = torch.optim.SGD(
        [
            {"params": others, "weight_decay": config.weight_decay},
            {"params": biases, "weight_decay": config.weight_decay if config.decay_biases else 0.0},
        ],
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
    )
    losses = []
    for rate, (images, labels) in zip(rates, batches(len(rates)), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            torch_logits(parameters, torch.tensor(images, dtype=torch.float64)), torch.tensor(labels, dtype=torch.int64)
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach().numpy() for name, value in parameters.items()}


@pytest.mark.parametrize(
    "config",
    [
        OptimizerConfig(0.05, 0.0, weight_decay=0.0),
        OptimizerConfig(0.05, 0.0, weight_decay=0.1),
        OptimizerConfig(0.05, 0.9, weight_decay=0.1),
        OptimizerConfig(0.05, 0.9, weight_decay=0.1, decay_biases=True),
        OptimizerConfig(0.05, 0.9, nesterov=True, weight_decay=0.1),
    ],
    ids=["plain", "decay", "momentum", "decayed biases", "nesterov"],
)
def test_losses_and_weights_are_those_of_pytorch(learn: Callable[..., Learner], config: OptimizerConfig) -> None:
    weights = NET.initialize(seed=4)
    # Biases that are not 0, so that decaying them, or not, makes a difference.
    weights = {name: array + np.float32(0.25) * name.endswith("bias") for name, array in weights.items()}
    rates = [config.lr * factor for factor in (0.5, 1.0, 1.0, 0.5, 0.25)]
    expected_losses, expected_weights = torch_train(weights, config, rates)

    learner = learn(config, weights)
    losses = [
        learner.step(images, labels, rate) / BATCH for rate, (images, labels) in zip(rates, batches(STEPS), strict=True)
    ]

    # The longest sum is conv1's filter gradient, batch x 8 x 8 terms. Such an error comes in 4 layers with parameters, forward and
    # backward, in each step; independent ones add up like a square root. It is relative to how far the weights moved.
    allowed = tolerance(DType.FLOAT32, BATCH * 8 * 8) * math.sqrt(2 * 4 * STEPS)
    np.testing.assert_allclose(losses, expected_losses, rtol=allowed)
    for name, array in learner.weights().items():
        moved = np.linalg.norm(expected_weights[name] - weights[name])
        assert np.linalg.norm(array - expected_weights[name]) <= allowed * moved, name


def test_one_batch_can_be_learnt_by_heart(learn: Callable[..., Learner]) -> None:
    learner = learn(OptimizerConfig(momentum=0.9, weight_decay=0.0), NET.initialize(seed=0))
    [(images, labels)] = batches(1, size=4)
    losses = [learner.step(images, labels, 0.02) / 4 for _ in range(24)]
    assert losses[0] > 1.5
    assert losses[-1] < 0.01


def test_batches_of_different_sizes_share_weights_and_momenta(learn: Callable[..., Learner]) -> None:
    config = OptimizerConfig(momentum=0.9)
    [(images, labels)] = batches(1)
    whole, parts = learn(config, NET.initialize(0)), learn(config, NET.initialize(0))
    assert parts.step(images[:4], labels[:4], 0.0) + parts.step(images[4:], labels[4:], 0.0) == pytest.approx(
        whole.step(images, labels, 0.0), rel=1e-6
    )
    assert any(np.any(array) for array in parts.momenta().values())


def test_a_learner_made_of_weights_and_momenta_goes_on_with_the_same_bits(learn: Callable[..., Learner]) -> None:
    config = OptimizerConfig(momentum=0.9)
    first = learn(config, NET.initialize(0))
    for images, labels in batches(3):
        first.step(images, labels, 0.05)
    second = learn(config, first.weights(), momenta=first.momenta())
    for images, labels in batches(3):
        assert first.step(images, labels, 0.05) == second.step(images, labels, 0.05)
    for name, array in first.weights().items():
        assert array.tobytes() == second.weights()[name].tobytes()


def test_momenta_of_another_net_are_refused(learn: Callable[..., Learner]) -> None:
    with pytest.raises(CheckpointError, match=r"momentum of \['w'\] does not fit"):
        learn(OptimizerConfig(), NET.initialize(0), momenta={"w": np.zeros(1, np.float32)})


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(learn: Callable[..., Learner]) -> None:
    learner = learn(OptimizerConfig(), NET.initialize(0))
    before = learner.weights()
    [(images, labels)] = batches(1)
    images[3, 0, 2, 2] = np.nan
    with pytest.raises(DivergedError, match="the loss is nan"):
        learner.step(images, labels, 0.1)
    assert all(array.tobytes() == before[name].tobytes() for name, array in learner.weights().items())
