"""How normalisations and what goes over rows are ranked: the fastest, as measured on an H200, comes first."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dnncore import ActivationDescriptor, LRNDescriptor, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda import cross_entropy, dropout, normalization, softmax, softmax_rows
from dnncore.cuda.calls import KernelCall, WhereAligned
from dnncore.descriptors import BatchNormMode, SoftmaxAlgorithm, SoftmaxMode
from dnncore.figures import A100, H200, DeviceFigures
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    DropoutProblem,
    GroupNormBackwardProblem,
    GroupNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
    LRNBackwardProblem,
    LRNForwardProblem,
    Problem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
)

ALGORITHMS: dict[type, tuple[Any, ...]] = {
    **normalization.ALGORITHMS,
    SoftmaxForwardProblem: (softmax_rows.SoftmaxRows(), *softmax.FORWARD),
    SoftmaxBackwardProblem: softmax.BACKWARD,
    CrossEntropyForwardProblem: cross_entropy.FORWARD,
    CrossEntropyBackwardProblem: cross_entropy.BACKWARD,
    DropoutProblem: dropout.ALGORITHMS,
}
LARGE, SMALL = (64, 64, 112, 112), (64, 64, 14, 14)
SPATIAL = BatchNormMode.SPATIAL


def packed(shape: tuple[int, ...], dtype: str = "float32", layout: str = "NCHW") -> TensorDescriptor:
    return TensorDescriptor.packed(shape, dtype, layout)


def offers(problem: Problem, figures: DeviceFigures = H200) -> dict[str, Offer]:
    found = {algorithm.name: algorithm.offer(problem, figures) for algorithm in ALGORITHMS[type(problem)]}
    return {name: offer for name, offer in found.items() if isinstance(offer, Offer)}


def ranked(problem: Problem, figures: DeviceFigures = H200) -> list[str]:
    found = offers(problem, figures)
    return sorted(found, key=lambda name: found[name].seconds)


def batch_norm(what: str, shape: tuple[int, ...], dtype: str, layout: str) -> Problem:
    x, p = packed(shape, dtype, layout), packed((1, shape[1], 1, 1))
    if what == "inference":
        return BatchNormInferenceProblem(x, p, p, p, p, x, SPATIAL, 1e-5)
    if what == "forward":
        return BatchNormForwardProblem(x, p, p, x, p, p, SPATIAL, 1e-5)
    return BatchNormBackwardProblem(x, x, p, p, p, x, p, p, SPATIAL)


def group_norm(what: str, shape: tuple[int, ...], dtype: str, layout: str) -> Problem:
    x, p, s = packed(shape, dtype, layout), packed((1, shape[1], 1, 1)), packed((shape[0], 32, 1, 1))
    if what == "forward":
        return GroupNormForwardProblem(x, x, s, s, 32, 1e-5, p, p)
    return GroupNormBackwardProblem(x, x, s, s, x, 32, p, p, p)


def layer_norm(what: str, rows: int, length: int, dtype: str) -> Problem:
    x, p, s = packed((rows, length), dtype), packed((1, length)), packed((rows, 1))
    if what == "forward":
        return LayerNormForwardProblem(x, x, s, 1, 1e-5, s, p, p)
    return LayerNormBackwardProblem(x, x, s, x, 1, s, p, p, p)


def rms_norm(rows: int, length: int, dtype: str) -> Problem:
    x = packed((rows, length), dtype)
    return LayerNormForwardProblem(x, x, packed((rows, 1)), 1, 1e-5, scale=packed((1, length)))


def over_rows(what: str, rows: int, length: int, dtype: str) -> Problem:
    x = packed((rows, length), dtype)
    how = SoftmaxAlgorithm.ACCURATE, SoftmaxMode.CHANNEL
    if what == "softmax-forward":
        return SoftmaxForwardProblem(x, x, *how)
    if what == "softmax-backward":
        return SoftmaxBackwardProblem(x, x, x, *how)
    labels = packed((rows,), "int32")
    if what == "loss":
        return CrossEntropyForwardProblem(x, labels, packed((rows,), dtype))
    return CrossEntropyBackwardProblem(x, labels, x)


def lrn(what: str) -> Problem:
    x = packed(LARGE)
    return (
        LRNForwardProblem(x, x, LRNDescriptor())
        if what == "forward"
        else LRNBackwardProblem(x, x, x, x, LRNDescriptor())
    )


def activated(what: str, residual: bool, dtype: str, layout: str) -> Problem:
    plain, relu = batch_norm(what, LARGE, dtype, layout), ActivationDescriptor.make("relu")
    x, p = plain.inputs[0], packed((1, LARGE[1], 1, 1))
    if isinstance(plain, BatchNormForwardProblem):
        return replace(plain, activation=relu, z=x if residual else None)
    assert isinstance(plain, BatchNormBackwardProblem)
    return replace(plain, activation=relu, y=x, bias=None if residual else p, dz=x if residual else None)


@pytest.mark.parametrize(
    ("what", "residual", "kernels"),
    [
        ("forward", False, ("channels_moments", "channels_normalize")),
        ("forward", True, ("channels_moments", "channels_normalize_added")),
        ("backward", False, ("channels_sums_by_line", "channels_gradient_by_line")),
        ("backward", True, ("channels_sums_by_y", "channels_gradient")),
    ],
)
def test_an_activation_has_kernels_of_channels(what: str, residual: bool, kernels: tuple[str, str]) -> None:
    offer = offers(activated(what, residual, "float16", "NHWC"))["parts"]
    calls = offer.prepare()
    aligned = [call.aligned[0] for call in calls if isinstance(call, WhereAligned)]
    assert [call.unit.entry for call in aligned if isinstance(call, KernelCall)] == [
        f"normalization_{kernel}_float16" for kernel in kernels
    ]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("what", "kernels"),
    [("forward", ["channels_moments", "channels_normalize"]), ("backward", ["channels_sums", "channels_gradient"])],
)
def test_group_normalisation_of_channels_last_has_kernels_of_channels(
    what: str, kernels: list[str], dtype: str
) -> None:
    calls = offers(group_norm(what, LARGE, dtype, "NHWC"))["parts"].prepare()
    aligned = [call.aligned[0] for call in calls if isinstance(call, WhereAligned)]
    element = {"float32": "float"}.get(dtype, dtype)
    assert [call.unit.entry for call in aligned if isinstance(call, KernelCall)] == [
        f"normalization_{kernel}_{element}" for kernel in kernels
    ]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("residual", [False, True])
def test_what_follows_takes_less_together_than_apart(residual: bool, dtype: str, layout: str) -> None:
    """Where a sum and a ReLU are passes of their own, each reads and writes what it could have had."""
    nbytes = math.prod(LARGE) * packed(LARGE, dtype).dtype.itemsize
    for what, passes in {"forward": 2 + 3 * residual, "backward": 3}.items():
        plain, fused = (
            min(offer.seconds for offer in offers(problem).values())
            for problem in (batch_norm(what, LARGE, dtype, layout), activated(what, residual, dtype, layout))
        )
        assert fused < plain + passes * nbytes / H200.bytes_per_second


# The algorithm and its microseconds in benchmarks/results: where these are many, so that calls from Python do not count.
MEASURED = (
    (batch_norm("inference", LARGE, "float32", "NCHW"), "given", 107),
    (batch_norm("forward", LARGE, "float32", "NHWC"), "parts", 174),
    (batch_norm("backward", LARGE, "float32", "NHWC"), "parts", 255),
    (batch_norm("forward", (128, 256, 56, 56), "float16", "NHWC"), "parts", 179),
    (batch_norm("backward", (128, 256, 56, 56), "float16", "NHWC"), "parts", 258),
    (batch_norm("forward", (128, 1024, 14, 14), "float16", "NHWC"), "parts", 57),
    (batch_norm("backward", (128, 1024, 14, 14), "float16", "NHWC"), "parts", 75),
    (group_norm("forward", LARGE, "float32", "NCHW"), "whole", 187),
    (group_norm("forward", LARGE, "float16", "NHWC"), "parts", 104),
    (group_norm("backward", LARGE, "float32", "NCHW"), "parts", 308),
    (group_norm("backward", LARGE, "float32", "NHWC"), "parts", 265),
    (layer_norm("forward", 65536, 1024, "float32"), "rows", 133),
    (layer_norm("forward", 16384, 4096, "float16"), "rows", 68),
    (over_rows("softmax-forward", 65536, 1000, "float32"), "rows", 127),
    (over_rows("softmax-backward", 65536, 1000, "float16"), "warp_per_row", 104),
    (over_rows("softmax-forward", 4096, 32000, "float32"), "block_per_row", 267),
    (over_rows("loss", 65536, 1000, "float32"), "warp_per_row", 66),
    (over_rows("loss", 4096, 32000, "float32"), "block_per_row", 124),
    (over_rows("gradient", 65536, 1000, "float32"), "warp_per_row", 147),
    (DropoutProblem(packed(LARGE), packed((4,), "int32"), packed(LARGE), 0.5), "contiguous", 99),
    (lrn("forward"), "channel_walk", 107),
    (lrn("backward"), "channel_walk", 164),
)


@pytest.mark.parametrize(
    ("rows", "length", "fastest", "microseconds"),
    [
        (65536, 1024, "block_per_group", {"block_per_group": 141, "whole": 148}),
        (16384, 4096, "whole", {"block_per_group": 181, "whole": 149}),
    ],
)
def test_a_block_for_each_row_of_float32_without_a_mean_is_slower_where_rows_are_long(
    rows: int, length: int, fastest: str, microseconds: dict[str, float]
) -> None:
    problem = rms_norm(rows, length, "float32")
    assert next(name for name in ranked(problem) if name in microseconds) == fastest
    for name, measured in microseconds.items():
        assert offers(problem)[name].seconds * 1e6 == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(("problem", "fastest", "microseconds"), MEASURED, ids=lambda value: type(value).__name__)
def test_large_tensors_are_estimated_as_they_were_measured(problem: Problem, fastest: str, microseconds: float) -> None:
    assert ranked(problem)[0] == fastest
    assert offers(problem)[fastest].seconds * 1e6 == pytest.approx(microseconds, rel=0.25)


@pytest.mark.parametrize(
    ("problem", "microseconds"),
    [
        (layer_norm("backward", 65536, 1024, "float32"), 349),
        (batch_norm("forward", LARGE, "float32", "NCHW"), 174),
        (batch_norm("backward", LARGE, "float16", "NCHW"), 166),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parts_are_estimated_as_they_were_measured_where_others_come_first(
    problem: Problem, microseconds: float
) -> None:
    assert offers(problem)["parts"].seconds * 1e6 == pytest.approx(microseconds, rel=0.25)


@pytest.mark.parametrize(("rows", "length"), [(65536, 1024), (16384, 4096), (256, 1024)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gradients_of_rows_are_found_in_one_pass(rows: int, length: int, dtype: str) -> None:
    assert ranked(layer_norm("backward", rows, length, dtype))[0] == "rows"


@pytest.mark.parametrize(
    ("problem", "fastest"),
    [
        (batch_norm("forward", SMALL, "float32", "NHWC"), "resident"),
        (batch_norm("forward", SMALL, "float16", "NCHW"), "resident"),
        (batch_norm("backward", SMALL, "float16", "NCHW"), "resident"),
        (batch_norm("forward", (64, 512, 7, 7), "float16", "NCHW"), "resident"),
        (batch_norm("backward", (128, 2048, 7, 7), "float32", "NCHW"), "resident"),
        (group_norm("forward", SMALL, "float32", "NHWC"), "parts"),
        (group_norm("forward", (2, 64, 5, 5), "float32", "NHWC"), "whole"),
        (group_norm("backward", (2, 64, 2, 2), "float32", "NCHW"), "whole"),
        (over_rows("softmax-forward", 65536, 20, "float32"), "thread_per_row"),
        (
            SoftmaxForwardProblem(
                packed((2, 40, 64, 64)), packed((2, 40, 64, 64)), SoftmaxAlgorithm.LOG, SoftmaxMode.CHANNEL
            ),
            "thread_per_row",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_launches_and_short_rows_count(problem: Problem, fastest: str) -> None:
    assert ranked(problem)[0] == fastest


def test_parts_are_a_function_of_the_problem_and_the_multiprocessors() -> None:
    problem = batch_norm("forward", LARGE, "float32", "NCHW")
    wide, same, narrow = (
        offers(problem, figures)["parts"]
        for figures in (H200, replace(H200, bytes_per_second=1e12, launch_seconds=1e-3), A100)
    )
    assert wide.prepare() == same.prepare()
    assert narrow.workspace_bytes < wide.workspace_bytes


def test_inference_of_an_empty_batch_launches_nothing() -> None:
    (offer,) = offers(batch_norm("inference", (0, 3, 4, 4), "float32", "NHWC")).values()
    assert offer.prepare() == ()
    (offer,) = offers(batch_norm("forward", (0, 3, 4, 4), "float32", "NHWC")).values()
    (call,) = offer.prepare()
    assert isinstance(call, KernelCall)


def _asking(offer: Offer) -> list[bool]:
    """Of each launch, whether it is of kernels that ask in which type their parameters are stored."""
    calls = [call for one in offer.prepare() for call in (one.otherwise if isinstance(one, WhereAligned) else (one,))]
    return [call.unit.entry.endswith("_narrow") for call in calls if isinstance(call, KernelCall)]


def test_only_launches_that_are_given_parameters_of_16_bits_ask_for_their_type() -> None:
    x = packed(LARGE, "float16")
    wide, narrow = (packed((1, 64, 1, 1), dtype) for dtype in ("float32", "float16"))
    problem = BatchNormForwardProblem(x, wide, wide, x, wide, wide, SPATIAL, 1e-5, 0.1)
    given = {
        "none": problem,
        "running": replace(
            problem,
            running_mean=narrow,
            running_variance=wide,
            new_running_mean=narrow,
            new_running_variance=wide,
        ),
        "scale": replace(problem, scale=narrow),
    }
    asking = {name: _asking(offers(one)["parts"]) for name, one in given.items()}
    assert asking == {"none": [False] * 3, "running": [False, True, False], "scale": [True] * 3}
    assert [_asking(offers(one)["whole"]) for one in given.values()] == [[False], [True], [True]]
