"""What the cases of tests/ops do not reach: batches that are cut into parts, addresses that are not aligned, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dnncore import Handle
from dnncore.backend import Offer
from dnncore.cuda.convolution import gemm
from dnncore.cuda.convolution.gemm import GEMM
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction
from tests.cases import CASES, Case
from tests.conftest import CUDA_DEVICES
from tests.cuda.products import offered
from tests.ops.harness import GUARD, check

pytestmark = pytest.mark.cuda


@pytest.fixture
def fresh_handle() -> Iterator[Handle]:
    """One that remembers no plan."""
    with Handle(CUDA_DEVICES[0]) as handle:
        yield handle


def _offer(handle: Handle, problem: ConvolutionProblem, algorithm: str) -> Offer | str:
    (found,) = (a for a in handle.device.algorithms(problem) if a.name == algorithm)
    return found.offer(problem, handle.device.figures)


def _problem(direction: Direction, dtype: DType, batch: int) -> ConvolutionProblem:
    conv = ConvolutionDescriptor.make(padding=1, stride=(1, 2), groups=2)
    x, w = TensorDescriptor.packed((batch, 4, 6, 7), dtype), TensorDescriptor.packed((6, 2, 3, 3), dtype)
    return ConvolutionProblem(
        direction, x, w, TensorDescriptor.packed(conv.output_shape(x.shape, w.shape), dtype), conv
    )


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
def test_gemm_takes_a_batch_in_parts_where_its_columns_would_outgrow_the_workspace(
    direction: Direction, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _problem(direction, DType.FLOAT32, 5)
    whole = offered(GEMM, problem).workspace_bytes
    an_image = 4 * 9 * 6 * 4 * 4  # C * taps * places * bytes
    monkeypatch.setattr(gemm, "_COLUMNS_BYTES", 2 * an_image)
    assert offered(GEMM, problem).workspace_bytes < whole
    check(fresh_handle, Case("gemm-in-parts", problem, alpha=0.5, beta=-1.0), "gemm")


def test_gemm_does_not_round_the_sums_of_parts_to_16_bits(
    fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "_COLUMNS_BYTES", 1)
    problem = _problem(Direction.BACKWARD_FILTER, DType.FLOAT16, 2)
    reason = _offer(fresh_handle, problem, "gemm")
    assert isinstance(reason, str)
    assert "rounded to float16" in reason
    assert isinstance(_offer(fresh_handle, _problem(Direction.FORWARD, DType.FLOAT16, 2), "gemm"), Offer)


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
def test_depthwise_takes_channels_one_at_a_time_where_an_address_is_not_aligned(
    direction: Direction, fresh_handle: Handle
) -> None:
    (case,) = (case for case in CASES if case.name == f"depthwise-{direction.value}-nhwc-stride-2")
    check(fresh_handle, case, "depthwise", guard=GUARD + 1)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("depthwise-backward_filter-bands-7x7-float16-whole", "depthwise_channels"),
        ("depthwise-backward_filter-columns-float16-whole", "depthwise_columns"),
        ("depthwise-backward_filter-planes-7x7-float16-whole", "depthwise_planes"),
        ("depthwise-backward_data-planes-7x7-float16-whole", "depthwise_planes"),
        ("depthwise-forward-planes-7x7-float16-whole", "depthwise_planes"),
    ],
)
def test_depthwise_kernels_of_large_filters_take_addresses_that_are_not_aligned(
    name: str, algorithm: str, fresh_handle: Handle
) -> None:
    (case,) = (case for case in CASES if case.name == name)
    check(fresh_handle, case, algorithm, guard=GUARD + 1)


def test_depthwise_refuses_strides_that_32_bits_do_not_hold(fresh_handle: Handle) -> None:
    conv = ConvolutionDescriptor.make(groups=2)
    x, w = TensorDescriptor(DType.FLOAT32, (1, 2, 2, 3), (8, 1, 2**30, 2)), TensorDescriptor.packed((2, 1, 2, 3))
    problem = ConvolutionProblem(Direction.FORWARD, x, w, TensorDescriptor.packed((1, 2, 1, 1)), conv)
    reason = _offer(fresh_handle, problem, "depthwise")
    assert isinstance(reason, str)
    assert "32 bits" in reason
