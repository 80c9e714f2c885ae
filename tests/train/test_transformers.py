"""Nets with layer normalisations, attention and layer scales, exported by PyTorch to ONNX, learn as PyTorch's do."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import ConfigError
from dnncore.importers.onnx import import_onnx
from dnncore.nn import Package, Role
from dnncore.testing import tolerance
from dnncore.torch.export import to_model
from dnncore.train.config import parse_config
from dnncore.train.learner import Learner
from dnncore.train.nets import open_net
from dnncore.train.run import train
from tests.train.fixtures import make_folder, small_config

SHAPE = (1, 8, 8)
BATCH, STEPS, LR = 4, 5, 0.05


class Transformer(nn.Module):
    """Patches, a class token, embeddings of positions, and one block of an encoder, which puts the batch second inside."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        logits: torch.Tensor = self.head(self.norm(self.block(x))[:, 0])
        return logits


class ConvNeXt(nn.Module):
    """One block: a depthwise convolution, a layer normalisation over channels, two matrix products and a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 2, 2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8, 1e-6)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.full((8, 1, 1), 0.5))
        self.last = nn.LayerNorm(8, 1e-6)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(nn.functional.gelu(self.wide(y))).permute(0, 3, 1, 2)
        logits: torch.Tensor = self.head(self.last((x + self.scale * y).mean((2, 3))))
        return logits


NETS: dict[str, Callable[[], nn.Module]] = {"transformer": Transformer, "convnext": ConvNeXt}


def _exported(net: nn.Module, path: Path) -> None:
    """As an ONNX file of any number of images. The exporter of `dynamo=False` says of itself that it is old."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.zeros(2, *SHAPE),), file, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "N"}}
        )
    path.write_bytes(file.getvalue())


def _net(name: str) -> nn.Module:
    """With random numbers for what PyTorch begins with ones and zeros, which the exporter would make one tensor of the file."""
    torch.manual_seed(0)
    net = NETS[name]().eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, 0.3 if parameter.dim() < 2 else 0.0, 0.3)
    return net


def _torch_losses(net: nn.Module, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    net = net.double()
    optimizer = torch.optim.SGD(net.parameters(), LR, 0.9)
    losses = []
    for images, labels in batches:
        loss = nn.functional.cross_entropy(net(torch.tensor(images).double()), torch.tensor(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("file", ["onnx", "package"])
@pytest.mark.parametrize("name", NETS)
def test_a_net_exported_by_pytorch_learns_as_pytorchs(handle: Handle, tmp_path: Path, name: str, file: str) -> None:
    """The same losses, from the configuration that names the file: every parameter moves as PyTorch moves it."""
    net, path = _net(name), tmp_path / ("net.onnx" if file == "onnx" else "net")
    if file == "onnx":
        _exported(net, path)
    else:
        model = to_model(net, (torch.zeros(2, *SHAPE),))
        Package("net", model.graph, model.weights, None, None).save(path)
    rng = np.random.default_rng(1)
    batches = [
        (rng.standard_normal((BATCH, *SHAPE)).astype(np.float32), rng.integers(0, 3, BATCH).astype(np.int32))
        for _ in range(STEPS)
    ]
    config = parse_config("", [f"net.path={path}", "optimizer.momentum=0.9", "optimizer.weight_decay=0"])
    start = open_net(config.net, 3, SHAPE)
    graph = start.net.graph
    trained = sum(one.spec.size for one in graph.constants if one.role is Role.TRAINABLE)
    assert trained == sum(parameter.numel() for parameter in net.parameters())
    learner = Learner(handle, start.net, start.initialize(0), config.optimizer)
    try:
        ours = [learner.step(*batch, LR, step) / BATCH for step, batch in enumerate(batches)]
    finally:
        learner.close()
    theirs = _torch_losses(net, batches)
    assert abs(theirs[-1] - theirs[0]) > 0.1
    allowed = tolerance(DType.FLOAT32, 100) * math.sqrt(2 * len(graph.nodes) * STEPS)
    np.testing.assert_allclose(ours, theirs, rtol=allowed)


def test_dnntrain_trains_an_exported_net_and_serves_it(tmp_path: Path) -> None:
    """All of the way: file, training, package, evaluation; and of what is frozen nothing changes."""
    net, path, run = _net("transformer"), tmp_path / "net.onnx", tmp_path / "run"
    _exported(net, path)
    folder = make_folder(tmp_path / "stripes")
    frozen = "net.frozen=['positions', 'block.norm1.*']"
    overrides = [f"net.path={path}", "optimizer.kind=adam", "optimizer.lr=0.03", "training.epochs=15", frozen]
    output = io.StringIO()
    outcome = train(small_config(run, folder, *overrides), output)
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    assert outcome.evaluation is not None
    assert np.mean(losses[-4:]) < 0.8 * losses[0]
    package = Package.load(run / "package")
    fixed = sum(one.spec.size for one in package.graph.constants if one.role is Role.FIXED)
    assert f", {5 * 8 + 2 * 8 + fixed} of which stay as they are, on " in output.getvalue()
    before = {name: parameter.detach().numpy() for name, parameter in net.named_parameters()}
    for name in ("positions", "block.norm1.weight", "block.norm1.bias"):
        assert np.array_equal(package.weights[name], before[name]), name
        assert package.graph.constant[name].role is Role.TRAINABLE  # for the next that trains it
    for name in ("head.weight", "norm.bias", "block.linear1.bias"):
        assert not np.array_equal(package.weights[name], before[name]), name


def test_what_is_frozen_must_be_there_and_leave_something(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    _exported(_net("convnext"), path)
    for frozen, message in ((["heat.*"], r"net.frozen has 'heat.\*', which fits none of "), (["*"], "leaves nothing")):
        config = parse_config("", [f"net.path={path}", f"net.frozen={frozen}"])
        with pytest.raises(ConfigError, match=message):
            open_net(config.net, 3, SHAPE)


def test_numbers_of_a_file_are_trained_where_they_follow_what_is_trained(tmp_path: Path) -> None:
    """A mean and a deviation for the input, and single numbers, stay as they are."""

    class Normalizing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.25, 0.5]).reshape(1, 2, 1))
            self.register_buffer("deviation", torch.tensor([2.0, 4.0]).reshape(1, 2, 1))
            self.linear, self.gain = nn.Linear(4, 3), nn.Parameter(torch.tensor([1.5, 2.5, 3.5]))
            self.temperature = nn.Parameter(torch.tensor([0.5]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear((x - self.mean) / self.deviation) * self.gain * self.temperature
            return y.mean(1)

    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "N"}}
        torch.onnx.export(
            Normalizing(), (torch.zeros(2, 2, 4),), path, dynamo=False, input_names=["x"], dynamic_axes=axes
        )
    graph = import_onnx(path).graph
    trained = {one.name for one in graph.constants if one.role is Role.TRAINABLE}
    fixed = {one.name for one in graph.constants if one.role is Role.FIXED}
    assert {"gain", "linear.bias"} < trained
    assert {"mean", "deviation", "temperature"} <= fixed
