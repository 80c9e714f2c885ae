"""What a choice may take, and which plans are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, Handle, Preference, TensorDescriptor
from dnncore.choice import fastest
from dnncore.cuda.absent import AbsentDevice
from dnncore.descriptors import BinaryOperator
from dnncore.errors import BadParamError, NotSupportedError
from dnncore.figures import H200
from dnncore.problems import BinaryProblem, ConvolutionProblem, Direction, Problem


@pytest.mark.parametrize("limit", [1e6, "1", 1.5, np.float32(3)])
def test_a_workspace_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(BadParamError, match=r"workspace_limit_bytes .* must be an integer"):
        Preference(limit)


def test_a_workspace_limit_may_be_numpys_and_not_negative() -> None:
    limit = Preference(np.int64(2**40)).workspace_limit_bytes  # type: ignore[arg-type]
    assert (type(limit), limit) == (int, 2**40)
    with pytest.raises(BadParamError, match="must not be negative"):
        Preference(-1)


def test_what_was_estimated_is_planned_without_asking_again(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    x = TensorDescriptor.packed((2,))
    problems = [BinaryProblem(x, x, x, BinaryOperator.ADD, alpha) for alpha in (1.0, 2.0)]
    asked: list[Problem] = []

    def choose(algorithms: Sequence[Any], problem: Problem, *others: Any) -> Any:
        asked.append(problem)
        return fastest(algorithms, problem, *others)

    monkeypatch.setattr("dnncore.plan.fastest", choose)
    with Handle(handle.info.name) as own:
        seconds = [own.estimated_seconds(problem) for problem in problems]
        plans = [own.plan(problem) for problem in problems]
        assert seconds == [plan.offer.seconds for plan in plans] == [own.estimated_seconds(each) for each in problems]
        assert plans == [own.plan(problem) for problem in problems]
    assert asked == problems


def test_an_estimate_is_that_of_what_the_preference_allows_and_infinite_where_it_allows_nothing() -> None:
    with Handle(AbsentDevice(H200)) as own:
        x, w = TensorDescriptor.packed((1, 256, 14, 14)), TensorDescriptor.packed((256, 256, 3, 3))
        problem = ConvolutionProblem(Direction.FORWARD, x, w, x, ConvolutionDescriptor.make(padding=1))
        fast = own.estimated_seconds(problem)
        with own.preferring(Preference.NO_WORKSPACE):
            assert own.estimated_seconds(problem) == own.plan(problem).offer.seconds > fast
        assert own.plan(problem).offer.seconds == fast
        unseen = replace(problem, convolution=ConvolutionDescriptor.make(padding=1, math="tf32"))
        own.device.algorithms = lambda _: ()  # type: ignore[method-assign]
        assert own.estimated_seconds(unseen) == math.inf
        with pytest.raises(NotSupportedError):
            own.plan(unseen)


def test_only_the_plans_last_used_are_kept(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnncore.planner.MOST_PLANS", 2)
    x = TensorDescriptor.packed((2,))
    with Handle(handle.info.name) as own:

        def plan(alpha: float) -> object:
            return own.plan(BinaryProblem(x, x, x, BinaryOperator.ADD, alpha))

        first, second = plan(1.0), plan(2.0)
        assert plan(1.0) is first
        plan(3.0)
        assert plan(1.0) is first
        assert plan(2.0) is not second
        assert len(own._planner.plans) == 2
