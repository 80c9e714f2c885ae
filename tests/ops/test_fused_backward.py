"""The fused convolution's gradients, against PyTorch's autograd in float64."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dnncore import ConvolutionDescriptor, DType, Handle, ops
from dnncore.descriptors import ActivationDescriptor, Layout
from dnncore.errors import BadParamError
from dnncore.testing import assert_close

CONV = ConvolutionDescriptor.make(padding=1, stride=2)
SHAPES = {"x": (2, 3, 7, 6), "w": (4, 3, 3, 3), "scale": (1, 4, 1, 1), "bias": (1, 4, 1, 1), "z": (2, 4, 4, 3)}
FUNCTIONS: dict[str, Any] = {
    "relu": F.relu,
    "clipped_relu": lambda v: F.hardtanh(v, 0.0, 6.0),
    "leaky_relu": lambda v: F.leaky_relu(v, 0.01),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda v: v,
}
KEPT: dict[str, Any] = {
    "elu": F.elu,
    "silu": F.silu,
    "gelu": F.gelu,
    "hard_swish": F.hardswish,
    "hard_sigmoid": lambda v: (v / 6 + 0.5).clamp(0, 1),  # PyTorch's own has the sixth of float32 in its gradient
    "relu": F.relu,
}
"""Of these what went into the activation is given to the operation."""


def _descriptor(name: str) -> ActivationDescriptor | None:
    return None if name == "identity" else ActivationDescriptor.make(name)


def _gradients(
    name: str, values: dict[str, np.ndarray], groups: int, wanted: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """(y, dy, gradients) of activation(0.5 conv(x, w) scale + bias - 2 z) for a random dy, by autograd."""
    leaves = {key: torch.tensor(value.astype(np.float64), requires_grad=True) for key, value in values.items()}
    sums = F.conv2d(leaves["x"], leaves["w"], padding=1, stride=2, groups=groups)
    result = (FUNCTIONS | KEPT)[name](0.5 * sums * leaves["scale"] + leaves["bias"] - 2.0 * leaves["z"])
    dy = np.random.default_rng(5).uniform(-1, 1, tuple(result.shape))
    found = torch.autograd.grad(result, [leaves[key] for key in wanted], torch.tensor(dy))
    return result.detach().numpy(), dy, {key: value.numpy() for key, value in zip(wanted, found, strict=True)}


@pytest.mark.parametrize("beta", [0.0, -0.5])
@pytest.mark.parametrize("scaled", ["trained", "constant", "no"])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_every_gradient_is_that_of_autograd(handle: Handle, name: str, scaled: str, beta: float) -> None:
    rng = np.random.default_rng(4)
    values = {key: rng.uniform(-1, 1, shape) for key, shape in SHAPES.items()}
    if scaled == "no":
        values["scale"] = np.ones(SHAPES["scale"])
    wanted = ("x", "w", "bias", "z", *(("scale",) if scaled == "trained" else ()))
    y, dy, expected = _gradients(name, values, 1, wanted)
    old = {key: rng.uniform(-1, 1, SHAPES[key]) for key in wanted}

    t = {key: handle.upload(value) for key, value in values.items()}
    t |= {
        "y": handle.upload(y),
        "dy": handle.upload(dy),
        "gradient": handle.tensor(dy.shape, "float64"),
        "filter_gradient": handle.tensor(SHAPES["w"], "float64"),
    }
    found = {key: handle.upload(value) for key, value in old.items()}
    ops.convolution_bias_activation_backward(
        handle, 0.5, t["x"], t["w"], CONV, _descriptor(name), t["y"], t["dy"], t["gradient"],
        scale=None if scaled == "no" else t["scale"], alpha2=-2.0, beta=beta,
        dx=found["x"], dw=found["w"], dbias=found["bias"], dz=found["z"],
        dscale=found.get("scale"), filter_gradient=t["filter_gradient"] if scaled == "trained" else None,
    )  # fmt: skip
    for key, gradient in expected.items():
        value = gradient + beta * old[key]
        assert_close(found[key].numpy(), value, np.full(value.shape, 40.0), DType.FLOAT64, 40, key)
    for tensor in (*t.values(), *found.values()):
        tensor.close()


@pytest.mark.parametrize("layout", list(Layout), ids=lambda layout: layout.value)
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32], ids=lambda dtype: dtype.value)
def test_groups_need_no_more_memory_than_dw_has(handle: Handle, dtype: DType, layout: Layout) -> None:
    rng = np.random.default_rng(6)
    shapes = SHAPES | {"x": (2, 6, 7, 6)}
    values = {key: rng.uniform(-1, 1, shape).astype(dtype.numpy) for key, shape in shapes.items()}
    y, dy, expected = _gradients("identity", values, 2, ("w", "scale"))
    with ExitStack() as stack:
        values |= {"y": y.astype(dtype.numpy), "dy": dy.astype(dtype.numpy)}
        t = {key: stack.enter_context(handle.upload(value, layout)) for key, value in values.items()}
        dw = stack.enter_context(handle.tensor(shapes["w"], dtype, layout))
        dscale = stack.enter_context(handle.tensor(shapes["scale"], dtype))
        conv = ConvolutionDescriptor.make(padding=1, stride=2, groups=2)
        ops.convolution_bias_activation_backward(
            handle, 0.5, t["x"], t["w"], conv, None, t["y"], t["dy"], t["dy"],
            scale=t["scale"], dw=dw, dscale=dscale, filter_gradient=dw,
        )  # fmt: skip
        found = {"w": dw.numpy(), "scale": dscale.numpy()}
    # 24 places for each of 27 weights; dy was rounded before they were added up, their sum after.
    for key, most in (("w", 24.0), ("scale", 24.0 * 27.0)):
        assert_close(found[key], expected[key], np.full(expected[key].shape, most), dtype, 24, key)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda dtype: dtype.value)
def test_products_of_16_bits_are_not_rounded_before_they_are_added_up(handle: Handle, dtype: DType) -> None:
    """With gradients so small that float16 would lose most of each product's digits."""
    rng = np.random.default_rng(8)
    x, w, y, scale = (rng.uniform(-1, 1, SHAPES[key]).astype(dtype.numpy) for key in ("x", "w", "z", "scale"))
    w, dy = (w * dtype.numpy.type(2.0**-9)), (y * dtype.numpy.type(2.0**-12))
    with ExitStack() as stack:
        tx, tw, ty, tdy, ts = (stack.enter_context(handle.upload(value)) for value in (x, w, y, dy, scale))
        scratch, dscale = (stack.enter_context(handle.tensor(shape, dtype)) for shape in (w.shape, scale.shape))
        ops.convolution_bias_activation_backward(
            handle, 1024.0, tx, tw, CONV, None, ty, tdy, tdy, scale=ts, dscale=dscale, filter_gradient=scratch
        )
        products = w.astype(np.float64) * scratch.numpy().astype(np.float64)
        expected = 1024.0 * products.sum(axis=(1, 2, 3)).reshape(scale.shape)
        assert_close(dscale.numpy(), expected, np.abs(expected), dtype, 1)


def test_a_scale_of_three_spatial_dimensions_is_trained_alone(handle: Handle) -> None:
    rng = np.random.default_rng(7)
    x, w, scale = (rng.uniform(-1, 1, shape) for shape in ((2, 2, 3, 4, 3), (3, 2, 2, 3, 2), (1, 3, 1, 1, 1)))
    leaf = torch.tensor(scale, requires_grad=True)
    result = F.conv3d(torch.tensor(x), torch.tensor(w)) * leaf
    dy = rng.uniform(-1, 1, tuple(result.shape))
    (expected,) = torch.autograd.grad(result, [leaf], torch.tensor(dy))
    with ExitStack() as stack:
        tx, tw, ts, ty, tdy = (
            stack.enter_context(handle.upload(v)) for v in (x, w, scale, result.detach().numpy(), dy)
        )
        scratch = stack.enter_context(handle.tensor(w.shape, "float64"))
        dscale = stack.enter_context(handle.tensor(scale.shape, "float64"))
        ops.convolution_bias_activation_backward(
            handle, 1.0, tx, tw, ConvolutionDescriptor.make(3), None, ty, tdy, tdy,
            scale=ts, dscale=dscale, filter_gradient=scratch,
        )  # fmt: skip
        assert_close(dscale.numpy(), expected.numpy(), np.full(scale.shape, 24.0), DType.FLOAT64, 24)


@pytest.mark.parametrize(
    ("without", "beta", "message"),
    [
        ("scale", 0.0, "dscale is given but scale is not"),
        ("filter_gradient", 0.0, "dscale is given but filter_gradient is not"),
        (None, 0.5, "filter_gradient is dw, which beta 0.5 keeps part of"),
    ],
)
def test_a_trained_scale_without_what_it_needs_is_refused_before_anything_is_written(
    handle: Handle, without: str | None, beta: float, message: str
) -> None:
    with ExitStack() as stack:
        t = {key: stack.enter_context(handle.upload(np.ones(shape, np.float32))) for key, shape in SHAPES.items()}
        scale = None if without == "scale" else t["scale"]
        scratch = None if without == "filter_gradient" else t["w"].view(t["w"].descriptor)
        relu = ActivationDescriptor.make("relu")
        with pytest.raises(BadParamError, match=message):
            ops.convolution_bias_activation_backward(
                handle, 1.0, t["x"], t["w"], CONV, relu, t["z"], t["z"], t["z"],
                scale=scale, beta=beta, dw=t["w"], dscale=t["bias"], dbias=t["bias"], filter_gradient=scratch,
            )  # fmt: skip
        assert (t["bias"].numpy() == 1).all()
        assert (t["z"].numpy() == 1).all()


def test_only_what_is_asked_for_is_computed_and_dy_may_be_the_scratch(handle: Handle) -> None:
    x, w, y = (np.ones(SHAPES[key], np.float32) for key in ("x", "w", "z"))
    relu = ActivationDescriptor.make("relu")
    with (
        handle.upload(x) as tx,
        handle.upload(w) as tw,
        handle.upload(y) as ty,
        handle.upload(3 * y) as tdy,
        handle.tensor((1, 4, 1, 1)) as dbias,
    ):
        ops.convolution_bias_activation_backward(handle, 1.0, tx, tw, CONV, relu, ty, tdy, tdy, dbias=dbias)
        assert (dbias.numpy() == 3 * 2 * 4 * 3).all()


@pytest.mark.parametrize("name", list(KEPT))
def test_with_what_went_into_the_activation_any_will_do(handle: Handle, name: str) -> None:
    rng = np.random.default_rng(9)
    values = {key: rng.uniform(-2, 2, shape) for key, shape in SHAPES.items()}
    wanted = ("x", "w", "bias", "z", "scale")
    _, dy, expected = _gradients(name, values, 1, wanted)
    with ExitStack() as stack:
        t = {key: stack.enter_context(handle.upload(value)) for key, value in values.items()}
        activated, y, gradient = (stack.enter_context(handle.tensor(dy.shape, "float64")) for _ in range(3))
        scratch = stack.enter_context(handle.tensor(SHAPES["w"], "float64"))
        found = {key: stack.enter_context(handle.tensor(SHAPES[key], "float64")) for key in wanted}
        ops.convolution_bias_activation_forward(
            handle, 0.5, t["x"], t["w"], CONV, t["bias"], None, activated, scale=t["scale"], z=t["z"], alpha2=-2.0
        )
        ops.activation_forward(handle, ActivationDescriptor.make(name), 1.0, activated, 0.0, y)
        ops.convolution_bias_activation_backward(
            handle, 0.5, t["x"], t["w"], CONV, ActivationDescriptor.make(name), y, stack.enter_context(handle.upload(dy)),
            gradient, activated=activated, scale=t["scale"], alpha2=-2.0, dx=found["x"], dw=found["w"],
            dbias=found["bias"], dz=found["z"], dscale=found["scale"], filter_gradient=scratch,
        )  # fmt: skip
        for key, value in expected.items():
            assert_close(found[key].numpy(), value, np.full(value.shape, 400.0), DType.FLOAT64, 40, key)


@pytest.mark.parametrize(
    "activation", [ActivationDescriptor.make("gelu"), ActivationDescriptor.make("clipped_relu", 0.1)]
)
def test_a_slope_that_the_result_does_not_tell_is_refused(handle: Handle, activation: ActivationDescriptor) -> None:
    """In 16 bits 0.1 is rounded down, so that y lies below the ceiling everywhere."""
    x, w, y = (handle.tensor(SHAPES[key], DType.FLOAT16) for key in ("x", "w", "z"))
    with x, w, y, pytest.raises(BadParamError, match=f"slope of {activation.mode.value} cannot be told from y"):
        ops.convolution_bias_activation_backward(handle, 1.0, x, w, CONV, activation, y, y, y)
