"""Normalisations beyond their cases: large means, running statistics, determinism, aliasing, empty batches."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from dnncore import BatchNormMode, DType, Handle, LRNDescriptor, TensorDescriptor, ops
from dnncore.plan import Preference, rank
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
    Problem,
)
from dnncore.testing import assert_close
from tests.cases import CASES, Case
from tests.ops.harness import GUARD, check
from tests.ops.oracle import make_inputs

SPATIAL = BatchNormMode.SPATIAL
FAMILIES = ("lrn-", "batch-norm-", "layer-norm-", "rms-norm-", "group-norm-")
NORMALIZATIONS = [case for case in CASES if case.name.startswith(FAMILIES)]
IN_PACKS = [
    case
    for case in NORMALIZATIONS
    if case.name.endswith(
        (
            "spatial-images",
            "spatial-fp16-nhwc",
            "spatial-all-fp16",
            "spatial-all-fp16-nhwc",
            "spatial-parts-of-rows-all-fp16",
            "spatial-parts-of-rows",
            "-parts-of-columns",
            "-long-rows",
            "-whole-packs",
            "-whole-packs-nhwc-fp16",
            "-whole-packs-nhwc-all-fp16",
            "-kept-by-a-warp-fp16",
            "-kept-by-a-warp-all-bf16",
        )
    )
]


def _able(handle: Handle, problem: Problem) -> list[str]:
    found = rank(problem, handle.device, Preference.PREFER_FASTEST)
    return [algorithm.name for algorithm in found if algorithm.status is None]


@pytest.mark.parametrize("case", IN_PACKS, ids=lambda case: case.name)
def test_tensors_that_start_at_an_odd_element_are_as_good(handle: Handle, case: Case) -> None:
    for name in _able(handle, case.problem):
        check(handle, case, name, guard=GUARD + 1)


@pytest.mark.parametrize("case", [c for c in NORMALIZATIONS if "-kept-" in c.name], ids=lambda case: case.name)
def test_rows_that_are_many_are_kept_by_fewer_threads(
    handle: Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dnncore.cuda.normalization.frame._MANY", 0.0)
    with Handle(handle.info.name) as own:  # the other one has plans already, and would keep these
        for name in _able(own, case.problem):
            check(own, case, name)


NARROW = [
    case
    for case in NORMALIZATIONS
    if not case.name.startswith("lrn-") and ("all-fp16" in case.name or "all-bf16" in case.name)
]


def _widened(problem: Problem) -> Problem:
    """The same problem with parameters and statistics in the compute type of x."""
    wide = {
        name: replace(tensor, dtype=tensor.dtype.compute)
        for name, tensor in zip(
            (*problem.input_names, *problem.output_names), (*problem.inputs, *problem.outputs), strict=True
        )
        if name not in ("x", "z", "dy", "y", "dx", "dz")
    }
    return replace(problem, **wide)  # type: ignore[type-var]


@pytest.mark.parametrize("case", NARROW, ids=lambda case: case.name)
def test_parameters_of_16_bits_give_the_bits_that_widened_ones_give(handle: Handle, case: Case) -> None:
    narrow, wide = case.problem, _widened(case.problem)
    values = make_inputs(narrow, np.random.default_rng(3))
    for name in _able(handle, narrow):
        results: list[list[np.ndarray]] = []
        for problem in (narrow, wide):
            inputs, outputs = ([handle.tensor(d) for d in those] for those in (problem.inputs, problem.outputs))
            for tensor, value in zip(inputs, values, strict=True):
                tensor.assign(value.astype(tensor.dtype.numpy))
            handle.run(handle.plan(problem, algorithm=name), case.alpha, inputs, 0.0, outputs)
            results.append([output.numpy() for output in outputs])
        for which, found, expected in zip(narrow.output_names, *results, strict=True):
            if handle.info.name == "cpu" and found.dtype != expected.dtype:
                continue  # the reference rounds its float64 sums to 16 bits once, and here they have been float32 in between
            assert found.tobytes() == expected.astype(found.dtype).tobytes(), f"{which} by {name}"


@pytest.mark.parametrize("length", [1024, 1023], ids=["whole-packs", "odd"])
def test_a_row_whose_mean_is_ten_thousand_deviations_keeps_its_variance(handle: Handle, length: int) -> None:
    mean = 1e4
    x = (mean + np.random.default_rng(1).standard_normal((3, length))).astype(np.float32)
    exact = x.astype(np.float64)
    middle, variance = exact.mean(1, keepdims=True), exact.var(1, keepdims=True)
    t, s = TensorDescriptor.packed(x.shape), TensorDescriptor.packed((3, 1))
    problem = LayerNormForwardProblem(t, t, s, 1, 0.0, s)
    with (
        handle.upload(x) as source,
        handle.tensor(x.shape) as y,
        handle.tensor((3, 1)) as m,
        handle.tensor((3, 1)) as i,
    ):
        for name in _able(handle, problem):
            handle.run(handle.plan(problem, algorithm=name), 1.0, (source,), 0.0, (y, m, i))
            magnitude = (1 + mean / variance) / np.sqrt(variance)  # as of images, below
            assert_close(i.numpy(), 1 / np.sqrt(variance), magnitude, DType.FLOAT32, 1, "inv_std")
            assert_close(m.numpy(), middle, middle, DType.FLOAT32, 1, "mean")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value)
def test_a_mean_of_ten_thousand_deviations_leaves_the_variance_right(handle: Handle, dtype: DType, layout: str) -> None:
    """E[x^2] - E[x]^2 would be off by 1e8 units in the last place of 1: by all of the variance and more in float32."""
    channels, mean = 4, 1e4
    x = (mean + np.random.default_rng(0).standard_normal((4, channels, 72, 61))).astype(dtype.numpy)
    exact = x.astype(np.float64)
    middle = exact.astype(np.longdouble).mean((0, 2, 3), keepdims=True).astype(np.float64)
    variance = np.square(exact - middle).mean((0, 2, 3), keepdims=True)
    t = TensorDescriptor.packed(x.shape, dtype, layout)
    p = TensorDescriptor.packed((1, channels, 1, 1), dtype)
    problem = BatchNormForwardProblem(t, p, p, t, p, p, SPATIAL, 0.0)
    names = _able(handle, problem)
    assert handle.info.name == "cpu" or {"parts", "whole"} <= set(names)
    for name in names:
        scale, bias = handle.upload(np.ones(p.shape, dtype.numpy)), handle.upload(np.zeros(p.shape, dtype.numpy))
        source, y, m, i = handle.upload(x, layout), handle.tensor(t), handle.tensor(p), handle.tensor(p)
        handle.run(handle.plan(problem, algorithm=name), 1.0, (source, scale, bias), 0.0, (y, m, i))
        # A mean is good to a few of its last bits, however many elements went into it, and so are distances from it; a variance
        # to as much as one distance is. All that is left of a length is in the constant.
        magnitude = 1 / np.sqrt(variance) * (1 + mean / variance)
        assert_close(i.numpy(), 1 / np.sqrt(variance), magnitude, dtype, 1, "inv_std")
        assert_close(m.numpy(), middle, np.full(p.shape, mean), dtype, 1, "mean")
        expected = (exact - middle) / np.sqrt(variance)
        assert_close(y.numpy(), expected, np.full(x.shape, 2 * mean) / np.sqrt(variance), dtype, 1, "y")
        for tensor in (scale, bias, source, y, m, i):
            tensor.close()


def test_running_statistics_follow_torch_over_several_steps(handle: Handle) -> None:
    rng = np.random.default_rng(1)
    module = torch.nn.BatchNorm2d(6, eps=1e-3, momentum=0.2).double().train()
    shape = (1, 6, 1, 1)
    parameters = {name: rng.uniform(0.5, 2, shape).astype(np.float32) for name in ("weight", "bias")}
    with torch.no_grad():
        for name, value in parameters.items():
            getattr(module, name).copy_(torch.tensor(value.ravel()))
    scale, bias = (handle.upload(value) for value in parameters.values())
    mean, variance = handle.upload(np.zeros(shape, np.float32)), handle.upload(np.ones(shape, np.float32))
    saved_mean, saved_inv_std = handle.tensor(shape), handle.tensor(shape)
    steps = 5
    for step in range(steps):
        x = (rng.standard_normal((4, 6, 5, 3)) * (1 + step) + step).astype(np.float32)
        expected = module(torch.tensor(x.astype(np.float64))).detach().numpy()
        with handle.upload(x) as source, handle.tensor(x.shape) as y:
            ops.batch_norm_forward(
                handle,
                SPATIAL,
                1.0,
                source,
                0.0,
                y,
                scale,
                bias,
                saved_mean,
                saved_inv_std,
                running_mean=mean,
                running_variance=variance,
                momentum=0.2,
                epsilon=1e-3,
            )
            # In units of the deviation, x is at most 8 away from 0 here, and a scale is at most 2.
            assert_close(y.numpy(), expected, np.full(x.shape, 32.0), DType.FLOAT32, 60, f"y of step {step}")
    for found, buffer in ((mean, module.running_mean), (variance, module.running_var)):
        value = buffer.numpy().reshape(shape)
        assert_close(found.numpy(), value, np.abs(value) + steps, DType.FLOAT32, 60 * steps)
    with handle.upload(x) as source, handle.tensor(x.shape) as y:
        ops.batch_norm_inference(handle, SPATIAL, 1.0, source, 0.0, y, scale, bias, mean, variance, epsilon=1e-3)
        expected = module.eval()(torch.tensor(x.astype(np.float64))).detach().numpy()
        assert_close(y.numpy(), expected, np.full(x.shape, 64.0), DType.FLOAT32, 60 * steps, "inference")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_same_inputs_give_the_same_bits(handle: Handle, layout: str) -> None:
    rng = np.random.default_rng(2)
    x, dy = (rng.standard_normal((3, 5, 71, 83)).astype(np.float32) for _ in range(2))
    shape = (1, 5, 1, 1)
    t, p = TensorDescriptor.packed(x.shape, layout=layout), TensorDescriptor.packed(shape)
    problem = BatchNormBackwardProblem(t, t, p, p, p, t, p, p, SPATIAL)
    sources = [handle.upload(value, layout) for value in (x, dy)]
    parameters = [handle.upload(rng.uniform(0.5, 2, shape).astype(np.float32)) for _ in range(3)]
    for name in _able(handle, problem):
        plan, seen = handle.plan(problem, algorithm=name), []
        assert plan.deterministic
        for _ in range(2):
            outputs = [handle.tensor(d) for d in problem.outputs]
            handle.run(plan, 1.0, (*sources, *parameters), 0.0, outputs)
            seen.append([output.numpy() for output in outputs])
        for first, second in zip(*seen, strict=True):
            assert np.array_equal(first.view(np.uint32), second.view(np.uint32))


def test_outputs_may_be_inputs(handle: Handle) -> None:
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal((2, 3, 67, 130)).astype(np.float32) for _ in range(2))
    shape = (1, 3, 1, 1)
    scale, bias = (handle.upload(rng.uniform(0.5, 2, shape).astype(np.float32)) for _ in range(2))
    m, i, dscale, dbias = (handle.tensor(shape) for _ in range(4))
    apart, source, gradient = handle.tensor(x.shape), handle.upload(x), handle.upload(dy)

    def backward(dx: object, parameter_beta: float) -> None:
        arguments = (1.0, 0.0, 1.0, parameter_beta, source, gradient, dx, scale, dscale, dbias, m, i)
        ops.batch_norm_backward(handle, SPATIAL, *arguments)  # type: ignore[arg-type]

    ops.batch_norm_forward(handle, SPATIAL, 1.0, source, 0.0, apart, scale, bias, m, i)
    y = apart.numpy()
    backward(apart, 0.0)
    expected, once = apart.numpy(), dscale.numpy()
    backward(gradient, 1.0)
    assert np.array_equal(gradient.numpy(), expected), "dx in dy's place"
    assert np.array_equal(dscale.numpy(), 2 * once), "dscale in its old place"
    ops.batch_norm_forward(handle, SPATIAL, 1.0, source, 0.0, source, scale, bias, m, i)
    assert np.array_equal(source.numpy(), y), "y in x's place"
    with handle.upload(x) as again:
        variance = handle.upload(1 / i.numpy() ** 2)
        ops.batch_norm_inference(handle, SPATIAL, 1.0, again, 0.0, apart, scale, bias, m, variance)
        ops.batch_norm_inference(handle, SPATIAL, 1.0, again, 0.0, again, scale, bias, m, variance)
        assert np.array_equal(again.numpy(), apart.numpy()), "y in x's place, inference"


def test_layer_norm_backward_may_write_over_dy(handle: Handle) -> None:
    rng = np.random.default_rng(4)
    x, dy = (rng.standard_normal((40, 24)).astype(np.float32) for _ in range(2))
    scale = handle.upload(rng.uniform(0.5, 2, (1, 24)).astype(np.float32))
    m, i, source, gradient = handle.tensor((40, 1)), handle.tensor((40, 1)), handle.upload(x), handle.upload(dy)
    dx = handle.tensor(x.shape)
    ops.layer_norm_forward(handle, 1, 1.0, source, 0.0, dx, scale, scale, m, i)
    seen = []
    for target in (dx, gradient):
        dscale, dbias = handle.tensor((1, 24)), handle.tensor((1, 24))
        ops.layer_norm_backward(handle, 1, 1.0, 0.0, 1.0, 0.0, source, gradient, target, scale, dscale, dbias, m, i)
        seen.append((target.numpy(), dscale.numpy(), dbias.numpy()))
    for apart, in_place in zip(*seen, strict=True):
        assert np.array_equal(apart, in_place)


def test_the_three_gradients_of_group_norm_are_those_of_its_function(handle: Handle) -> None:
    """A directional derivative along random steps in x, scale and bias."""
    rng = np.random.default_rng(5)
    shape, parameters, groups, step = (2, 6, 4, 5), (1, 6, 1, 1), 3, 1e-4
    values = [rng.standard_normal(s) for s in (shape, parameters, parameters)]
    along = [rng.standard_normal(s) for s in (shape, parameters, parameters)]
    dy = rng.standard_normal(shape)
    y, m, i = (handle.tensor(s, "float64") for s in (shape, (2, groups, 1, 1), (2, groups, 1, 1)))

    def forward(by: float) -> np.ndarray:
        x, scale, bias = (handle.upload(v + by * a) for v, a in zip(values, along, strict=True))
        ops.group_norm_forward(handle, groups, 1.0, x, 0.0, y, scale, bias, m, i)
        return y.numpy()

    difference = float(((forward(step) - forward(-step)) / (2 * step) * dy).sum())
    forward(0.0)
    x, scale, _ = (handle.upload(v) for v in values)
    gradient, dx = handle.upload(dy), handle.tensor(shape, "float64")
    dscale, dbias = handle.tensor(parameters, "float64"), handle.tensor(parameters, "float64")
    ops.group_norm_backward(handle, groups, 1.0, 0.0, 1.0, 0.0, x, gradient, dx, scale, dscale, dbias, m, i)
    found = sum(float((g.numpy() * a).sum()) for g, a in zip((dx, dscale, dbias), along, strict=True))
    # A central difference is off by step^2 / 6 times the third derivative, which is of the order of the sum's terms.
    assert abs(found - difference) <= 100 * step**2 * float(np.abs(dy).sum())


def test_rms_norm_has_no_mean(handle: Handle) -> None:
    x = np.full((3, 16), 5.0, np.float32)
    with handle.upload(x) as source, handle.tensor(x.shape) as y, handle.tensor((3, 1)) as i:
        ops.rms_norm_forward(handle, 1, 1.0, source, 0.0, y, None, i, epsilon=0.0)
        assert_close(y.numpy(), np.ones(x.shape), np.ones(x.shape), DType.FLOAT32, 16)
        assert_close(i.numpy(), np.full((3, 1), 0.2), np.full((3, 1), 0.2), DType.FLOAT32, 16)
        ops.rms_norm_backward(handle, 1, 1.0, 0.0, 1.0, 0.0, source, source, y, None, None, i)
        # y does not change with the length of x, so that its gradient along x is 0.
        assert_close(y.numpy(), np.zeros(x.shape), np.full(x.shape, 2.0), DType.FLOAT32, 16)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_special_value_spoils_its_group_and_no_other(handle: Handle, value: float) -> None:
    x = np.random.default_rng(6).standard_normal((2, 3, 4, 5)).astype(np.float32)
    x[1, 1, 2, 3] = value
    shape = (1, 3, 1, 1)
    scale, bias = handle.upload(np.ones(shape, np.float32)), handle.upload(np.zeros(shape, np.float32))
    with handle.upload(x) as source, handle.tensor(x.shape) as y:
        m, i = handle.tensor(shape), handle.tensor(shape)
        ops.batch_norm_forward(handle, SPATIAL, 1.0, source, 0.0, y, scale, bias, m, i)
        expected = np.zeros(x.shape, bool)
        expected[:, 1] = True
        assert np.array_equal(np.isnan(y.numpy()), expected)
        ops.lrn_forward(handle, LRNDescriptor.make(n=3), 1.0, source, 0.0, y)
        wrong = np.isnan(y.numpy()) | (y.numpy() == 0)  # a finite value over an infinite sum is 0
        expected = np.zeros(x.shape, bool)
        expected[1, :, 2, 3] = True
        assert np.array_equal(wrong, expected)


EMPTY = ((0, 3), (0, 3, 4), (2, 3, 0, 4), (0, 4, 2, 8))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_an_empty_batch_leaves_running_statistics_and_has_gradients_of_0(
    handle: Handle, shape: tuple[int, ...], layout: str
) -> None:
    """As in PyTorch. Old and new running statistics are apart here, and the momentum is all of the batch's."""
    t, p = (
        TensorDescriptor.packed(shape, layout=layout),
        TensorDescriptor.packed((1, shape[1], *(1,) * (len(shape) - 2))),
    )
    ones = np.ones(p.shape, np.float32)
    x, y = handle.tensor(t), handle.tensor(t)
    scale, bias, old_mean, old_variance = (handle.upload(value * ones) for value in (2, 3, 5, 7))
    forward = BatchNormForwardProblem(t, p, p, t, p, p, SPATIAL, 1e-5, 1.0, p, p, p, p)
    for name in _able(handle, forward):
        mean, inv_std, new_mean, new_variance = (handle.upload(0 * ones) for _ in range(4))
        outputs = (y, mean, inv_std, new_mean, new_variance)
        handle.run(handle.plan(forward, algorithm=name), 1.0, (x, scale, bias, old_mean, old_variance), 0.0, outputs)
        assert np.array_equal(mean.numpy(), 0 * ones)
        assert np.isnan(inv_std.numpy()).all()
        assert np.array_equal(new_mean.numpy(), 5 * ones)
        assert np.array_equal(new_variance.numpy(), 7 * ones)
    backward = BatchNormBackwardProblem(t, t, p, p, p, t, p, p, SPATIAL, 1.0, -2.0, p, p)
    for name in _able(handle, backward):
        dscale, dbias = handle.upload(ones), handle.upload(ones)
        inputs = (x, y, scale, mean, inv_std, old_mean, old_variance)
        handle.run(handle.plan(backward, algorithm=name), 1.0, inputs, 0.0, (handle.tensor(t), dscale, dbias))
        assert np.array_equal(dscale.numpy(), -10 * ones)
        assert np.array_equal(dbias.numpy(), -14 * ones)


@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_the_operations_take_an_empty_batch(handle: Handle, shape: tuple[int, ...]) -> None:
    ones = np.ones((1, shape[1], *(1,) * (len(shape) - 2)), np.float32)
    x, y, dx = (handle.tensor(shape) for _ in range(3))
    scale, bias, mean, inv_std, dscale, dbias = (handle.upload(ones) for _ in range(6))
    means, variances = handle.upload(5 * ones), handle.upload(7 * ones)
    arguments = (handle, SPATIAL, 1.0, x, 0.0, y, scale, bias)
    ops.batch_norm_forward(*arguments, mean, inv_std, running_mean=means, running_variance=variances)
    ops.batch_norm_backward(handle, SPATIAL, 1.0, 0.0, 1.0, 0.0, x, y, dx, scale, dscale, dbias, mean, inv_std)
    ops.batch_norm_inference(*arguments, means, variances)
    for found, value in zip((means, variances, dscale, dbias), (5, 7, 0, 0), strict=True):
        assert np.array_equal(found.numpy(), value * ones)


def test_layer_norm_of_no_rows_has_gradients_of_0(handle: Handle) -> None:
    rows, p, s = TensorDescriptor.packed((0, 8)), TensorDescriptor.packed((1, 8)), TensorDescriptor.packed((0, 1))
    problem = LayerNormBackwardProblem(rows, rows, s, rows, 1, s, p, p, p)
    x, dy, dx, mean, inv_std = (handle.tensor(d) for d in (rows, rows, rows, s, s))
    scale, dscale, dbias = (handle.upload(np.ones(p.shape, np.float32)) for _ in range(3))
    for name in _able(handle, problem):
        handle.run(handle.plan(problem, algorithm=name), 1.0, (x, dy, scale, mean, inv_std), 0.0, (dx, dscale, dbias))
        assert not dscale.numpy().any()
        assert not dbias.numpy().any()


def test_an_even_window_looks_further_ahead_than_behind(handle: Handle) -> None:
    """cuDNN: (n - 1) / 2 before, the rest behind."""
    x = np.zeros((1, 6, 1), np.float32)
    x[0, 3] = 1
    with handle.upload(x + 1) as source, handle.tensor(x.shape) as y:
        ops.lrn_forward(handle, LRNDescriptor.make(n=4, alpha=4.0, beta=1.0, k=1.0), 1.0, source, 0.0, y)
        squares = [1, 1, 1, 4, 1, 1]
        sums = [sum(squares[max(c - 1, 0) : c + 3]) for c in range(6)]
        expected = np.array([(2 if c == 3 else 1) / (1 + s) for c, s in enumerate(sums)]).reshape(x.shape)
        assert_close(y.numpy(), expected, expected * 2, DType.FLOAT32, 4)


def test_names_of_cases_are_unique() -> None:
    names = [case.name for case in NORMALIZATIONS]
    assert [name for name, group in itertools.groupby(sorted(names)) if len(list(group)) > 1] == []
