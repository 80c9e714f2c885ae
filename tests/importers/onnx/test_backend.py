"""onnx.backend.test: every case whose operators are all declared passes, or is refused for a reason that the docs state."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx.backend.test import BackendTest

from dnncore.errors import ModelImportError
from tests.importers.onnx.backend import DnncoreBackend, run
from tests.importers.onnx.cases import CASES, REFUSED, ROUNDED, feeds_of, reason_of, results_of

_PASSING = {f"{case.name}_cpu" for case in CASES if reason_of(case.name) is None}

for _name, _class in BackendTest(DnncoreBackend, __name__).test_cases.items():
    for _test in [name for name in vars(_class) if name.startswith("test_") and name not in _PASSING]:
        delattr(_class, _test)  # thousands, which would all be reported as skipped
    globals()[_name] = _class


@pytest.mark.parametrize("pattern", REFUSED, ids=range(len(REFUSED)))
def test_what_is_excluded_is_refused_by_name(pattern: str) -> None:
    """So that no case is left out that would pass, and none fails in another way."""
    cases = [case for case in CASES if re.fullmatch(pattern, case.name)]
    assert cases
    for case in cases:
        try:
            run(case.model, feeds_of(case))
        except ModelImportError:
            continue
        pytest.fail(f"{case.name} passes")


@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_rounded_otherwise_is_near(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    for found, expected in zip(run(case.model, feeds_of(case)), results_of(name), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-3)
        assert not np.allclose(found, expected, rtol=1e-3, atol=1e-7)
