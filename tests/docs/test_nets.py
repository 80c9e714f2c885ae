"""The guide to nets is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs/nets.md").read_text()


def test_the_code_of_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == 10
    exec("\n".join(blocks), {})
    lines = capsys.readouterr().out.splitlines()
    head, losses = lines[:-10], [float(line) for line in lines[-10:]]
    *table, wide, narrow = head[: next(number for number, line in enumerate(head) if line.startswith("layer "))]
    assert "ms estimated" in head[-1]
    assert "convolution padding=1(data, conv1.weight)" in table[2]
    assert float(wide) < 1e-4 < float(narrow) < 0.05
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3]), losses
    assert (tmp_path / "models" / "small" / "1" / "model.json").is_file()
