"""Choosing the fastest algorithm without asking those that cannot be it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import pytest

from benchmarks.layers import LAYERS, LayerGeometry
from dnncore import RELU, TensorDescriptor
from dnncore.backend import Offer
from dnncore.bounds import Bounded, BoundedTwice, Searched, Selective
from dnncore.choice import composed, fastest, least_seconds, searching
from dnncore.cuda.algorithms import algorithms_for
from dnncore.descriptors import Layout
from dnncore.dtypes import DType
from dnncore.family import Family
from dnncore.figures import A100, H100, H200, DeviceFigures
from dnncore.problems import (
    BottleneckProblem,
    ConvolutionProblem,
    Direction,
    FillProblem,
    FusedConvolutionProblem,
    PooledConvolutionProblem,
    Problem,
)
from tests.cases import CASES

_ANY = FillProblem(TensorDescriptor.packed((1,)))

_IN_LAYERS = (PooledConvolutionProblem, BottleneckProblem)
"""What lies between their layers has to be somewhere: they need scratch memory."""


@dataclass
class _Algorithm:
    """Takes so long, and notes that it was asked."""

    name: str
    seconds: float | None
    workspace_bytes: int = 0
    asked: list[str] = field(default_factory=list)

    def offer(self, problem: object, figures: object) -> Offer | str:
        self.asked.append(self.name)
        return "it cannot" if self.seconds is None else Offer(self.seconds, lambda: None, self.workspace_bytes)


@dataclass
class _Bounded(_Algorithm, Bounded):
    least: float = 0.0

    def least_seconds(self, problem: object, figures: object) -> float:
        return self.least


@dataclass
class _BoundedTwice(_Bounded, BoundedTwice):
    closer: float = 0.0

    def closer_seconds(self, problem: object, figures: object) -> float:
        self.asked.append("closer")
        return self.closer


@dataclass
class _Searched(_Bounded, Searched):
    """Notes each bound that it was asked for the next one after."""

    bounds: tuple[float, ...] = ()

    def search(self, problem: object, figures: object) -> Generator[float, None, Offer | str]:
        for bound in self.bounds:
            self.asked.append(f"{bound}")
            yield bound
        return self.offer(problem, figures)


def _chosen(*algorithms: _Algorithm, limit: float = math.inf) -> str | None:
    found = fastest(algorithms, _ANY, H200, lambda offer: offer.workspace_bytes <= limit)
    return None if found is None else found[0].name


def test_of_equal_ones_the_first_is_taken_whatever_order_they_are_asked_in() -> None:
    assert _chosen(_Algorithm("a", 2), _Algorithm("b", 1), _Algorithm("c", 1)) == "b"
    assert _chosen(_Bounded("a", 1, least=0.9), _Algorithm("b", 1)) == "a"
    assert _chosen(_Bounded("a", 1, least=1), _Algorithm("b", 1)) == "a"
    assert _chosen(_Algorithm("a", 1), _Bounded("b", 1, least=0.9)) == "a"


def test_what_cannot_be_the_fastest_is_not_asked() -> None:
    slow, equal = _Bounded("slow", 5, least=4), _Bounded("equal", 3, least=3)
    assert _chosen(slow, _Algorithm("fast", 3), equal) == "fast"
    assert not slow.asked
    assert not equal.asked


def test_a_closer_bound_is_asked_for_where_the_first_leaves_it_open() -> None:
    bounds = ("a", 4, 4), ("b", 1, 4), ("c", 1, 2)
    far, open_, best = (_BoundedTwice(name, 5, least=least, closer=closer) for name, least, closer in bounds)
    best.seconds = 2.5
    assert _chosen(far, _Algorithm("fast", 3), open_) == "fast"
    assert _chosen(open_, _Algorithm("fast", 3), best) == "c"
    assert (far.asked, open_.asked, best.asked) == ([], ["closer"] * 2, ["closer", "c"])


def test_bounds_of_several_are_their_least_and_an_offer_bounds_what_has_no_other() -> None:
    algorithms = _Bounded("a", 5, least=3), _Algorithm("b", 4), _Algorithm("c", None)
    assert least_seconds(algorithms, _ANY, H200) == 3
    assert least_seconds(algorithms[1:], _ANY, H200) == 4
    assert least_seconds(algorithms[2:], _ANY, H200) == least_seconds((), _ANY, H200) == math.inf


def test_a_search_goes_on_only_while_its_bound_is_the_least() -> None:
    slow = _Searched("slow", 9, least=1, bounds=(2, 6, 8))
    best = _Searched("best", 5, least=1, bounds=(2, 3))
    assert _chosen(slow, _Algorithm("other", 7), best) == "best"
    assert slow.asked == ["2", "6"]
    assert best.asked == ["2", "3", "best"]


def test_a_search_says_what_none_of_its_offers_is_below_and_each_bound_once() -> None:
    algorithms = _Bounded("a", None, least=1), _Bounded("b", None, least=1), _Searched("c", 5, least=2, bounds=(2, 4))
    search = searching(algorithms, _ANY, H200)
    told = [
        (bound, [name for each in algorithms for name in each.asked])
        for bound in composed(lambda seconds: 2 * seconds, search)
    ]
    assert told == [(2, []), (4, ["a", "b"]), (8, ["a", "b", "2", "4"])]


def test_one_alone_is_asked_for_its_offer_whatever_its_search_says() -> None:
    class Elsewhere(_Searched):
        def search(self, problem: object, figures: object) -> Generator[float, None, Offer | str]:
            yield 1
            return "another one takes as long"

    own = Elsewhere("own", 5)
    assert _chosen(own) == "own"
    assert _chosen(own, _Algorithm("other", 9)) == "other"
    assert _chosen(own, limit=-1) is None


def test_a_search_of_none_finds_none_and_says_no_bound() -> None:
    assert list(searching((), _ANY, H200)) == []
    assert list(searching((_Bounded("a", None, least=3),), _ANY, H200)) == [3]


def test_what_is_refused_or_not_allowed_bounds_nothing() -> None:
    assert (
        _chosen(_Algorithm("a", None), _Algorithm("b", 1, workspace_bytes=8), _Bounded("c", 5, least=4), limit=7) == "c"
    )
    assert _chosen(_Algorithm("a", None), _Bounded("b", None, least=math.inf)) is None
    assert _chosen() is None


_PADDED = (
    LayerGeometry("a", 256, 2048, 2, 256, 3, 1, 10),
    LayerGeometry("b", 256, 256, 2, 64, 11, 1, 10),
    LayerGeometry("c", 64, 256, 4, 64, 4, 2, 9),
)
"""Whose y has more pixels than x, by padding alone: what backward-data computes is x's."""


_POINTWISE = LayerGeometry("pointwise", 8, 64, 28, 64, 1, 1, 0).problem(Direction.FORWARD, DType.FLOAT16, Layout.NCHW)


def _problems() -> Iterator[Problem]:
    yield from dict.fromkeys(case.problem for case in CASES)
    for layer in LAYERS:
        for direction in Direction:
            for dtype, layout in (
                (DType.FLOAT32, Layout.NCHW),
                (DType.FLOAT16, Layout.NHWC),
                (DType.FLOAT16, Layout.NCHW),
                (DType.FLOAT64, Layout.NHWC),
            ):
                yield layer.problem(direction, dtype, layout)
        for dtype, layout in itertools.product((DType.FLOAT32, DType.FLOAT16), (Layout.NCHW, Layout.NHWC)):
            plain = layer.problem(Direction.FORWARD, dtype, layout)
            operands = plain.x, plain.w, plain.y, plain.convolution
            yield FusedConvolutionProblem(*operands, z=plain.y, activation=RELU)
    for layer in _PADDED:
        for dtype, layout in ((DType.FLOAT16, Layout.NHWC), (DType.FLOAT16, Layout.NCHW)):
            yield layer.problem(Direction.BACKWARD_DATA, dtype, layout)


def _steps(search: Generator[float, None, Offer | str]) -> tuple[list[float], Offer | str]:
    """The bounds of a search, and what it comes to."""
    bounds = []
    while True:
        try:
            bounds.append(next(search))
        except StopIteration as end:
            return bounds, end.value


_ALL = pytest.mark.parametrize("figures", [H200, H100, A100], ids=["H200", "H100", "A100"])


@_ALL
def test_no_offer_is_below_its_bound(figures: DeviceFigures) -> None:
    for problem in _problems():
        for algorithm in algorithms_for(problem):
            offer = algorithm.offer(problem, figures)
            if isinstance(algorithm, Bounded) and isinstance(offer, Offer):
                least = algorithm.least_seconds(problem, figures)
                closer = algorithm.closer_seconds(problem, figures) if isinstance(algorithm, BoundedTwice) else least
                assert least <= closer <= offer.seconds, f"{algorithm.name} on {problem}"
                if isinstance(algorithm, Searched):
                    bounds, found = _steps(algorithm.search(problem, figures))
                    # One that is had otherwise for as much says so, or takes longer: what `offer` says is for who asks by name.
                    seconds = found.seconds if isinstance(found, Offer) else math.inf
                    assert max(offer.seconds, least, *bounds) <= seconds, f"{algorithm.name} on {problem}"


@_ALL
def test_what_does_not_suit_a_kind_of_convolution_refuses_it(figures: DeviceFigures) -> None:
    left_out = 0
    for problem in _problems():
        if not isinstance(problem, (ConvolutionProblem, FusedConvolutionProblem)):
            continue
        for algorithm in algorithms_for(problem):
            if isinstance(algorithm, Selective) and not algorithm.suits(problem.kind):
                left_out += 1
                assert isinstance(algorithm.offer(problem, figures), str), f"{algorithm.name} on {problem}"
    assert left_out


def test_a_family_says_which_suit_a_kind_once_and_in_its_order() -> None:
    algorithms = algorithms_for(_POINTWISE)
    assert isinstance(algorithms, Family)
    suiting = algorithms.suiting(_POINTWISE.kind)
    assert [each for each in algorithms if each in suiting] == list(suiting)
    assert 3 < len(suiting) < len(algorithms) / 2
    larger = LayerGeometry("larger", 32, 128, 28, 64, 1, 1, 0).problem(Direction.FORWARD, DType.FLOAT16, Layout.NCHW)
    assert algorithms.suiting(larger.kind) is suiting


@_ALL
@pytest.mark.parametrize("limit", [math.inf, 0])
def test_the_choice_is_the_one_among_all_offers(figures: DeviceFigures, limit: float) -> None:
    def allows(offer: Offer) -> bool:
        return offer.workspace_bytes <= limit

    for problem in _problems():
        algorithms = algorithms_for(problem)
        offers = [(algorithm, algorithm.offer(problem, figures)) for algorithm in algorithms]
        allowed = [(each, offer) for each, offer in offers if isinstance(offer, Offer) and allows(offer)]
        best = min(allowed, key=lambda found: found[1].seconds, default=None)
        assert best is not None or (not limit and isinstance(problem, _IN_LAYERS))
        assert fastest(algorithms, problem, figures, allows) == best
