"""The guide to nets is run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import estimates
from dnncore.figures import H200

_ROOT = Path(__file__).parents[2]
GUIDE = (_ROOT / "docs/nets.md").read_text()
_NETS = {
    "ResNet-50": "resnet50",
    "VGG-16": "vgg16",
    "AlexNet": "alexnet",
    "GoogLeNet": "googlenet",
    "MobileNetV2": "mobilenet_v2",
}


def test_the_code_of_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == 12
    exec("\n".join(blocks), {})
    lines = capsys.readouterr().out.splitlines()
    head, losses = lines[:-10], [float(line) for line in lines[-10:]]
    *table, wide, narrow = head[: next(number for number, line in enumerate(head) if line.startswith("layer "))]
    assert "ms estimated" in head[-1]
    assert "convolution padding=1(data, conv1.weight)" in table[2]
    assert float(wide) < 1e-4 < float(narrow) < 0.05
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3]), losses
    assert (tmp_path / "models" / "small" / "1" / "model.json").is_file()


@pytest.mark.parametrize("title", _NETS)
def test_the_table_of_memory_is_what_its_command_computes_and_what_was_measured_of_pytorch(title: str) -> None:
    net, (row,) = _NETS[title], re.findall(rf"^\| {title} \| ([\d |]+) \|$", GUIDE, re.MULTILINE)
    measured = {
        result["precision"]: f"{result['torch_bytes'] / 1e6:.0f}"
        for result in json.loads((_ROOT / "benchmarks/results/nets.json").read_text())["results"]
        if (result["net"], result["batch"]) == (net, 256)
    }
    assert row.split(" | ") == [
        number
        for _, precision, *_, values, beside, taken, _ in estimates.rows(net, (256,), H200)
        for number in (values, beside, taken, measured[precision])
    ]
