"""What a choice may take, and which plans are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnncore import Handle, Preference, TensorDescriptor
from dnncore.descriptors import BinaryOperator
from dnncore.errors import BadParamError
from dnncore.problems import BinaryProblem


@pytest.mark.parametrize("limit", [1e6, "1", 1.5, np.float32(3)])
def test_a_workspace_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(BadParamError, match=r"workspace_limit_bytes .* must be an integer"):
        Preference(limit)


def test_a_workspace_limit_may_be_numpys_and_not_negative() -> None:
    limit = Preference(np.int64(2**40)).workspace_limit_bytes  # type: ignore[arg-type]
    assert (type(limit), limit) == (int, 2**40)
    with pytest.raises(BadParamError, match="must not be negative"):
        Preference(-1)


def test_only_the_plans_last_used_are_kept(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnncore.planner.MOST_PLANS", 2)
    x = TensorDescriptor.packed((2,))
    with Handle(handle.info.name) as own:

        def plan(alpha: float) -> object:
            return own.plan(BinaryProblem(x, x, x, BinaryOperator.ADD, alpha))

        first, second = plan(1.0), plan(2.0)
        assert plan(1.0) is first
        plan(3.0)
        assert plan(1.0) is first
        assert plan(2.0) is not second
        assert len(own._planner.plans) == 2
