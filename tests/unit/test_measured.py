"""Choices that were measured come before estimates, and nothing is timed for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.layers import LAYERS
from dnncore import ConvolutionDescriptor, Handle, Preference, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda import shipped
from dnncore.cuda.absent import AbsentDevice
from dnncore.descriptors import Layout
from dnncore.dtypes import DType
from dnncore.errors import ConfigError
from dnncore.figures import A100, GPUS, H200
from dnncore.find import measured_choice
from dnncore.measured import (
    FORMAT,
    VARIABLE,
    MeasuredChoice,
    MeasuredChoices,
    file_text,
    names_digest,
    problem_text,
    read,
    save,
)
from dnncore.plan import BY_ESTIMATE, AlgorithmPerformance, choose, rank
from dnncore.problems import ConvolutionProblem, Direction, FillProblem, FusedConvolutionProblem, Problem
from tests.cases import CASES

_ANY = FillProblem(TensorDescriptor.packed((1,)))


@dataclass
class _Algorithm:
    """Is estimated to take so long."""

    name: str
    seconds: float | None
    workspace_bytes: int = 0
    deterministic: bool = True

    def offer(self, problem: object, figures: object) -> Offer | str:
        if self.seconds is None:
            return "it cannot"
        return Offer(self.seconds, lambda: (), self.workspace_bytes, self.deterministic)


class _Device(AbsentDevice):
    def __init__(self, *algorithms: _Algorithm) -> None:
        super().__init__(H200)
        self._algorithms = algorithms

    def algorithms(self, problem: object) -> tuple[_Algorithm, ...]:  # type: ignore[override]
        return self._algorithms


def _measured(names: str, problem: Problem = _ANY, **seconds: float) -> MeasuredChoices:
    found = tuple(sorted(seconds.items(), key=lambda each: each[1]))
    return MeasuredChoices(
        [MeasuredChoice(problem_text(problem), "NVIDIA H200", "sm_90a", names_digest(names.split()), found)]
    )


def _taken(device: _Device, choices: MeasuredChoices, preference: Preference = Preference()) -> tuple[str, float, bool]:  # noqa: B008
    """What is chosen; it is the first of the ranked."""
    found = choose(_ANY, device, preference, choices=choices)
    assert found is not None
    first = rank(_ANY, device, preference, choices)[0]
    assert (first.name, first.offer) == (found[0].name, found[1])
    return found[0].name, found[1].seconds, found[1].is_measured


class TestChoosing:
    def test_what_was_measured_is_first_with_its_seconds(self) -> None:
        device = _Device(_Algorithm("a", 1), _Algorithm("b", 2), _Algorithm("c", 3))
        assert _taken(device, BY_ESTIMATE) == ("a", 1, False)
        assert _taken(device, _measured("a b c", b=5, a=6)) == ("b", 5, True)
        ranked = rank(_ANY, device, Preference(), _measured("a b c", b=5, a=6))
        assert [each.name for each in ranked] == ["b", "a", "c"]
        assert [each.offer.is_measured for each in ranked if each.offer] == [True, True, False]

    def test_what_is_not_permitted_gives_way_to_the_next(self) -> None:
        hungry, careless = _Algorithm("a", 1, workspace_bytes=8), _Algorithm("b", 2, deterministic=False)
        device = _Device(hungry, careless, _Algorithm("c", 3), _Algorithm("d", 2.5))
        choices = _measured("a b c d", a=1, b=2, c=3)
        assert _taken(device, choices, Preference.NO_WORKSPACE) == ("b", 2, True)
        assert _taken(device, choices, Preference(0, deterministic=True)) == ("c", 3, True)
        assert _taken(device, _measured("a b c d", a=1), Preference.NO_WORKSPACE) == ("b", 2, False)

    def test_what_is_gone_or_offers_no_more_is_left_out(self) -> None:
        device = _Device(_Algorithm("a", 1), _Algorithm("b", 2), _Algorithm("c", None))
        assert _taken(device, _measured("a b c gone", gone=0.1, c=0.2, b=0.9)) == ("b", 0.9, True)
        assert _taken(device, _measured("a b c gone", gone=0.1)) == ("a", 1, False)

    def test_an_algorithm_that_came_later_competes_by_its_estimate(self) -> None:
        device = _Device(_Algorithm("a", 1), _Algorithm("b", 2), _Algorithm("new", 4))
        assert _taken(device, _measured("a b", b=5, a=6)) == ("new", 4, False)
        assert _taken(device, _measured("a b", b=3, a=6)) == ("b", 3, True)
        assert _taken(device, _measured("a b new", b=5, a=6)) == ("b", 5, True)

    def test_other_problems_are_chosen_by_estimates(self) -> None:
        device = _Device(_Algorithm("a", 1), _Algorithm("b", 2))
        other = FillProblem(TensorDescriptor.packed((2,)))
        assert _taken(device, _measured("a b", other, b=0.5)) == ("a", 1, False)
        assert _taken(device, _measured("a b", LAYERS[0].problem(Direction.FORWARD), b=0.5)) == ("a", 1, False)

    def test_an_algorithm_that_is_named_is_taken_and_says_what_it_took(self) -> None:
        device = _Device(_Algorithm("a", 1), _Algorithm("b", 2), _Algorithm("c", 3))
        for name, expected in (("a", (6, True)), ("c", (3, False))):
            found = choose(_ANY, device, Preference(), name, _measured("a b c", b=5, a=6))
            assert found is not None
            assert (found[0].name, found[1].seconds, found[1].is_measured) == (name, *expected)


_LAYER = ConvolutionProblem(
    Direction.FORWARD,
    TensorDescriptor.packed((1, 256, 14, 14)),
    TensorDescriptor.packed((256, 256, 3, 3)),
    TensorDescriptor.packed((1, 256, 14, 14)),
    ConvolutionDescriptor.make(padding=1),
)


class TestHandle:
    def test_it_plans_by_what_it_is_given_and_says_so(self) -> None:
        """A device that is absent refuses to launch and to record events: planning times nothing."""
        with Handle(AbsentDevice(H200), choices=BY_ESTIMATE) as handle:
            names = [each.name for each in handle.get_algorithms(_LAYER)]
            second = [each.name for each in handle.get_algorithms(_LAYER) if each.status is None][1]
            assert " us estimated, " in handle.plan(_LAYER).describe().splitlines()[0]
        choices = _measured(" ".join(names), _LAYER, **{second: 7e-6})
        with Handle(AbsentDevice(H200), choices=choices) as handle:
            assert handle.estimated_seconds(_LAYER) == 7e-6
            plan = handle.plan(_LAYER)
            assert (plan.algorithm, plan.offer.seconds) == (second, 7e-6)
            assert f"by {second}: 7.0 us measured, " in plan.describe().splitlines()[0]
            with handle.record() as program:
                handle.launch(plan, 1.0, (1 << 40, 2 << 40), 0.0, (3 << 40,))
            assert program.describe().splitlines()[-1].startswith("1 steps (1 of them measured): 0.007 ms estimated, ")

    def test_a_file_of_ones_own_comes_before_what_is_shipped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        device = AbsentDevice(H200)
        where = device.info.model, device.figures.architecture
        names = names_digest(each.name for each in device.algorithms(_LAYER))
        slow, fast = "direct", "implicit_gemm"
        device.choices = MeasuredChoices([MeasuredChoice(problem_text(_LAYER), *where, names, ((slow, 1e-6),))])
        own = MeasuredChoice(problem_text(_LAYER), *where, names, ((fast, 2e-6),))
        elsewhere = replace(own, device="NVIDIA A100", seconds=(("gemm", 1e-6),))
        for each in (own, elsewhere):
            save(tmp_path / "own", each)
        save(tmp_path / "elsewhere", elsewhere)

        def taken(path: Path | MeasuredChoices | None) -> str:
            with Handle(device, choices=path) as handle:
                return handle.plan(_LAYER).algorithm

        assert taken(None) == slow
        assert taken(tmp_path / "own") == fast
        assert taken(tmp_path / "elsewhere") == slow
        monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
        assert taken(None) == fast
        assert taken(tmp_path / "elsewhere") == slow
        assert taken(BY_ESTIMATE) not in (slow, "gemm")
        monkeypatch.setenv(VARIABLE, "")
        assert taken(None) == slow

    def test_what_was_found_is_saved_and_taken(self, handle: Handle, tmp_path: Path) -> None:
        x, w, y = (TensorDescriptor.packed(shape) for shape in ((2, 8, 9, 9), (16, 8, 3, 3), (2, 16, 7, 7)))
        problem = ConvolutionProblem(Direction.FORWARD, x, w, y, ConvolutionDescriptor.make(2))
        other = replace(problem, direction=Direction.BACKWARD_DATA)
        path = tmp_path / "choices.jsonl"
        handle.find_algorithms(other, most=1, save=path)
        found = handle.find_algorithms(problem, most=2, save=path)
        timed = [each for each in found if each.time_ms is not None]
        assert found[:2] == timed
        assert {each.problem for each in read(path)} == {problem_text(problem), problem_text(other)}
        with Handle(handle.info.name, choices=path) as own:
            plan = own.plan(problem)
            assert (plan.algorithm, plan.offer.is_measured) == (timed[0].name, True)
            assert plan.offer.seconds * 1e3 == pytest.approx(timed[0].time_ms, rel=1e-3)
            assert [each.name for each in own.get_algorithms(problem)][:2] == [each.name for each in timed]

    def test_what_was_not_permitted_or_failed_may_be_faster_than_what_was_found(self) -> None:
        offer = Offer(1.0, lambda: ())
        timed = [AlgorithmPerformance(name, None, offer, ms) for name, ms in zip("abcde", range(1, 6), strict=True)]
        untimed, cannot = AlgorithmPerformance("f", None, offer), AlgorithmPerformance("g", "it cannot", None)
        refused = AlgorithmPerformance("h", "needs 8 B of workspace, the limit is 0 B", offer)
        device = AbsentDevice(H200)
        choice = measured_choice([*timed, untimed, cannot, refused], _ANY, device)
        assert choice is not None
        assert choice.seconds == (("a", 1e-3), ("b", 2e-3), ("c", 3e-3), ("d", 4e-3))
        assert choice.algorithms == names_digest("abcdefg")
        assert measured_choice([cannot, refused], _ANY, device) is None


def _of_cases() -> Iterator[Problem]:
    yield from (case.problem for case in CASES)
    for layer in LAYERS:
        for direction in Direction:
            for layout in (Layout.NCHW, Layout.NHWC):
                yield layer.problem(direction, DType.FLOAT16, layout)


class TestTexts:
    def test_of_different_problems_they_differ(self) -> None:
        by_text: dict[str, Problem] = {}
        for problem in _of_cases():
            other = by_text.setdefault(problem_text(problem), problem)
            if other != problem:  # where an extent is 1 its stride says nothing
                operands = zip((*problem.inputs, *problem.outputs), (*other.inputs, *other.outputs), strict=True)
                assert type(other) is type(problem)
                assert all(_counted(a) == _counted(b) for a, b in operands)
        assert len(by_text) > 500

    def test_a_problem_in_another_spelling_has_the_same(self) -> None:
        def spelt(direction: Direction | str, shape: tuple[int, ...], layout: Layout | str) -> ConvolutionProblem:
            x = TensorDescriptor.packed(shape, "float32", layout)
            return ConvolutionProblem(
                direction,  # type: ignore[arg-type]
                x,
                TensorDescriptor.packed((4, 4, 3, 3)),
                x,
                ConvolutionDescriptor.make(2, padding=[1, (1, 1)]),
            )

        one = spelt("forward", (2, 4, 5, 5), "NHWC")
        other = spelt(Direction.FORWARD, tuple(np.array((2, 4, 5, 5))), Layout.NHWC)
        assert problem_text(one) == problem_text(other) == (
            "Convolution(direction=forward x=float32[2,4,5,5:100,1,20,4] w=float32[4,4,3,3:36,9,3,1] "
            "y=float32[2,4,5,5:100,1,20,4] convolution=Convolution(padding=[[1,1],[1,1]] stride=[1,1] dilation=[1,1]))"
        )  # fmt: skip
        assert problem_text(one) != problem_text(spelt("forward", (2, 4, 5, 5), "NCHW"))

    def test_strides_count_where_there_is_more_than_one_element(self) -> None:
        def text(*strides: int) -> str:
            return problem_text(FillProblem(TensorDescriptor(DType.FLOAT32, (1, 3, 2), strides)))

        assert text(6, 2, 1) == text(99, 2, 1) == "Fill(y=float32[1,3,2:*,2,1])"
        assert text(6, 2, 1) != text(6, 4, 1)

    def test_defaults_are_left_out_and_everything_else_counts(self) -> None:
        bias = TensorDescriptor.packed((1, 256, 1, 1))
        fused = FusedConvolutionProblem(_LAYER.x, _LAYER.w, _LAYER.y, _LAYER.convolution)
        assert "alpha" not in problem_text(fused)
        others = [
            replace(fused, bias=bias),
            replace(fused, scale=bias),
            replace(fused, overwrites=True),
            replace(fused, alpha1=0.5),
            replace(fused, convolution=ConvolutionDescriptor.make(padding=1, math="tf32")),
        ]
        assert len({problem_text(each) for each in [fused, *others]}) == 6


def _counted(tensor: TensorDescriptor) -> object:
    return tensor.dtype, tensor.shape, [s for s, n in zip(tensor.strides, tensor.shape, strict=True) if n > 1]


class TestFiles:
    choice = MeasuredChoice("Fill(y)", "NVIDIA H200", "sm_90a", "12345678", (("b", 1.25e-5), ("a", 3e-5)))

    def test_they_are_sorted_lines_that_read_as_they_were_written(self, tmp_path: Path) -> None:
        path = tmp_path / "choices.jsonl"
        others = [replace(self.choice, problem="Fill(x)"), replace(self.choice, device="NVIDIA H100")]
        for each in (self.choice, *others, replace(self.choice, seconds=(("b", 2e-5),)), self.choice):
            save(path, each)
        assert read(path) == (others[0], others[1], self.choice)
        first, *lines = path.read_text().splitlines()
        assert json.loads(first) == {"choices": FORMAT}
        assert lines == sorted(lines)
        assert lines[-1].endswith('"algorithms": "12345678", "us": {"b": 12.5, "a": 30.0}}')

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("", "damaged in line 1: .*"),
            ("[1]\n", r'damaged in line 1: it must be \{"choices": 1\}'),
            ('{"choices": 1}\nnonsense\n', "damaged in line 2: "),
            ('{"choices": 1}\n[]\n', "damaged in line 2: .* is no object"),
            ('{"choices": 1}\n{"problem": 3}\n', "damaged in line 2: problem, .* must be there, and text"),
            (f'{{"choices": 1}}\n{choice.line}\n{choice.line.replace("12.5", "-1")}', "damaged in line 3: us is .*'b': -1"),
            ('{"choices": 2}\nof tomorrow\n', f"have version 2 of their format, and this dnncore reads up to {FORMAT}"),
            ('{"choices": 1}\n\udcff', "damaged in line 1: .*utf-8"),
        ],
    )  # fmt: skip
    def test_one_that_cannot_be_used_is_named_with_what_to_do(self, text: str, complaint: str, tmp_path: Path) -> None:
        path = tmp_path / "mine.jsonl"
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ConfigError, match=rf"the choices .*mine.jsonl .*{complaint}.*measure again by"):
            Handle("cpu", choices=path)
        with pytest.raises(ConfigError, match=r"mine\.jsonl"):
            save(path, self.choice)
        assert path.read_bytes() == text.encode(errors="surrogateescape")

    def test_one_that_is_not_there_is_no_empty_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, str(tmp_path / "none.jsonl"))
        with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read .*name a file"):
            Handle("cpu")
        with pytest.raises(ConfigError, match=r"cannot be written .*folder that you may write to"):
            save(tmp_path / "no" / "folder.jsonl", self.choice)

    def test_what_has_changed_is_read_again(self, tmp_path: Path) -> None:
        path = tmp_path / "choices.jsonl"
        for seconds in (1e-5, 2e-5):
            save(path, replace(self.choice, seconds=(("b", seconds),)))
            assert dict(read(path)[0].seconds) == {"b": pytest.approx(seconds)}


class TestShipped:
    def test_those_of_a_gpu_are_for_its_figures(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "h200.jsonl").write_text(file_text([TestFiles.choice], {"commit": "0"}))
        monkeypatch.setattr(shipped, "FOLDER", tmp_path)
        shipped.choices.cache_clear()
        try:
            assert list(AbsentDevice(H200).choices) == [TestFiles.choice]
            assert len(AbsentDevice(A100).choices) == len(AbsentDevice(replace(H200, clock_hz=1e9)).choices) == 0
        finally:
            shipped.choices.cache_clear()

    def test_every_file_belongs_to_a_gpu_that_is_known_and_can_be_read(self) -> None:
        found = {path.name for path in shipped.FOLDER.glob("*")}
        assert found <= {f"{name}.jsonl" for name in GPUS}
        for figures in GPUS.values():
            for each in shipped.choices(figures):
                assert each.device.startswith("NVIDIA ")  # the emulated GPU has the figures of a real one
                assert each.architecture == figures.architecture

    def test_importing_dnncore_reads_none(self) -> None:
        code = "import sys, dnncore; dnncore.TensorDescriptor; print('dnncore.measured' in sys.modules)"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout == "False\n"
