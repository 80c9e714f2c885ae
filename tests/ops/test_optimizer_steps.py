"""What an optimizer's step refuses, and that it leaves gradients alone."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import Handle, TensorDescriptor, ops
from dnncore.errors import BadParamError
from dnncore.problems import AdamProblem, MomentumProblem

W = TensorDescriptor.packed((3, 4))
GAPS = TensorDescriptor(W.dtype, (3, 4), (5, 1))


@pytest.mark.parametrize(
    ("weights", "settings", "reason"),
    [
        ((W, TensorDescriptor.packed((2,), "float16")), (0.9,), "weight_1 is float16, weight_0 float32"),
        ((TensorDescriptor.packed((2,), "int32"),), (0.9,), "weight_0 is int32"),
        ((W, GAPS), (0.9,), "weight_1 .* has gaps"),
        ((W,), (-0.5,), "momentum is -0.5; a finite number of 0 or more"),
        ((W,), (0.9, False, float("nan")), "decay is nan"),
        ((W,), (0.0, True), "nesterov is True but momentum is 0"),
    ],
)
def test_what_makes_no_step_is_refused(
    weights: tuple[TensorDescriptor, ...], settings: tuple[float, ...], reason: str
) -> None:
    with pytest.raises(BadParamError, match=reason):
        MomentumProblem(weights, *settings)  # type: ignore[arg-type]


def test_adam_refuses_what_is_no_number() -> None:
    with pytest.raises(BadParamError, match="epsilon is inf"):
        AdamProblem((W,), 0.9, 0.99, float("inf"))


def test_tensors_of_a_weight_are_described_alike_and_all_there(handle: Handle) -> None:
    with handle.tensor((3, 4)) as w, handle.tensor((4, 3)) as other, handle.tensor((3, 4)) as v:
        with pytest.raises(BadParamError, match=r"of gradients number 0 is .* they must be alike"):
            ops.momentum_step(handle, -1.0, [other], [v], 1.0, [w], momentum=0.5)
        with pytest.raises(BadParamError, match="0 velocities for 1 weights"):
            ops.momentum_step(handle, -1.0, [v], [], 1.0, [w], momentum=0.5)
        with pytest.raises(BadParamError, match="1 velocities came with momentum 0"):
            ops.momentum_step(handle, -1.0, [other], [v], 1.0, [w], momentum=0.0)


def test_gradients_are_not_changed(handle: Handle) -> None:
    g = np.arange(12, dtype=np.float32).reshape(3, 4)
    with handle.upload(g) as gradient, handle.upload(g) as w, handle.upload(g * 0) as m, handle.upload(g * 0) as s:
        ops.adam_step(handle, -1.0, [gradient], [m], [s], 1.0, [w], momentum=0.5, momentum2=0.5, epsilon=1.0, decay=0.5)
        assert np.array_equal(gradient.numpy(), g)
        assert np.allclose(m.numpy(), 0.75 * g)
        assert np.allclose(s.numpy(), 0.5 * (1.5 * g) ** 2)
