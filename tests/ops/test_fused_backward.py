"""The fused convolution's gradients, against PyTorch's autograd in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dnncore import ConvolutionDescriptor, DType, Handle, ops
from dnncore.descriptors import ActivationDescriptor
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


def _descriptor(name: str) -> ActivationDescriptor | None:
    return None if name == "identity" else ActivationDescriptor.make(name)


@pytest.mark.parametrize("beta", [0.0, -0.5])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_every_gradient_is_that_of_autograd(handle: Handle, name: str, scaled: bool, beta: float) -> None:
    rng = np.random.default_rng(4)
    values = {key: rng.uniform(-1, 1, shape) for key, shape in SHAPES.items()}
    if not scaled:
        values["scale"] = np.ones(SHAPES["scale"])
    leaves = {key: torch.tensor(value, requires_grad=True) for key, value in values.items()}
    sums = F.conv2d(leaves["x"], leaves["w"], padding=1, stride=2)
    result = FUNCTIONS[name](0.5 * sums * leaves["scale"] + leaves["bias"] - 2.0 * leaves["z"])
    dy = rng.uniform(-1, 1, tuple(result.shape))
    wanted = ("x", "w", "bias", "z")
    expected = torch.autograd.grad(result, [leaves[key] for key in wanted], torch.tensor(dy))
    old = {key: rng.uniform(-1, 1, SHAPES[key]) for key in wanted}

    t = {key: handle.upload(value) for key, value in values.items()}
    t |= {
        "y": handle.upload(result.detach().numpy()),
        "dy": handle.upload(dy),
        "gradient": handle.tensor(dy.shape, "float64"),
    }
    found = {key: handle.upload(value) for key, value in old.items()}
    ops.convolution_bias_activation_backward(
        handle, 0.5, t["x"], t["w"], CONV, _descriptor(name), t["y"], t["dy"], t["gradient"],
        scale=t["scale"] if scaled else None, alpha2=-2.0, beta=beta,
        dx=found["x"], dw=found["w"], dbias=found["bias"], dz=found["z"],
    )  # fmt: skip
    for key, gradient in zip(wanted, expected, strict=True):
        value = gradient.numpy() + beta * old[key]
        assert_close(found[key].numpy(), value, np.full(value.shape, 40.0), DType.FLOAT64, 40, key)
    for tensor in (*t.values(), *found.values()):
        tensor.close()


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


def test_a_slope_that_the_result_does_not_tell_is_refused(handle: Handle) -> None:
    x, w, y = (handle.tensor(SHAPES[key]) for key in ("x", "w", "z"))
    with x, w, y, pytest.raises(BadParamError, match="slope of gelu cannot be told from y"):
        ops.convolution_bias_activation_backward(handle, 1.0, x, w, CONV, ActivationDescriptor.make("gelu"), y, y, y)
