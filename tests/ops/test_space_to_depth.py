"""Blocks of several outputs, where small problems would be computed with one."""

from __future__ import annotations

import pytest

from dnncore import DType, Handle
from dnncore.problems import Direction
from tests.cases import Case
from tests.cases.convolution import Geometry
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import check

pytestmark = pytest.mark.cuda

F16, BF16 = DType.FLOAT16, DType.BFLOAT16
GEOMETRIES = (
    Geometry("nhwc", (2, 3, 21, 18), (16, 3, 5, 4), {}, F16, ("NHWC",) * 3, 0.5, -2.0),
    Geometry("nhwc-filters-filled", (1, 3, 17, 18), (5, 3, 5, 4), {"stride": 2, "padding": 2}, F16, ("NHWC",) * 3),
    Geometry("planes", (2, 4, 14, 19), (6, 4, 3, 5), {"stride": (1, 2), "padding": ((0, 2), (1, 0))}, BF16),
    Geometry("true-convolution", (1, 2, 16, 17), (3, 2, 5, 4), {"padding": 1, "mode": "convolution"}, F16),
    Geometry("1d", (2, 3, 37), (4, 3, 7), {"spatial_ndim": 1, "stride": 3, "padding": 2}, F16),
    Geometry("gaps-blend", (2, 3, 18, 17), (4, 3, 4, 3), {}, F16, ("gaps",) * 3, -0.5, 2.0),
)


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda geometry: geometry.name)
def test_blocks_of_several_outputs(geometry: Geometry, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnncore.cuda.convolution.space_to_depth._OUTPUTS_OF_BLOCKS", (outputs,))
    problem = geometry.problem(Direction.BACKWARD_DATA)
    with Handle(CUDA_DEVICES[0]) as own:
        splits = own.plan(problem, algorithm="space_to_depth").describe().count("convolution_phases_split")
        assert splits == outputs**problem.convolution.spatial_ndim + 1
        check(own, Case(geometry.name, problem, geometry.alpha, geometry.beta), "space_to_depth")
