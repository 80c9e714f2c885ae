"""Measuring choices: what is due, who is timed, what is kept and what becomes of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.choices.__main__ import _conclude, main
from benchmarks.choices.problems import of_net
from benchmarks.choices.record import Measured, Record
from benchmarks.choices.trial import Trials
from benchmarks.kernels.precision import PRECISIONS
from benchmarks.layers import LAYERS
from dnncore import Handle
from dnncore.cuda.absent import AbsentDevice
from dnncore.errors import ConfigError, OutOfMemoryError
from dnncore.figures import H200
from dnncore.measured import read
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, Problem
from tests.benchmarks.test_race import Clock
from tests.conftest import GPU

ANCHOR = LAYERS[10].shrunk.problem(Direction.FORWARD)


@pytest.mark.skipif(GPU, reason="there the benchmarks measure")
class TestCommand:
    def test_a_dry_run_measures_everything_once_and_goes_on_where_it_ended(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--dry-run", "--device", "cpu", "--out", str(tmp_path), "--nets", "lenet", "--batches", "1"]
        assert main([*arguments, "--dtypes", "float16"]) == 0
        (path,) = tmp_path.iterdir()
        assert path.name == "dry-run-choices.jsonl"
        first = path.read_text().splitlines()
        assert {json.loads(line)["problem"].partition("(")[0] for line in first[1:]} >= {
            "Convolution",
            "FusedConvolution",
        }
        assert f"{len(first) - 1} measured, 0 were there" in capsys.readouterr().out
        assert main([*arguments, "--dtypes", "float16", "--missing", "--minutes", "0"]) == 0
        assert "time is over; " in capsys.readouterr().out
        assert main([*arguments, "--dtypes", "float16", "float32", "--missing"]) == 0
        assert f", {len(first) - 1} were there" in capsys.readouterr().out
        both = path.read_text().splitlines()
        assert set(first) < set(both)
        assert both[1:] == sorted(both[1:])

    def test_without_a_gpu_nothing_is_measured(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--device", "cpu", "--out", str(tmp_path)]) == 1
        assert "nvidia-smi shows no GPU" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


def test_a_net_has_what_it_asks_for_when_it_is_served_and_its_layers_in_three_directions() -> None:
    half, single = PRECISIONS["fp16"], PRECISIONS["fp32"]
    found = list(of_net("alexnet", [half, single], H200)(8))
    served = [problem for problem in found if isinstance(problem, FusedConvolutionProblem)]
    assert {problem.x.dtype for problem in served} == {half.dtype, single.dtype}
    assert all(problem.bias is not None for problem in served)
    layers = [problem for problem in found if isinstance(problem, ConvolutionProblem)]
    assert len(layers) == 5 * 3 * 2
    assert {problem.direction for problem in layers} == set(Direction)
    assert all(problem.x.shape[0] == 8 for problem in layers)


class TestTrials:
    def test_every_algorithm_is_timed_and_noise_stays_as_it_was(self, handle: Handle) -> None:
        names = [each.name for each in handle.get_algorithms(ANCHOR) if each.status is None][:2]
        with closing(Trials(handle, is_dry=True)) as trials:
            assert trials.seconds(ANCHOR, names, 1e-5).keys() == set(names)
            before = _noise(trials, handle)
            assert all(seconds > 0 for seconds in trials.seconds(ANCHOR, names, 1e-5).values())
            assert _noise(trials, handle) == before != bytes(len(before))

    def test_no_two_operands_share_memory(self, handle: Handle) -> None:
        with closing(Trials(handle)) as trials:
            sets = trials._sets(ANCHOR, 3)
            for block, tensors, places in (
                (trials._noise[ANCHOR.x.dtype], ANCHOR.inputs, [place for inputs, _ in sets for place in inputs]),
                (trials._room, ANCHOR.outputs, [place for _, outputs in sets for place in outputs]),
            ):
                assert block._memory is not None
                begin = block._memory.pointer(0)
                starts = [place if isinstance(place, int) else place.ctypes.data for place in places]
                spans = [(start, start + tensor.nbytes) for start, tensor in zip(starts, tensors * 3, strict=True)]
                assert spans == sorted(spans)
                assert begin <= spans[0][0]
                assert spans[-1][1] <= begin + block._memory.nbytes
                assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))

    def test_what_takes_twice_as_long_is_out_at_its_first_sample_whenever_it_came(self) -> None:
        clock = Clock()
        times = {"first": 9.0, "much slower": 30.0, "best": 4.0, "a little slower": 6.0}
        assert _Clocked(clock, times).seconds(ANCHOR, tuple(times), 1e-5) == {
            name: pytest.approx(ms * 1e-3 / 12) for name, ms in times.items()
        }
        assert clock.order[:8] == [name for name in times for _ in range(2)]
        assert set(clock.order[8:]) == {"best", "a little slower"}
        assert clock.order.count("best") == clock.order.count("a little slower") > 8

    def test_what_has_no_room_is_left_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = _Clocked(Clock(), {"hungry": None, "frugal": 4.0}).seconds(ANCHOR, ("hungry", "frugal"), 1e-5)
        assert found.keys() == {"frugal"}
        assert "hungry is left out: no room" in capsys.readouterr().out


def _noise(trials: Trials, handle: Handle) -> bytes:
    memory = trials._noise[ANCHOR.x.dtype]._memory
    assert memory is not None
    found = np.empty(memory.nbytes, np.uint8)
    handle.device.copy_to_host(handle.stream, found, memory.at(0))
    handle.synchronize()
    return found.tobytes()


class _Clocked(Trials):
    """Trials on a device that takes as long as it is told for a graph, which has 12 calls."""

    def __init__(self, clock: Clock, ms: Mapping[str, float | None]) -> None:
        handle: Any = SimpleNamespace(device=SimpleNamespace(figures=H200), record_event=clock.mark)
        self._clock, self._ms = clock, ms
        super().__init__(handle)

    def _sets(self, problem: Problem, count: int) -> Any:
        return []

    def _captured(self, problem: Problem, name: str, sets: Any, rotation: Any) -> Any:
        ms = self._ms[name]
        if ms is None:
            raise OutOfMemoryError("no room")
        replay = self._clock.replay(name, ms * rotation.calls / 12)
        return SimpleNamespace(run=replay.enqueue, close=lambda: None)


def _measured(problem: str, kernels: str = "k", **us: float) -> Measured:
    return Measured(problem, "a", kernels, "0123", {"x": 1.0, "y": 2.0}, us)


class TestRecord:
    def test_what_was_measured_is_there_again_unless_kernels_or_algorithms_have_changed(self, tmp_path: Path) -> None:
        record = Record(tmp_path / "r", "NVIDIA H200")
        record.add(_measured("b", x=1, y=2))
        record.add(_measured("a", "old", x=1, y=2))
        again = Record(tmp_path / "r", "NVIDIA H200")  # as after a run that was broken off
        assert again.has("b", "a", "k")
        assert not again.has("a", "a", "k")
        assert not again.has("b", "other", "k")
        assert not again.has("c", "a", "k")
        again.add(_measured("a", x=3, y=2))
        again.close()
        assert [json.loads(line)["problem"] for line in (tmp_path / "r").read_text().splitlines()[1:]] == ["a", "b"]
        assert Record(tmp_path / "r", "NVIDIA H200").has("a", "a", "k")

    def test_one_of_another_gpu_or_damaged_is_refused_and_left_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "r"
        Record(path, "NVIDIA H200").add(_measured("b", x=1))
        before = path.read_text()
        with pytest.raises(ConfigError, match=r"r is of .*H200.*, and this is .*H100.*give --out another folder"):
            Record(path, "NVIDIA H100")
        assert path.read_text() == before
        path.write_text(before + '{"problem": ')
        with pytest.raises(ConfigError, match=r"r is damaged .*give --out another folder"):
            Record(path, "NVIDIA H200")

    def test_choices_are_where_the_estimate_was_wrong_by_more_than_measurements_scatter(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        record = Record(tmp_path / "r", "NVIDIA H200")
        record.add(_measured("right", x=1, y=2))
        record.add(_measured("as good as right", x=1.02, y=1))
        record.add(_measured("wrong", x=1.5, y=1))
        record.add(_measured("first could not be run", y=1))
        with Handle(AbsentDevice(H200)) as handle:
            _conclude(record, tmp_path / "h200.jsonl", handle)
        (choice,) = read(tmp_path / "h200.jsonl")
        assert (choice.problem, choice.architecture, choice.algorithms) == ("wrong", "sm_90a", "a")
        assert [name for name, _ in choice.seconds] == ["y", "x"]
        assert dict(choice.seconds) == {"y": pytest.approx(1e-6), "x": pytest.approx(1.5e-6)}
        first = json.loads((tmp_path / "h200.jsonl").read_text().splitlines()[0])
        assert first == {"choices": 1, "measured": 3, "estimate_was_right": 2, "commits": ["0123"]}
        assert "1 choices; of 3 problems the estimate was right in 2" in capsys.readouterr().out
