"""Rankings for devices that are not here."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from dnncore import ConvolutionDescriptor, Preference, TensorDescriptor
from dnncore.backend import Algorithm, Offer
from dnncore.cuda.algorithms import algorithms_for
from dnncore.dtypes import DType
from dnncore.figures import A100, CPU, H100, H200, DeviceFigures, Maths
from dnncore.plan import rank
from dnncore.problems import ConvolutionProblem, Direction, Problem
from tests.cases import CASES


@dataclass(frozen=True)
class Absent:
    """As much of a device as ranking looks at: one that this machine does not have."""

    figures: DeviceFigures

    def algorithms(self, problem: Problem) -> tuple[Algorithm, ...]:
        return algorithms_for(problem)


def _convolution(dtype: str = "float32") -> ConvolutionProblem:
    x, w, y = (TensorDescriptor.packed(shape, dtype) for shape in ((64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56)))
    return ConvolutionProblem(Direction.FORWARD, x, w, y, ConvolutionDescriptor.make(padding=1))


def test_rates_are_those_of_the_data_sheets() -> None:
    tera = 2e-12  # two operations per product
    assert H200.products_per_second(Maths.FP32) * tera == pytest.approx(66.9, rel=0.01)
    assert H100.products_per_second(Maths.FP16) * tera == pytest.approx(989, rel=0.09)  # at the clock of fp32 work
    assert A100.products_per_second(Maths.FP16) * tera == pytest.approx(312, rel=0.01)
    assert A100.products_per_second(Maths.of(DType.FLOAT32)) * tera == pytest.approx(19.5, rel=0.01)
    assert CPU.products_per_second(Maths.TF32) == 0


def test_a_ranking_needs_no_device() -> None:
    ranked = rank(_convolution(), Absent(H200), Preference())  # type: ignore[arg-type]
    usable = [found.offer.seconds for found in ranked if found.status is None and found.offer is not None]
    assert len(usable) > 3
    assert usable == sorted(usable)
    assert ranked[0].name.startswith("winograd")


@pytest.mark.parametrize("slower", [A100, H100], ids=["A100", "H100"])
def test_no_estimate_is_lower_on_a_slower_device(slower: DeviceFigures) -> None:
    for problem in dict.fromkeys(case.problem for case in CASES):
        for algorithm in algorithms_for(problem):
            fast, slow = algorithm.offer(problem, H200), algorithm.offer(problem, slower)
            if isinstance(fast, Offer) and isinstance(slow, Offer):
                assert fast.seconds <= slow.seconds * 1.001, f"{algorithm.name} on {problem}"


def test_the_ranking_follows_the_figures() -> None:
    def names(figures: DeviceFigures) -> list[str]:
        return [found.name for found in rank(_convolution(), Absent(figures), Preference())]  # type: ignore[arg-type]

    usual, dear = names(H200), names(replace(H200, launch_seconds=1e-3))
    assert usual.index("winograd_nonfused") < usual.index("implicit_gemm")
    assert dear.index("winograd_nonfused") > dear.index("implicit_gemm")  # three launches for one
