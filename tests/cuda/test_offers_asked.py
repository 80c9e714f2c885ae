"""How much a choice asks for before it is made: a first plan waits for it. Counted, so that no machine's load counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from dnncore import RELU, ConvolutionDescriptor, DType, TensorDescriptor
from dnncore.bounds import Searched
from dnncore.choice import fastest
from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.convolution import copies
from dnncore.cuda.convolution.plain import best_offer
from dnncore.cuda.convolution.relaid import RelaidConvolution
from dnncore.cuda.gemm import product_or_reason
from dnncore.descriptors import ConvolutionMode, Layout
from dnncore.figures import H200
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, Problem

_COMPOSED = ("implicit_gemm_3xtf32_merged", "implicit_gemm_wgmma_relaid", "implicit_precomp_gemm", "space_to_depth")
"""Those whose offers ask for others', or say what another's takes and more."""


def _convolution(
    direction: Direction,
    taps: int,
    stride: int,
    extent: int,
    layout: Layout,
    dtype: DType = DType.FLOAT32,
    channels: int = 81,
) -> ConvolutionProblem:
    conv = ConvolutionDescriptor.make(stride=stride, padding=taps // 2)
    x, w = (8, channels, extent, extent), (128, channels, taps, taps)
    shapes = x, w, conv.output_shape(x, w)
    of_x, of_w, of_y = (TensorDescriptor.packed(shape, dtype, layout) for shape in shapes)
    return ConvolutionProblem(direction, of_x, of_w, of_y, conv)


def _inside(algorithm: Any) -> Iterator[type]:
    """The classes of an algorithm and of those that it is made of."""
    yield type(algorithm)
    for field in fields(algorithm) if is_dataclass(algorithm) else ():
        value = getattr(algorithm, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if hasattr(each, "offer"):
                yield from _inside(each)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Offers that were asked for since, by the names of the algorithms, inner ones among them; of searches what ended."""
    best_offer.cache_clear()  # whoever was asked before
    found: Counter[str] = Counter()

    def count(kind: type) -> None:
        if issubclass(kind, Searched):
            steps = kind.search

            def search(self: Any, problem: Any, figures: Any) -> Any:
                found_one = yield from steps(self, problem, figures)
                found[self.name] += 1
                return found_one

            monkeypatch.setattr(kind, "search", search)
            return
        own = kind.offer  # type: ignore[attr-defined]

        def offer(self: Any, problem: Any, figures: Any) -> Any:
            found[self.name] += 1
            return own(self, problem, figures)

        monkeypatch.setattr(kind, "offer", offer)

    plain = _convolution(Direction.FORWARD, 1, 1, 28, Layout.NCHW)
    problems: list[Problem] = [_fused(plain), *(_convolution(each, 1, 1, 28, Layout.NCHW) for each in Direction)]
    for kind in {kind for problem in problems for algorithm in algorithms_for(problem) for kind in _inside(algorithm)}:
        count(kind)
    return found


def _fused(plain: ConvolutionProblem) -> FusedConvolutionProblem:
    bias = TensorDescriptor.packed((1, plain.w.shape[0], 1, 1), plain.x.dtype)
    return FusedConvolutionProblem(plain.x, plain.w, plain.y, plain.convolution, bias=bias, activation=RELU)


_LAYOUTS = pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC], ids=lambda layout: layout.value)
_DIRECTIONS = pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)


@_LAYOUTS
@_DIRECTIONS
@pytest.mark.parametrize(
    ("taps", "stride", "extent"), [(1, 1, 28), (1, 2, 28), (3, 1, 28), (3, 2, 28), (5, 1, 28), (1, 1, 7)]
)
def test_a_choice_asks_for_few_offers_and_for_none_of_what_is_composed_and_far_from_the_fastest(
    direction: Direction, taps: int, stride: int, extent: int, layout: Layout, asked: Counter[str]
) -> None:
    problem = _convolution(direction, taps, stride, extent, layout)
    assert fastest(algorithms_for(problem), problem, H200)
    assert asked.total() <= 12, f"{asked}"
    assert not {name for name in _COMPOSED if asked[name]}


@_LAYOUTS
@_DIRECTIONS
def test_phases_that_cannot_win_are_made_no_product_of(direction: Direction, layout: Layout) -> None:
    problem = _convolution(direction, 3, 2, 28, layout)
    product_or_reason.cache_clear()
    assert fastest(algorithms_for(problem), problem, H200)
    assert product_or_reason.cache_info().misses == 1


@_LAYOUTS
@pytest.mark.parametrize(
    ("taps", "stride", "most"), [(1, 1, 15), (1, 2, 15), (3, 1, 24), (3, 2, 40), (5, 1, 26), (7, 2, 40)]
)
def test_a_choice_of_a_fused_convolution_asks_once_for_each_offer_of_the_plain_one(
    taps: int, stride: int, most: int, layout: Layout, asked: Counter[str]
) -> None:
    problem = _fused(_convolution(Direction.FORWARD, taps, stride, 28, layout))
    assert fastest(algorithms_for(problem), problem, H200)
    assert asked.total() <= most, f"{asked}"


def test_phases_that_win_are_asked_for_one_offer_each(asked: Counter[str]) -> None:
    problem = _convolution(Direction.BACKWARD_DATA, 7, 2, 7, Layout.NCHW)
    found = fastest(algorithms_for(problem), problem, H200)
    assert found is not None
    assert found[0].name == "space_to_depth"
    assert asked["space_to_depth"] == 1
    assert asked.total() <= 25, f"{asked}"


_IN_16_BITS = pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda dtype: dtype.value)
_LAYERS = pytest.mark.parametrize(
    ("taps", "stride", "extent"), [(3, 1, 28), (1, 1, 28), (1, 1, 7), (3, 2, 28), (5, 1, 28), (7, 2, 28)]
)
_CHANNELS = pytest.mark.parametrize("channels", [81, 96])
"""Rows of pixels that the copy engine does not take, and such that it does."""


@_LAYOUTS
@_IN_16_BITS
@_CHANNELS
@_LAYERS
@_DIRECTIONS
def test_in_16_bits_phases_and_copies_ask_only_as_far_as_they_may_win(
    direction: Direction,
    taps: int,
    stride: int,
    extent: int,
    channels: int,
    dtype: DType,
    layout: Layout,
    asked: Counter[str],
) -> None:
    problem = _convolution(direction, taps, stride, extent, layout, dtype, channels)
    assert fastest(algorithms_for(problem), problem, H200)
    assert asked.total() <= 23, f"{asked}"


@_LAYOUTS
@_IN_16_BITS
@_CHANNELS
@_LAYERS
def test_a_fused_convolution_in_16_bits_asks_for_little_more_than_one_alone(
    taps: int, stride: int, extent: int, channels: int, dtype: DType, layout: Layout, asked: Counter[str]
) -> None:
    problem = _fused(_convolution(Direction.FORWARD, taps, stride, extent, layout, dtype, channels))
    assert fastest(algorithms_for(problem), problem, H200)
    assert asked.total() <= 27, f"{asked}"


@_IN_16_BITS
def test_copies_that_no_algorithm_takes_are_not_chosen(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _convolution(Direction.FORWARD, 3, 1, 28, Layout.NCHW, dtype, channels=81)
    rotated = replace(problem.convolution, mode=ConvolutionMode.CONVOLUTION)
    problem = replace(problem, convolution=rotated)
    monkeypatch.setattr(copies, "fastest_copy", lambda *_: pytest.fail("a copy was chosen"))
    relaid = next(each for each in algorithms_for(problem) if isinstance(each, RelaidConvolution))
    assert "over copies" in str(relaid.offer(problem, H200))
