from __future__ import annotations

import math
from pathlib import Path

import pytest

from dnncore import Handle
from dnncore.cli.__main__ import main
from dnncore.errors import BadParamError
from dnncore.figures import CPU
from dnncore.nn.model import Model
from dnncore.nn.package import Package
from dnncore.nn.timing import time_nodes
from dnncore.nn.zoo import lenet
from tests.importers.caffe.nets import NETS


def test_a_prototxt_is_timed_layer_by_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.prototxt").write_text(NETS["cifar10_full"][0](4))
    assert main(["time", "--model", str(tmp_path / "net.prototxt"), "--iterations", "2", "--batch", "3"]) == 0
    head, titles, *rows, total = capsys.readouterr().out.splitlines()
    assert head == "net: batch 3, 2 iterations, cpu"
    heads = "layer operator algorithm workspace forward ms roofline ms backward ms"
    assert titles.split() == heads.split()
    by_layer = {row.split()[0]: row.split() for row in rows}
    assert by_layer["conv1"][1] == "convolution"
    assert by_layer["ip1.flatten"][2:5] == ["-", "0", "0.000"]  # a view
    assert all(float(by_layer[name][-1]) > 0 for name in ("conv1", "norm1", "pool3", "ip1"))
    assert total.startswith("forward ")
    assert "backward" in total


def test_every_device_can_be_timed(handle: Handle) -> None:
    graph = lenet()
    timing = time_nodes(Model(graph, graph.initialize(0)), handle, 2, 1)
    assert [node.name for node in timing.nodes] == [node.name for node in graph.nodes]
    assert all(node.backward_ms is not None for node in timing.nodes)
    relu, figures = timing.nodes[1], handle.device.figures
    if figures is CPU:
        assert relu.roofline_ms is None
    else:
        moved = (
            2 * 2 * math.prod(map(int, graph.values[graph.nodes[1].outputs[0]].shape[1:])) * 4
        )  # two images of float32, there and back
        assert relu.roofline_ms == pytest.approx(moved / figures.bytes_per_second * 1e3)
        assert f", roofline {sum(node.roofline_ms or 0 for node in timing.nodes):.3f} ms, backward " in timing.table()
    with pytest.raises(BadParamError, match="iterations 0"):
        time_nodes(Model(graph, graph.initialize(0)), handle, 2, 0)


def test_a_package_is_timed_too_and_bad_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = lenet()
    Package("digits", graph, graph.initialize(0), None, None).save(tmp_path / "digits")
    assert main(["time", "--model", str(tmp_path / "digits"), "--iterations", "1"]) == 0
    assert "ip1" in capsys.readouterr().out
    assert main(["time", "--model", str(tmp_path / "nothing.prototxt")]) == 1
    assert "nothing.prototxt: cannot be read" in capsys.readouterr().err


def test_normalisations_have_a_backward_pass_in_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 4 dim: 5 dim: 5 } } }'
    text += 'layer { name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 3 kernel_size: 1 } }'
    text += 'layer { name: "bn" type: "BatchNorm" bottom: "c" top: "c" }'
    text += 'layer { name: "drop" type: "Dropout" bottom: "c" top: "c" }'
    (tmp_path / "net.prototxt").write_text(text)
    command = ["time", "--model", str(tmp_path / "net.prototxt"), "--iterations", "1", "--batch", "2", "--phase"]
    assert main([*command, "train"]) == 0
    rows = {row.split()[0]: row.split() for row in capsys.readouterr().out.splitlines()[2:]}
    assert all(float(rows[name][-1]) > 0 for name in ("c", "bn", "drop"))


def test_a_net_without_gradients_is_timed_forward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 4 } } }'
    text += 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 } }'
    text += 'layer { name: "largest" type: "ArgMax" bottom: "ip" top: "largest" argmax_param { axis: 1 out_max_val: true } }'
    (tmp_path / "net.prototxt").write_text(text)
    assert main(["time", "--model", str(tmp_path / "net.prototxt"), "--iterations", "1"]) == 0
    assert "; no backward: net 'net': node " in capsys.readouterr().out.splitlines()[-1]


def test_a_gpu_that_is_not_there_is_estimated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.prototxt").write_text(NETS["cifar10_full"][0](4))
    assert main(["time", "--model", str(tmp_path / "net.prototxt"), "--device", "h200", "--batch", "64"]) == 0
    head, titles, *rows, total = capsys.readouterr().out.splitlines()
    assert head == "net: batch 64, as it is served, estimated for h200"
    assert titles.split() == ["layer", "operator", "algorithm", "parts", "scratch", "B", "us"]
    assert next(row for row in rows if row.startswith("conv1")).split()[1] in ("convolution", "fused_convolution")
    assert "ms estimated" in total


def test_a_net_is_timed_as_it_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["time", "--model", "lenet", "--precision", "fp16"]
    assert main([*command, "--iterations", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lenet: batch 1, as it is served in fp16, 1 iterations, cpu\n")
    assert "pooled_convolution" in out
    assert "conv1.relu" not in out
    assert main([*command, "--device", "h200"]) == 0
    assert "pooled_convolution" in capsys.readouterr().out
    assert main([*command, "--phase", "train"]) == 1
    assert "--precision times a net as it is served" in capsys.readouterr().err
