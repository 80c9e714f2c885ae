"""What has become slower between two results files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import compared, main


def document(method: str | None, *rows: dict[str, Any]) -> dict[str, Any]:
    head = {} if method is None else {"method": method}
    return {"environment": {"gpus": ["H200, 580"]}, **head, "results": list(rows)}


def row(layer: str, ms: float, algorithm: str = "gemm", **more: Any) -> dict[str, Any]:
    return {"layer": layer, "direction": "forward", "algorithm": algorithm, "ms": ms, **more}


OLD = document("graphs", row("a", 1.0), row("a", 9.0, "direct"), row("b", 2.0), row("gone", 1.0))
NEW = document("graphs", row("a", 1.2, "fft"), row("b", 1.0), row("new", 1.0))


def test_the_slowest_comes_first_and_the_chosen_algorithm_counts() -> None:
    changes, gone, come = compared(OLD, NEW)
    assert [(dict(change.key)["layer"], round(change.ratio, 3)) for change in changes] == [("a", 1.2), ("b", 0.5)]
    assert changes[0].algorithms == ("gemm", "fft")
    assert [dict(keys[0])["layer"] for keys in (gone, come)] == ["gone", "new"]


def test_it_fails_where_a_row_is_slower_by_more_than_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(OLD))
    new.write_text(json.dumps(NEW))
    assert main([str(old), str(new)]) == 1
    said = capsys.readouterr().out
    assert "slower by more than 5 %: 1 of 2\n   1.200" in said
    assert "gemm -> fft" in said
    assert "geometric mean of the new times over the old: 0.775" in said
    assert main([str(old), str(new), "--over", "25"]) == 0
    assert main([str(new), str(new)]) == 0


def test_figures_of_two_methods_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(document(None, row("a", 1.0))))
    new.write_text(json.dumps(NEW))
    assert main([str(old), str(new)]) == 2
    assert "method differ: None and 'graphs'" in capsys.readouterr().err


def test_another_figure_can_be_compared() -> None:
    (change,), *_ = compared(
        document(None, row("a", 1.0, cudnn_ms=4.0)), document(None, row("a", 5.0, cudnn_ms=2.0)), "cudnn_ms"
    )
    assert change.ratio == 0.5
