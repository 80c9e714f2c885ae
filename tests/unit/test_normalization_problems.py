"""Problems of normalisations, and what cannot be one: the message names what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dnncore import ActivationDescriptor, BatchNormMode, LRNDescriptor, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    GroupNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
)

SPATIAL = BatchNormMode.SPATIAL


def test_a_group_without_elements_has_no_statistics() -> None:
    none, p = TensorDescriptor.packed((0, 3, 4)), TensorDescriptor.packed((1, 3, 1))
    BatchNormInferenceProblem(none, p, p, p, p, none, SPATIAL, 1e-5)
    rows, s = TensorDescriptor.packed((3, 0)), TensorDescriptor.packed((3, 1))
    with pytest.raises(BadParamError, match="no element for a mean"):
        LayerNormForwardProblem(rows, rows, s, 1, 1e-5)
    planes, groups = TensorDescriptor.packed((2, 4, 0)), TensorDescriptor.packed((2, 2, 1))
    with pytest.raises(BadParamError, match="no element in a group"):
        GroupNormForwardProblem(planes, planes, groups, groups, 2, 1e-5)


def test_a_single_element_has_no_unbiased_variance() -> None:
    x, p = TensorDescriptor.packed((1, 3)), TensorDescriptor.packed((1, 3))
    BatchNormForwardProblem(x, p, p, x, p, p, SPATIAL, 1e-5)
    with pytest.raises(BadParamError, match="leave the running statistics out"):
        BatchNormForwardProblem(x, p, p, x, p, p, SPATIAL, 1e-5, 0.1, p, p, p, p)


def test_what_disagrees_is_named() -> None:
    x, half = TensorDescriptor.packed((2, 4, 3)), TensorDescriptor.packed((2, 4, 3), "float16")
    p, wrong = TensorDescriptor.packed((1, 4, 1)), TensorDescriptor.packed((1, 4, 3))
    other = TensorDescriptor.packed((1, 4, 1), "float16")
    with pytest.raises(BadParamError, match=r"bias is float32\[1, 4, 3\], but mode spatial of x float32\[2, 4, 3\]"):
        BatchNormForwardProblem(x, p, wrong, x, p, p, SPATIAL, 1e-5)
    with pytest.raises(
        BadParamError, match=r"scale is float16\[1, 4, 1\], but mode spatial .* needs float32\[1, 4, 1\]"
    ):
        BatchNormForwardProblem(x, other, p, x, p, p, SPATIAL, 1e-5)
    for dtype in ("bfloat16", "float64", "int8"):
        with pytest.raises(BadParamError, match=rf"bias is {dtype}\[1, 4, 1\], .* needs float32 or float16\[1, 4, 1\]"):
            BatchNormForwardProblem(half, other, TensorDescriptor.packed((1, 4, 1), dtype), half, p, p, SPATIAL, 1e-5)
    with pytest.raises(BadParamError, match=r"saved_mean is float16\[1, 4, 1\], .* needs float32\[1, 4, 1\]"):
        BatchNormForwardProblem(half, other, other, half, other, p, SPATIAL, 1e-5)
    with pytest.raises(BadParamError, match="running_mean came without running_variance"):
        BatchNormForwardProblem(x, p, p, x, p, p, SPATIAL, 1e-5, 0.1, p)
    with pytest.raises(BadParamError, match=r"momentum 1\.5"):
        BatchNormForwardProblem(x, p, p, x, p, p, SPATIAL, 1e-5, 1.5)
    with pytest.raises(BadParamError, match=r"epsilon -1\.0"):
        BatchNormForwardProblem(x, p, p, x, p, p, SPATIAL, -1.0)
    with pytest.raises(BadParamError, match=r"old_dscale is None but parameter_beta is 1.0"):
        BatchNormBackwardProblem(x, x, p, p, p, x, p, p, SPATIAL, 1.0, 1.0)
    relu = ActivationDescriptor.make("relu")
    for wrong_activation in (
        {"z": x},
        {"activation": ActivationDescriptor.make("tanh")},
        {"activation": ActivationDescriptor.make("clipped_relu")},
    ):
        with pytest.raises(BadParamError, match="activation"):
            BatchNormForwardProblem(x, p, p, x, p, p, SPATIAL, 1e-5, **wrong_activation)
    backward = BatchNormBackwardProblem(x, x, p, p, p, x, p, p, SPATIAL)
    for without in ({"y": x}, {"dz": x}, {"activation": relu}, {"y": x, "activation": relu, "bias": p, "dz": x}):
        with pytest.raises(BadParamError, match=r"no activation|no y|both given"):
            replace(backward, **without)
    with pytest.raises(BadParamError, match="z"):
        BatchNormForwardProblem(x, p, p, x, p, p, SPATIAL, 1e-5, z=half, activation=relu)
    with pytest.raises(BadParamError, match=r"3 groups do not divide the channels of x \(2, 4, 3\)"):
        GroupNormForwardProblem(x, x, p, p, 3, 1e-5)
    with pytest.raises(BadParamError, match=r"axis 3 is none of x \(2, 4, 3\)"):
        LayerNormForwardProblem(x, x, p, 3, 1e-5)
    with pytest.raises(BadParamError, match=r"saved_inv_std is float32\[1, 4, 1\], but axis 1"):
        LayerNormBackwardProblem(x, x, p, x, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 0}, "n 0 must be 1 or more"),
        ({"alpha": -1.0}, "alpha -1.0"),
        ({"beta": 0.001}, "beta 0.001"),
        ({"k": 0.0}, "k 0.0"),
        ({"mode": "across"}, "'across' is no LRNMode"),
    ],
    ids=str,
)
def test_impossible_windows_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(BadParamError, match=message):
        LRNDescriptor.make(**settings)  # type: ignore[arg-type]
