"""The commands of the kernels' benchmarks run to their end without a GPU, and refuse to measure there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import kernels, memory_bound, training
from benchmarks.kernels import __main__ as of_kernels
from benchmarks.layers import LAYERS
from benchmarks.measurement import Operations
from benchmarks.memory_bound import __main__ as of_memory
from benchmarks.memory_bound.optimizers import optimizers
from benchmarks.net_layers import GROUPED, convolutions, linear_layers
from benchmarks.race import METHOD
from dnncore import DType, Handle
from dnncore.nn.zoo import ZOO
from dnncore.problems import Direction
from tests.conftest import DEVICES, GPU

pytestmark = pytest.mark.skipif(GPU, reason="there the benchmarks measure")


def rows(path: Path) -> list[dict[str, object]]:
    document = json.loads(path.read_text())
    assert document["method"] == METHOD
    found: list[dict[str, object]] = document["results"]
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_every_group_of_kernels_runs_dry(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "r50-3x3-64,r50-1x1-256-64,resnext50-3x3-128,linear-1280,square-4096,3x3-32-32-112"
    arguments = ["--dry-run", "--device", device, "--out", str(tmp_path), "--layers", names]
    assert of_kernels.main([*arguments, "--dtype", "fp16", "tf32", "--batch", "1"]) == 0
    assert "FAILED" not in capsys.readouterr().out
    anchors = rows(tmp_path / "dry-run-convolution-float16-NHWC.json")
    assert [(row["layer"], row["direction"]) for row in anchors[:4]] == [
        ("r50-3x3-64", direction) for direction in ("forward", "backward_data", "backward_filter", "fused")
    ]
    depthwise, grouped = "3x3-32-32-112-g32", "resnext50-3x3-128-56"
    layers = rows(tmp_path / "dry-run-layers-float32-NHWC-tf32.json")
    assert {(row["layer"], row["batch"], *row["nets"]) for row in layers} == {  # type: ignore[misc]
        (grouped, 64, "resnext50"),
        (depthwise, 1, "mobilenet_v2"),
    }
    assert [row["of_fp16"] is not None for row in rows(tmp_path / "dry-run-int8.json")] == [True, True]
    assert len(rows(tmp_path / "dry-run-linear-float16.json")) == 6


@pytest.mark.parametrize("family", of_memory.FAMILIES)
def test_every_family_of_memory_bound_operations_runs_dry(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--dry-run", "--device", "cpu", "--out", str(tmp_path), "--families", family, "--dtype"]
    dtype = "float32" if family == "optimizers" else "float16"
    only = "batch 1" if family in ("inverted_residuals", "bottlenecks") else ""  # others are larger, and the same
    assert of_memory.main([*arguments, dtype, "--only", only]) == 0
    assert "FAILED" not in capsys.readouterr().out
    assert rows(tmp_path / f"dry-run-memory_bound-{dtype}.json")


def test_both_sides_of_an_optimizers_step_mean_the_same_where_gradients_are_as_small_as_epsilon() -> None:
    gradient, weight = torch.full((2, 8), 1e-7), torch.ones(2, 8)
    for measurement in optimizers(DType.FLOAT32, lambda shape: tuple(min(extent, 8) for extent in shape)):
        assert isinstance(measurement.problem, Operations)
        count = len(measurement.problem.outputs)
        values = [*[gradient[0]] * count, *[weight[0]] * count]
        assert measurement.torch is not None
        wide = [one.double().clone() for one in values]
        expected = measurement.torch(*wide, *measurement.kept(wide))
        with Handle("cpu") as handle:
            tensors = [handle.upload(one.numpy().copy()) for one in values]
            measurement.problem.enqueue(handle, tensors)()
            moved = tensors[count].numpy() - 1.0
        np.testing.assert_allclose(moved, expected.numpy() - 1.0, rtol=1e-3, atol=1e-9, err_msg=measurement.name)


def test_losses_beside_pytorchs_are_written_and_those_of_a_gpu_stay(tmp_path: Path) -> None:
    of_gpu = tmp_path / "training.json"
    of_gpu.write_text("as it was")
    small = ["--nets", "mobilenet_v2", "--batch", "4", "--size", "48", "--classes", "5"]
    training.main([*small, "--steps", "2", "--lr", "1e-6", "--out", str(tmp_path)])
    (row,) = json.loads((tmp_path / "training-cpu.json").read_text())["results"]
    assert (row["net"], row["device"], row["steps"]) == ("mobilenet_v2", "cpu", 2)
    assert row["difference"] == training.largest_difference(row["ours"], row["torch"])
    assert row["difference"] < 1e-3
    assert of_gpu.read_text() == "as it was"


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch has a GPU here")
@pytest.mark.parametrize("command", [of_kernels.main, of_memory.main], ids=[kernels.__name__, memory_bound.__name__])
def test_without_a_gpu_nothing_is_measured(command: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--device", "cpu", "--out", str(tmp_path)]) == 1  # type: ignore[operator]
    assert "--dry-run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nets_have_each_layer_once_and_as_many_products_as_their_graphs() -> None:
    layers = convolutions(8)
    names = [layer.name for layer in layers]
    assert len(set(names)) == len(names)
    stem = next(layer for layer in layers if layer.name == "7x7-3-64-224-s2")
    assert layers[stem] == ("resnet50", "googlenet")
    assert (stem.n, stem.padding) == (8, 3)
    graph = ZOO["vgg16"]()
    of_vgg = {layer for layer, nets in layers.items() if "vgg16" in nets}
    products = {layer.problem(Direction.FORWARD).macs for layer in of_vgg}
    specs = graph.specs(8)
    for node in graph.nodes:
        if type(node.operator).__name__ == "Convolution":
            y, w = specs[node.outputs[0]], specs[node.reads[1]]
            assert y.size * w.size // w.shape[0] in products
    assert {layer.name for layer in linear_layers(1)} >= {"linear-25088-4096", "linear-2048-1000"}


@pytest.mark.parametrize("layer", [*LAYERS, *GROUPED, *convolutions(32)], ids=lambda layer: str(layer.name))
def test_a_shrunken_layer_is_small_and_of_the_same_kind(layer: object) -> None:
    small = layer.shrunk  # type: ignore[attr-defined]
    problem = small.problem(Direction.FORWARD)
    assert problem.macs < 5_000_000
    whole = layer.problem(Direction.FORWARD)  # type: ignore[attr-defined]
    assert problem.convolution.stride == whole.convolution.stride
    assert problem.w.shape[2:] == whole.w.shape[2:]
    is_depthwise = [one.convolution.groups == one.x.shape[1] > 1 for one in (problem, whole)]
    assert is_depthwise[0] == is_depthwise[1]
