"""What `dnncore describe` says of nets, and of what passes make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from dnncore.cli.__main__ import main
from dnncore.dtypes import DType
from dnncore.figures import H200
from dnncore.nn.estimate import estimate
from dnncore.nn.package import Package
from dnncore.nn.passes import for_inference
from dnncore.nn.zoo import ZOO
from dnncore.preprocessing import Preprocessing
from tests.importers.onnx.nets import model_of
from tests.nn.nets import weightless


@pytest.fixture
def net(tmp_path: Path) -> str:
    """A convolution with what is folded into it, and a ReLU that is fused with it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"]),
        helper.make_node("Identity", ["n"], ["i"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    constants = {"w": np.ones((3, 2, 1, 1), np.float32), "s": np.ones(3, np.float32)}
    onnx.save(model_of(nodes, {"x": ("N", 2, 4, 4)}, constants), tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


def test_a_net_is_described_as_it_is_with_what_it_takes(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", net]) == 0
    said = capsys.readouterr().out
    assert "activation mode=relu" in said
    assert "  96 MACs (multiply-adds) per image, 192 FLOPs: convolutions and matrix products" in said
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.startswith("  fp")}
    assert [float(number) for number in rows["fp32"]] == [0, 0, 0, 0, 0.1]


def _sizes(said: str) -> dict[str, list[float]]:
    """Megabytes of the batches, by precision."""
    rows = [line.split() for line in said.splitlines() if line.startswith("  fp")]
    return {name: [float(size) for size in sizes] for name, _, *sizes in rows}


def test_memory_is_that_of_an_executor_on_the_device_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for device in ("h200", "cpu"):
        assert main(["describe", "alexnet", "--device", device]) == 0
        said[device] = capsys.readouterr().out
        assert f"batches, on {device}" in said[device]
        assert "without scratch memory" not in said[device]
    model = weightless(ZOO["alexnet"]())
    for name, precision in (("fp32", DType.FLOAT32), ("fp16", DType.FLOAT16)):
        graph = for_inference(model, precision).graph
        estimated = [estimate(graph, H200, batch).placement.nbytes for batch in (1, 8, 32, 256)]
        assert _sizes(said["h200"])[name] == [round(nbytes / 1e6, 1) for nbytes in estimated]
    assert _sizes(said["h200"])["fp32"][-1] > _sizes(said["cpu"])["fp32"][-1] > 400  # FFTs take scratch memory


def test_memory_without_a_device_says_what_it_leaves_out(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", net]) == 0
    assert (
        "  without scratch memory of algorithms, which --device counts: cpu, cuda:0, ..., h200"
        in capsys.readouterr().out
    )


def test_an_unknown_device_is_refused(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", net, "--device", "tpu"]) == 1
    assert "'tpu'" in capsys.readouterr().err


def test_every_pass_says_what_it_changed(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", net, "--passes"]) == 0
    said = capsys.readouterr().out
    passes = [line.removeprefix("  pass    ") for line in said.splitlines() if line.startswith("  pass")]
    assert passes == [
        "drop_unused: 4 nodes -> 4",
        "drop_identities: 4 nodes -> 3 (-1 identity); to the bit",
        "fold_batch_norms: 3 nodes -> 2 (-1 batch_norm); within 7e-07 of the largest output",
        "fuse_convolutions: 2 nodes -> 1 (-1 activation, -1 convolution, +1 fused_convolution); "
        "within 5e-07 of the largest output",
        "fuse_inner_products: 1 nodes -> 1",
        "merge_siblings: 1 nodes -> 1",
        "fuse_pooling: 1 nodes -> 1",
    ]
    assert "fused_convolution" in said.split("net net")[1]


def test_a_pass_can_be_left_out(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["describe", net, "--passes", "--precision", "fp16"]
    assert main([*command, "--without", "fuse_convolutions"]) == 0
    said = capsys.readouterr().out
    assert "pass    fuse_convolutions: left out" in said
    assert "pass    in_precision: 2 nodes -> 4 (+2 cast); within 0.004 of the largest output" in said
    assert "pass    channels_last: 4 nodes -> 4, " in said
    assert "fused_convolution" not in said
    assert main([*command, "--without", "channels_last"]) == 0
    assert "lie channels-last" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*command, "--without", "everything"])


def test_a_net_that_ranks_its_classes_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["describe", "lenet", "--passes", "--rank", "3"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "  pass    rank_classes: 5 nodes -> 7 (+1 flatten, +1 top_k); to the bit\n" in said
    assert "  output  logits.classes: int32[N, 3]" in said
    assert main([*command, "--without", "rank_classes"]) == 0
    said = capsys.readouterr().out
    assert "  pass    rank_classes: left out\n" in said
    assert "logits.classes" not in said
    assert main(["describe", "lenet", "--passes", "--rank", "0"]) == 1
    assert "to rank 0 of its classes" in capsys.readouterr().err


def test_a_package_says_what_pixels_become(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = ZOO["lenet"]()
    preprocessing = Preprocessing.squash("gray", 8, 8, 1 / 255, (0.5,), (0.5,))
    Package("lenet", graph, graph.initialize(0), preprocessing, None).save(tmp_path / "lenet")
    command = ["describe", str(tmp_path / "lenet"), "--passes", "--pixels"]
    assert main([*command, "--precision", "fp16"]) == 0
    said = capsys.readouterr().out
    assert (
        "pass    fuse_pixels: 9 nodes -> 8 (-1 fused_convolution, -1 image_normalization, +1 image_convolution)" in said
    )
    assert main(command) == 0
    assert "pass    fuse_pixels: 8 nodes -> 8\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["describe", "lenet", "--passes", "--pixels"], "--pixels needs a package that says how images become its input"),
        (["describe", "lenet", "--precision", "fp32"], "--precision, --pixels, --rank and --without say what passes do"),
        (["draw", "lenet", "-o", "net.dot", "--without", "quantize"], "give --passes too"),
        (["describe", "lenet", "--shape", "data=N,1,8,8"], "lenet: it has extents of its own; those given for data go with"),
        (["describe", "PACKAGE", "--shape", "data=N,1,8,8"], "it has extents of its own"),
        (["describe", "PACKAGE", "--weights", "a.caffemodel"], "it brings its own weights"),
    ],
)  # fmt: skip
def test_what_would_be_ignored_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], message: str
) -> None:
    assert main([str(tmp_path) if word == "PACKAGE" else word for word in command]) != 0
    assert message in capsys.readouterr().err


def test_nets_of_the_zoo_are_known_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "lenet"]) == 0
    assert capsys.readouterr().out.startswith("net lenet")
