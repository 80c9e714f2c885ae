"""Convolution and max pooling in one operation: the bits of both, one after the other, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, DType, Handle, Preference, Tensor, TensorDescriptor, ops
from dnncore.choice import fastest
from dnncore.cuda import algorithms, pooling
from dnncore.cuda.convolution.batch_parts import LITTLE_OF_L2
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.pooled import LayerByLayer
from dnncore.descriptors import Layout, PoolingDescriptor
from dnncore.errors import BadParamError, NotSupportedError
from dnncore.figures import H200
from dnncore.problems import PooledConvolutionProblem
from tests.cases.pooled_convolution import CASES
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check
from tests.ops.launches import launches_of
from tests.ops.oracle import make_inputs

SMALL = {case.name.removeprefix("pooled-convolution-"): case for case in CASES}
PADDED = ConvolutionDescriptor.make(padding=1)

on_cuda = pytest.mark.skipif(not CUDA_DEVICES, reason="no CUDA device, emulated or not")


def half(*shape: int, layout: Layout = Layout.NHWC) -> TensorDescriptor:
    return TensorDescriptor.packed(shape, "float16", layout)


def placed(handle: Handle, value: np.ndarray, descriptor: TensorDescriptor) -> Tensor:
    tensor = handle.tensor(descriptor)
    tensor.assign(value)
    return tensor


def of(
    batch: int = 2, channels: int = 8, rows: int = 4, columns: int = 6, filters: int = 8
) -> PooledConvolutionProblem:
    x, y = half(batch, channels, rows, columns), half(batch, filters, rows // 2, columns // 2)
    return PooledConvolutionProblem(x, half(filters, channels, 3, 3), y, PADDED)


@pytest.mark.parametrize("name", ["vgg", "vgg-bf16", "vgg-fp32", "odd-channels", "one-window", "rows", "to-rows", "from-rows"])
def test_layer_by_layer_gives_the_bits_of_a_convolution_and_of_pooling_behind_it(handle: Handle, name: str) -> None:
    problem = SMALL[name].problem
    assert isinstance(problem, PooledConvolutionProblem)
    values = make_inputs(problem, np.random.default_rng(7))
    algorithm = "layers_fp32" if handle.info.name == "cpu" else "layer_by_layer"
    x, w, *bias = (placed(handle, v, d) for v, d in zip(values, problem.inputs, strict=True))
    between, apart, together = (handle.tensor(d) for d in (problem.fused.y, problem.y, problem.y))
    conv, activation = problem.convolution, problem.activation
    own = bias[0] if bias else None
    ops.convolution_bias_activation_forward(handle, 1.0, x, w, conv, own, activation, between)
    ops.pooling_forward(handle, 1.0, between, PoolingDescriptor.make("max", 2), 0.0, apart)
    ops.pooled_convolution(handle, 1.0, x, w, conv, 0.0, together, bias=own, activation=activation, algorithm=algorithm)
    np.testing.assert_array_equal(together.numpy(), apart.numpy())


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_nan_is_the_maximum_of_its_window_and_infinities_count(handle: Handle, layout: str) -> None:
    x = np.zeros((1, 1, 4, 6), np.float16)
    x[0, 0, 0, 1], x[0, 0, 2, 3], x[0, 0, 3, 4:] = np.nan, np.inf, -np.inf
    w = np.ones((1, 1, 1, 1), np.float16)
    of_x, of_y = (TensorDescriptor.packed(shape, "float16", layout) for shape in (x.shape, (1, 1, 2, 3)))
    tx, tw, y = placed(handle, x, of_x), handle.upload(w), handle.tensor(of_y)
    ops.pooled_convolution(handle, 1.0, tx, tw, ConvolutionDescriptor.make(), 0.0, y)
    np.testing.assert_array_equal(y.numpy()[0, 0], [[np.nan, 0, 0], [0, np.inf, 0]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": half(2, 8, 5, 6)}, r"give 5 x 6 places; even extents"),
        ({"x": half(2, 8, 4, 7)}, r"give 4 x 7 places; even extents"),
        ({"y": half(2, 8, 4, 6)}, r"y has shape \(2, 8, 4, 6\) but x .* give \(2, 8, 2, 3\)"),
        ({"y": TensorDescriptor.packed((2, 8, 2, 3), "bfloat16")}, "bfloat16"),
        ({"w": TensorDescriptor.packed((8, 8, 3, 3), "float32")}, "float32"),
        ({"x": TensorDescriptor.packed((2, 8, 4, 6), "float64")}, "float16, bfloat16 or float32"),
        ({"x": half(2, 8, 4, 6, 6)}, r"\[N, C, H, W\] is needed"),
        ({"w": half(8, 4, 3, 3)}, "channels"),
        ({"bias": TensorDescriptor.packed((1, 4, 1, 1))}, "bias has shape"),
        ({"bias": TensorDescriptor.packed((1, 8, 1, 1), "float64")}, "bias is float64"),
        ({"y": TensorDescriptor(DType.FLOAT16, (2, 8, 2, 3), (0, 1, 24, 8))}, "may share memory"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "-".join(value),
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadParamError, match=message):
        replace(of(), **changes)


def test_what_lies_between_has_no_gaps_and_is_channels_last_where_an_operand_is() -> None:
    layouts = {"vgg": Layout.NHWC, "to-rows": Layout.NHWC, "from-rows": Layout.NHWC, "rows": Layout.NCHW}
    for name, layout in layouts.items():
        problem = SMALL[name].problem
        assert isinstance(problem, PooledConvolutionProblem)
        fused, pooled = problem.fused, problem.pooling
        assert fused.y == pooled.x == TensorDescriptor.packed(fused.y.shape, fused.y.dtype, layout), name
        assert pooled.y == problem.y
        assert problem.macs == fused.macs > 0


def test_an_operation_without_images_writes_nothing_and_one_without_channels_the_bias(handle: Handle) -> None:
    bias = handle.upload(np.full((1, 8, 1, 1), 1.5, np.float32))
    for batch, channels in ((0, 8), (2, 0)):
        descriptors = half(batch, channels, 4, 6), half(8, channels, 3, 3), half(batch, 8, 2, 3)
        x, w, y = (handle.tensor(d) for d in descriptors)
        ops.pooled_convolution(handle, 1.0, x, w, PADDED, 0.0, y, bias=bias)
        np.testing.assert_array_equal(y.numpy(), np.full((batch, 8, 2, 3), 1.5))


def test_an_offer_is_the_sum_of_what_both_take() -> None:
    problem = of(256, 64, 224, 224, 64)
    both = fastest(FUSED, problem.fused, H200), fastest(pooling.FORWARD, problem.pooling, H200)
    offers = [found[1] for found in both if found is not None]
    offer = LayerByLayer().offer(problem, H200)
    assert offer.seconds == sum(one.seconds for one in offers)
    assert offer.workspace_bytes == problem.fused.y.nbytes + max(one.workspace_bytes for one in offers)
    assert offer.deterministic


def test_some_images_at_a_time_take_that_share_of_the_cache() -> None:
    problem = of(256, 64, 32, 32, 64)
    whole, parts = (LayerByLayer(share).offer(problem, H200) for share in (float("inf"), LITTLE_OF_L2))
    assert whole.workspace_bytes > 10 * parts.workspace_bytes
    assert parts.workspace_bytes <= H200.l2_bytes * LITTLE_OF_L2
    assert len(parts.prepare()) > len(whole.prepare())
    image = problem.fused.y.nbytes // 256
    assert LayerByLayer(1e-9).offer(problem, H200).workspace_bytes == image


@on_cuda
@pytest.mark.cuda
@pytest.mark.parametrize("name", ["vgg", "tiles-that-end-within", "odd-channels", "blend", "gaps", "to-rows"])
def test_some_images_at_a_time_give_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = LayerByLayer(1e-9, "one_by_one")
    monkeypatch.setitem(algorithms._ALGORITHMS, PooledConvolutionProblem, (one_by_one,))
    case = SMALL[name]
    assert isinstance(case.problem, PooledConvolutionProblem)
    kernels = {entry for entry, _ in launches_of(one_by_one.offer(case.problem, H200)).kernels}
    assert len(kernels) == 2
    with Handle(CUDA_DEVICES[0]) as handle:
        check(handle, case, "one_by_one")
        check(handle, case, "one_by_one", guard=GUARD + 1)


@on_cuda
@pytest.mark.cuda
def test_what_lies_between_needs_a_workspace() -> None:
    case = SMALL["odd-channels"]
    with Handle(CUDA_DEVICES[0]) as handle, pytest.raises(NotSupportedError, match="layer_by_layer"):
        handle.plan(case.problem, preference=Preference.NO_WORKSPACE)
