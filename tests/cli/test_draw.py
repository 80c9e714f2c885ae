"""Pictures of nets: the text in dot is always checked, the picture where graphviz is installed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from dnncore.cli.__main__ import main
from dnncore.nn import BATCH, NetBuilder
from dnncore.nn.drawing import to_dot
from dnncore.nn.graph import Graph
from dnncore.nn.zoo import googlenet, resnet18
from tests.importers.caffe.nets import NETS
from tests.importers.onnx.nets import model_of

HAS_DOT = shutil.which("dot") is not None


def _edges(text: str) -> dict[tuple[str, str], str]:
    return {(a, b): rest for a, b, rest in re.findall(r"^ *(\w+) -> (\w+) \[(.*)\]$", text, re.MULTILINE)}


def _residual() -> Graph:
    net = NetBuilder("residual")
    x = net.input("data", (BATCH, 3, 8, 8))
    y = net.relu("relu", net.convolution("conv", x, 3, 3, padding=1))
    return net.build(net.plus("sum", y, x))


def test_every_node_has_a_box_and_every_value_that_is_read_an_edge() -> None:
    text = to_dot(_residual()).replace("\N{MULTIPLICATION SIGN}", "x")
    assert text.startswith('digraph "residual" {')
    edges = _edges(text)
    assert edges.keys() == {("i0", "n0"), ("n0", "n1"), ("n1", "n2"), ("i0", "n2"), ("n2", "o0")}
    assert 'label=" Nx3x8x8"' in edges["n0", "n1"]
    assert "label" not in edges["i0", "n2"]  # which the first edge of the value has
    (convolution,) = re.findall(r"^  n0 \[(.*)\]$", text, re.MULTILINE)
    assert "<B>convolution</B><BR/>3x3x3x3, padding 1<BR/>" in convolution
    assert "subgraph" not in text


def test_families_have_colors_of_their_own() -> None:
    fills = re.findall(r'^  n\d.*fillcolor="(#\w+)"', to_dot(_residual()), re.MULTILINE)
    assert len(set(fills) - {"#e9ecef"}) == 3  # which all others have


def test_large_nets_have_frames_by_what_names_begin_with() -> None:
    text = to_dot(googlenet())
    assert 'subgraph "cluster inception3a" {\n    label="inception3a"' in text
    assert '    subgraph "cluster inception3a.branch2" {' in text
    assert "inception3a.branch2.0" not in "".join(re.findall("subgraph.*", text))  # no deeper than two
    assert text.count("{") == text.count("}")
    names = re.findall(r'COLOR="#6c757d">([^<]*)<', text)
    assert sorted(names) == sorted(node.name for node in googlenet().nodes)


def test_names_of_files_do_no_harm() -> None:
    nodes = [helper.make_node("Relu", ['a"b'], ["</B>\\"]), helper.make_node("Relu", ["</B>\\"], ["y\n\0]"])]
    from dnncore.importers.onnx import import_onnx

    model = import_onnx(model_of(nodes, {'a"b': ("N", 3)}, outputs=("y\n\0]",)))
    text = to_dot(model.graph)
    assert len(_edges(text)) == 3
    assert "</B>\\<" not in text
    assert "&lt;/B&gt;\\" in text
    assert "\0" not in text
    assert "y??]" in text


def test_a_net_of_any_kind_is_written_as_dot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.prototxt").write_text(NETS["lenet"][0](5))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    onnx.save(model_of(nodes, {"x": ("N", 4)}, {"w": np.ones((4, 3), np.float32)}), tmp_path / "net.onnx")
    for net, kind in (
        (tmp_path / "net.prototxt", "pooling"),
        (tmp_path / "net.onnx", "inner product"),
        ("lenet", "convolution"),
    ):
        assert main(["draw", str(net), "-o", str(tmp_path / "net.dot")]) == 0
        assert f"<B>{kind}</B>" in (tmp_path / "net.dot").read_text()
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path / 'net.dot'}: 9 nodes"


def test_passes_are_drawn_too(tmp_path: Path) -> None:
    command = ["draw", "lenet", "-o", str(tmp_path / "net.dot"), "--passes", "--precision", "fp16"]
    assert main(command) == 0
    text = (tmp_path / "net.dot").read_text()
    assert "<B>pooled convolution</B>" in text
    assert "float16" in text
    assert main([*command, "--without", "fuse_pooling"]) == 0
    text = (tmp_path / "net.dot").read_text()
    assert "pooled convolution" not in text
    assert "<B>fused convolution</B>" in text


def test_what_cannot_be_drawn_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["draw", "lenet", "-o", str(tmp_path / "net.gif")]) == 1
    assert "none of the suffixes .dot, .svg, .png, .pdf" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["draw", "lenet", "-o", str(tmp_path / "net.svg")]) == 1
    assert "install graphviz, or write" in capsys.readouterr().err
    (tmp_path / "dot").write_text("#!/bin/sh\n/bin/cat > /dev/null; echo no font >&2; exit 3\n")
    (tmp_path / "dot").chmod(0o755)
    assert main(["draw", "lenet", "-o", str(tmp_path / "net.svg")]) == 1
    assert "dot made no" in capsys.readouterr().err
    assert not (tmp_path / "net.svg").exists()


@pytest.mark.skipif(not HAS_DOT, reason="graphviz is not installed")
@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_graphviz_makes_a_picture(suffix: str, magic: bytes, tmp_path: Path) -> None:
    out = tmp_path / f"net.{suffix}"
    assert main(["draw", "resnet18", "-o", str(out)]) == 0
    assert out.read_bytes().startswith(magic)
    if suffix == "svg":
        assert out.read_text().count('class="node"') == len(resnet18().nodes) + 2
