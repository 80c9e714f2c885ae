"""Losses of nets of the zoo beside those of torchvision's in PyTorch: from the same weights, on the same images, dropping the same.

    python -m benchmarks.training [--device cuda:0] [--nets googlenet ...] [--batch 8] [--size 64] [--steps 20] [--lr 1e-4 ...]
        [--double] [--out benchmarks/results]

Stochastic gradient descent with momentum and weight decay; batch normalisation with statistics of the batch; GoogLeNet with its
auxiliary heads, whose losses count 0.3. Both compute in float32, PyTorch without TF32, on the same device; `--double` lets both do
the same in float64 too. How far PyTorch's float32 is from its float64 is the yardstick: at rates of which a net with batch
normalisation takes large steps, both leave float64 equally fast, as a rounding decides on which side of 0 a value lies.
Five batches take turns, so that the losses fall. What a CPU gave is a file of its own, training-cpu.json: rows of two machines do
not stand in one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.document import Document
from benchmarks.twins import twin, weights_of
from dnncore import Handle, ops
from dnncore.dtypes import DType
from dnncore.nn.operator import Spec
from dnncore.nn.operators import Dropout
from dnncore.nn.trainable import Trainable
from dnncore.nn.training import DROPOUT, dropout_states, in_training
from dnncore.nn.zoo import AUXILIARY, ZOO
from dnncore.train.config import OptimizerConfig
from dnncore.train.learner import Learner

__all__ = ["NETS", "Settings", "compared", "largest_difference", "main", "our_losses", "torch_losses"]

NETS = ("alexnet", "googlenet", "resnet50", "mobilenet_v2")
_BATCHES = 5
_AUXILIARY_WEIGHT = 0.3


class Settings(NamedTuple):
    """What is trained, on how much. Immutable.

    Args:
        net: A name of `NETS`.
        batch: Images a step.
        size: Rows and columns of an image.
        steps: Updates.
        classes: K.
        lr: Learning rate.
        dtype: What both compute in: FLOAT32 or FLOAT64.
    """

    net: str
    batch: int = 8
    size: int = 64
    steps: int = 20
    classes: int = 1000
    lr: float = 1e-4
    dtype: DType = DType.FLOAT32

    @property
    def trainable(self) -> Trainable:
        """Our net."""
        make = AUXILIARY.get(self.net, ZOO[self.net])
        graph = make(self.classes, (3, self.size, self.size))
        inputs = tuple(value._replace(dtype=self.dtype) for value in graph.inputs)
        constants = tuple(replace(constant, dtype=self.dtype) for constant in graph.constants)
        return Trainable.of(replace(graph, inputs=inputs, constants=constants), _AUXILIARY_WEIGHT)

    @property
    def torch_dtype(self) -> torch.dtype:
        """PyTorch's name of it."""
        return torch.float64 if self.dtype is DType.FLOAT64 else torch.float32

    @property
    def optimizer(self) -> OptimizerConfig:
        """As PyTorch's SGD is set up in both."""
        return OptimizerConfig(self.lr, momentum=0.9, weight_decay=1e-4, decay_biases=True)

    def twin(self) -> torch.nn.Module:
        """torchvision's net as it is made: what both start from."""
        torch.manual_seed(0)
        return twin(self.net, num_classes=self.classes).train().to(self.torch_dtype)

    def data(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Images [N, 3, size, size], the same in either dtype, and labels int32 [N] of each step."""
        rng, shape = np.random.default_rng(1), (self.batch, 3, self.size, self.size)
        batches = [
            (
                rng.standard_normal(shape).astype(np.float32).astype(self.dtype.numpy),
                rng.integers(0, self.classes, self.batch).astype(np.int32),
            )
            for _ in range(min(_BATCHES, self.steps))
        ]
        return [batches[step % len(batches)] for step in range(self.steps)]


def our_losses(settings: Settings, handle: Handle) -> list[float]:
    """The mean loss of each step, before its update."""
    net = settings.trainable
    learner = Learner(handle, net, weights_of(settings.twin(), net.graph), settings.optimizer)
    try:
        return [
            learner.step(images, labels, settings.lr, step) / settings.batch
            for step, (images, labels) in enumerate(settings.data())
        ]
    finally:
        learner.close()


def torch_losses(settings: Settings, handle: Handle) -> list[float]:
    """The same of PyTorch.

    Args:
        settings: What is trained.
        handle: Whose device PyTorch computes on; what dropout drops is computed by it.
    """
    dtype = settings.torch_dtype
    device = "cuda" if handle.info.name.startswith("cuda") else "cpu"
    net = settings.twin().to(device, dtype)
    masks = _replace_dropouts(net)
    config = settings.optimizer
    optimizer = torch.optim.SGD(net.parameters(), settings.lr, config.momentum, weight_decay=config.weight_decay)
    losses = []
    for step, (images, labels) in enumerate(settings.data()):
        for name, mask in _kept(settings, handle, step).items():
            masks[name].mask = torch.from_numpy(mask).to(device, dtype)
        optimizer.zero_grad()
        outputs = net(torch.from_numpy(images).to(device, dtype))
        classes = torch.from_numpy(labels).long().to(device)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        heads = [torch.nn.functional.cross_entropy(one, classes) for one in outputs]
        loss = heads[0] + _AUXILIARY_WEIGHT * sum(heads[1:])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()))
    return losses


def largest_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest of the relative differences."""
    return float(np.max(np.abs(np.subtract(found, expected)) / np.abs(expected)))


class _Masked(torch.nn.Module):  # type: ignore[misc]
    """Dropout that is told what stays."""

    mask: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.mask.reshape(x.shape)


def _replace_dropouts(net: torch.nn.Module) -> dict[str, _Masked]:
    replaced = {name: _Masked() for name, module in net.named_modules() if isinstance(module, torch.nn.Dropout)}
    for name, masked in replaced.items():
        parent, _, own = name.rpartition(".")
        setattr(net.get_submodule(parent), own, masked)
    return replaced


def _kept(settings: Settings, handle: Handle, step: int) -> dict[str, np.ndarray]:
    """What our dropouts multiply with in a step: 0, or 1 over the probability of staying."""
    graph = settings.trainable.graph
    dropouts = [node for node in graph.nodes if isinstance(node.operator, Dropout)]
    states = dropout_states(in_training(graph), 0, step).get(DROPOUT, np.zeros((0, 4), np.int32))
    found: dict[str, np.ndarray] = {}
    for node, state in zip(dropouts, states, strict=True):
        assert isinstance(node.operator, Dropout)
        spec = graph.values[node.outputs[0]].spec(settings.batch)
        with handle.tensor(spec.descriptor()) as x, handle.tensor(Spec(DType.INT32, (4,)).descriptor()) as on_device:
            on_device.assign(state)
            ops.set_tensor(handle, 1.0, x)
            ops.dropout_forward(handle, node.operator.probability, 1.0, x, on_device, 0.0, x)
            found[node.name] = x.numpy()
    return found


def compared(settings: Settings, handle: Handle, *, double: bool) -> dict[str, Any]:
    """A row: what was trained on what, the losses of each step, and the largest relative differences.

    Args:
        settings: What is trained.
        handle: On whose device.
        double: In float64 too, of which both are compared with PyTorch's.
    """
    ours, theirs = our_losses(settings, handle), torch_losses(settings, handle)
    row = {
        **{name: getattr(settings, name) for name in ("net", "batch", "size", "steps", "classes", "lr")},
        "device": handle.info.name,
        "ours": ours,
        "torch": theirs,
        "difference": largest_difference(ours, theirs),
    }
    if double:
        exact = settings._replace(dtype=DType.FLOAT64)
        ours_exact, theirs_exact = our_losses(exact, handle), torch_losses(exact, handle)
        row |= {
            "from_float64": largest_difference(ours, theirs_exact),
            "torch_from_float64": largest_difference(theirs, theirs_exact),
            "both_in_float64": largest_difference(ours_exact, theirs_exact),
        }
    return row


def _line(row: dict[str, Any]) -> str:
    losses = (
        f"loss {row['torch'][0]:.4f} to {row['torch'][-1]:.4f}, largest relative difference {row['difference']:.1e}"
    )
    if "from_float64" in row:
        losses += f"; from PyTorch's float64 {row['from_float64']:.1e}, PyTorch's own {row['torch_from_float64']:.1e}"
        losses += f"; both in float64 {row['both_in_float64']:.1e}"
    return f"{row['net']}, rate {row['lr']:g}: {losses}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the JSON file")
    parser.add_argument("--device", default="cpu", help='"cpu" or "cuda:0"')
    parser.add_argument("--nets", nargs="+", default=NETS, choices=NETS)
    for name in ("batch", "size", "steps", "classes"):
        parser.add_argument(f"--{name}", type=int, default=Settings._field_defaults[name])
    parser.add_argument("--lr", nargs="+", type=float, default=[Settings._field_defaults["lr"]])
    parser.add_argument("--double", action="store_true", help="both in float64 too")
    options = parser.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    keys = ("net", "batch", "size", "steps", "lr", "device")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    name = "training-cpu.json" if options.device == "cpu" else "training.json"
    document = Document(options.out / name, keys) if options.out else None
    for net in options.nets:
        for lr in options.lr:
            settings = Settings(net, options.batch, options.size, options.steps, options.classes, lr)
            with Handle(options.device) as handle:
                row = compared(settings, handle, double=options.double)
            print(_line(row), flush=True)
            if document is not None:
                document.add([row])


if __name__ == "__main__":
    main()
