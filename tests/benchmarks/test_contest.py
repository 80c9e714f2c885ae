"""A measurement from end to end on the CPU: rows, and what is wrong found before it is timed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.agenda import Agenda
from benchmarks.contest import Contest, Wrong
from benchmarks.document import Document
from benchmarks.kernels.convolutions import DIRECTIONS, convolution, int8_convolution
from benchmarks.kernels.precision import PRECISIONS
from benchmarks.layers import LayerGeometry
from benchmarks.measurement import Measurement
from benchmarks.race import Replay, Time
from benchmarks.torch_graphs import Search
from dnncore import Handle, TensorDescriptor
from dnncore.problems import Direction, UnaryProblem
from tests.benchmarks.fake_cuda import FakeCuda

LAYER = LayerGeometry("layer", 5, 6, 7, 8, 3, 2, 1)
GROUPED = LayerGeometry("grouped", 5, 12, 7, 8, 3, 1, 1, groups=4)
X = TensorDescriptor.packed((3, 5))


@pytest.fixture
def contest() -> Iterator[Contest]:
    with Handle("cpu") as handle:
        yield Contest(handle, Search(1, 1.0), is_dry=True, seed=1)


def unary(operator: str = "exp", **changes: Any) -> Measurement:
    return replace(Measurement(operator, UnaryProblem(X, X, operator), (X, X), torch.exp), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=lambda precision: str(precision.name))
@pytest.mark.parametrize("layer", [LAYER, GROUPED], ids=lambda layer: str(layer.name))
def test_ours_agrees_with_float64_in_every_direction(
    contest: Contest, layer: LayerGeometry, direction: str, precision: Any
) -> None:
    (row,) = contest.rows(convolution(layer, direction, precision))
    assert row["direction"] == direction
    assert row["ms"] > 0
    assert row["ms_warm"] > 0
    assert row["cudnn_ms"] is None
    assert row["relative_error"] < 5e-3


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", [LAYER, GROUPED], ids=lambda layer: str(layer.name))
def test_a_part_of_the_reference_is_that_part_of_the_whole(
    layer: LayerGeometry, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurement = convolution(layer, direction, PRECISIONS["fp32"])
    inputs = [torch.randn(tensor.shape, dtype=torch.float64) for tensor in measurement.inputs]
    assert measurement.reference is not None
    whole, taken = measurement.reference(inputs)
    assert taken(torch.empty(whole.shape)).shape == whole.shape
    macs = layer.problem(Direction.FORWARD).macs
    monkeypatch.setattr("benchmarks.kernels.convolutions._REFERENCE_MACS", macs // 2)
    part, taken = convolution(layer, direction, PRECISIONS["fp32"]).reference(inputs)  # type: ignore[misc]
    assert 0 < part.shape[0] < whole.shape[0]
    torch.testing.assert_close(part, taken(whole))


def test_int8_is_exact_and_beside_ours_in_fp16(contest: Contest) -> None:
    (row,) = contest.rows(int8_convolution(LAYER))
    assert row["relative_error"] == 0
    assert row["of_fp16"] == pytest.approx(row["fp16_ms"] / row["ms"], rel=0.01, abs=1e-3)
    assert row["fp16"].startswith("rival ")


def test_a_rival_goes_through_as_many_sets_as_its_own_bytes_take(
    contest: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp16 tensors are twice as large, so half as many exceed the cache."""
    raced: list[dict[str, int]] = []

    def race(contestants: Mapping[str, Replay], _mark: object, _rounds: object) -> dict[str, Time]:
        raced.append({name: replay.calls for name, replay in contestants.items()})
        return {name: Time(1.0, 0.0) for name in contestants}

    monkeypatch.setattr("benchmarks.contest.race", race)
    contest.is_dry = False
    (row,) = contest.rows(int8_convolution(LayerGeometry("1x1", 1, 32, 120, 32, 1, 1, 0)))
    cold, _warm = raced
    assert row["sets"] == 5
    ours, rival = cold.values()
    assert ours % 5 == 0
    assert (rival % 3, rival % 5) == (0, 2)  # 12 calls: four passes through three sets


def test_a_wrong_result_is_not_timed(contest: Contest) -> None:
    with pytest.raises(Wrong, match=r"exp: .* differs from float64 by"):
        contest.rows(unary(torch=lambda x: x.exp() * 1.001))
    with pytest.raises(Wrong, match="NaN, or left elements unwritten"):
        contest.rows(unary("log", torch=torch.log))  # of negative numbers
    with pytest.raises(Wrong, match="15 of 15 elements otherwise than integers"):
        contest.rows(unary(reference=lambda inputs: (inputs[0].exp() + 1, lambda y: y), exact=True))


def test_inputs_are_drawn_anew_for_every_measurement(contest: Contest) -> None:
    seen: list[np.ndarray] = []

    def prepare(inputs: Any) -> None:
        seen.append(inputs[0].numpy().copy())

    contest.rows(unary(prepare=prepare))
    contest.rows(unary(prepare=prepare))
    assert len({array.tobytes() for array in seen}) == len(seen) == 4


def test_beside_pytorch_a_row_has_its_best_time_and_the_ratio(
    contest: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeCuda(monkeypatch)
    monkeypatch.setattr("benchmarks.contest.is_beside_torch", lambda _handle: True)
    (row,) = contest.rows(convolution(LAYER, "forward", PRECISIONS["fp32"]))
    assert set(row["heats"]) == {
        *("contiguous", "contiguous, search 1 of 10", "channels_last", "channels_last, search 1 of 10"),
    }
    assert row["cudnn"] in row["heats"]
    assert row["of_cudnn"] == pytest.approx(row["cudnn_ms"] / row["ms"], rel=0.01, abs=1e-3)
    assert row["relative_difference"] < 1e-6


def test_at_the_end_stands_what_it_comes_to(
    contest: Contest, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agenda = Agenda(contest, None)
    found = {"first": 2.0, "second": 0.5, "third": 8.0}
    rows = {
        name: {
            "name": name,
            "of_torch": ratio,
            "torch_ms": 1.0,
            "of_torch_warm": 1.0,
            "torch": "as it is",
            "ms": 1.0,
            "ms_warm": 1.0,
        }
        | {"tbps": 1.0, "relative_error": 0.0, "algorithm": "gemm"}
        for name, ratio in found.items()
    }
    monkeypatch.setattr(Contest, "rows", lambda _self, one: [rows[one.name]])
    agenda.measure(Document(tmp_path / "file.json", ("name",)), [unary(name=name) for name in found], "file")
    assert agenda.close() == 0
    assert capsys.readouterr().out.endswith("file: geometric mean 2.00 of 3; behind: second 0.50\n")


class Minutes:
    """A clock that goes on by a minute whenever it is read."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 60
        return self.seconds


def test_what_there_is_no_time_for_is_said(contest: Contest, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    document = Document(tmp_path / "file.json", ("name",))
    agenda = Agenda(contest, 3.5, clock=Minutes())
    measured = [unary(name=name) for name in ("first", "second", "third")]
    agenda.measure(document, measured, "file")
    assert agenda.close() == 0
    said = capsys.readouterr().out
    assert said.startswith("first ")
    assert "time is over; not run: 2 (file second; file third)" in said
    assert agenda.due(document, measured) == measured
    missing = Agenda(contest, None, is_missing_only=True)
    assert missing.due(document, measured) == measured[1:]


def test_rows_of_a_file_from_before_there_was_a_key_are_lost_to_the_first_that_comes(tmp_path: Any) -> None:
    path = tmp_path / "file.json"
    Document(path, ("name",)).add([{"name": "old"}])
    assert Document(path, ("name",)).dropped == 0
    document = Document(path, ("name", "client"))
    assert document.dropped == 1
    document.add([{"name": "new", "client": "core"}])
    assert [row["name"] for row in json.loads(path.read_text())["results"]] == ["new"]


def test_a_failure_is_said_and_the_next_is_measured(
    contest: Contest, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    document = Document(tmp_path / "file.json", ("name",))
    agenda = Agenda(contest, None)
    agenda.measure(document, [unary(name="wrong", torch=torch.sin), unary(name="right")], "file")
    assert agenda.close() == 1
    said = capsys.readouterr().out
    assert said.count("FAILED file wrong: Wrong: ") == 2
    assert document.has({"name": "right"})
    assert not document.has({"name": "wrong"})
