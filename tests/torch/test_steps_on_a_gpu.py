"""Training steps on a GPU that PyTorch and the library both see: what PyTorch's allocator hands out decides what is replayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dnncore.torch as dt
from dnncore.backend import Stream
from dnncore.cuda.runtime import replays
from dnncore.cuda.runtime.graph import CudaGraph
from tests.conftest import CUDA_DEVICES, GPU

_STEPS = 20


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(inplace=True)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(1176, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))

    def forward(self, x: Any) -> Any:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def _trained(device: str) -> list[Any]:
    """Losses of some steps on other images each, and the parameters behind them."""
    torch.manual_seed(0)
    net = dt.convert(_Net(), fuse=True).model.to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(_STEPS):
        x, labels = torch.randn(8, 3, 32, 32).to(device), torch.randint(10, (8,)).to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses).cpu(), *(parameter.detach().cpu() for parameter in net.parameters())]


@pytest.mark.parametrize("device", CUDA_DEVICES[:1] if GPU and torch.cuda.is_available() else ())
def test_steps_that_are_replayed_train_as_those_that_are_launched(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[CudaGraph] = []
    launch = CudaGraph.launch

    def counted(graph: CudaGraph, stream: Stream) -> None:
        replayed.append(graph)
        launch(graph, stream)

    monkeypatch.setattr(CudaGraph, "launch", counted)
    with monkeypatch.context() as patch:
        patch.setattr(replays, "_SIGHTINGS", _STEPS + 1)
        expected = _trained(device)
    assert not replayed
    found = _trained(device)
    assert len(set(map(id, replayed))) >= 2  # forward, and backward in a thread of autograd's
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)
