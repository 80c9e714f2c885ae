"""Products whose reduction is cut into parts: joined by the last block of each tile, or added up by another launch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dnncore import Handle
from dnncore.backend import TICKET_BYTES
from dnncore.cuda.calls import TICKETS, Calls, KernelCall, WhereAligned
from dnncore.cuda.gemm import algorithm, kernel, schedule
from dnncore.cuda.gemm.kernel import Variant, variants
from dnncore.cuda.gemm.schedule import Schedule
from dnncore.cuda.gemm.tiling import Walk
from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.plan import Plan
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem
from dnncore.workspace import allocate
from tests.cases import CASES, Case
from tests.conftest import CUDA_DEVICES
from tests.cuda.joined import SHAPES, Multiplication, digests, split_and_join
from tests.ops.harness import GUARD, check

pytestmark = pytest.mark.cuda

SPLIT_K = {
    "convolution-backward_data-longer-than-a-tile": "implicit_gemm_split_k",
    "convolution-backward_filter-fp16-chwn": "implicit_gemm_split_k",
    "convolution-backward_data-fp16-nhwc": "implicit_gemm_split_k",
    "convolution-forward-int8-to-int32-blend": "implicit_gemm_split_k",
    "fft-backward_filter-groups": "gemm",
    "fused-convolution-long-sum": "implicit_gemm_split_k",
    "fused-convolution-long-sum-blend": "implicit_gemm_split_k",
    "fused-convolution-fp16-long-sum": "implicit_gemm_split_k",
    "fused-convolution-fp16-nhwc-vectors": "implicit_gemm_split_k",
    "fused-convolution-bf16-long-sum": "implicit_gemm_split_k",
    "fused-convolution-int8-long-sum": "implicit_gemm_split_k",
    "fused-convolution-int8-long-sum-blend": "implicit_gemm_split_k",
    "matmul-long-sum-fp16": "gemm_split_k",
    "matmul-long-sum-bf16-blend": "gemm_split_k",
    "winograd-backward_filter-long-sum": "winograd_nonfused",
}
"""Cases, and an algorithm of each that joins the parts of its product."""

SELECTED = [case for case in CASES if case.name in SPLIT_K]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    split_and_join(monkeypatch)
    with Handle(CUDA_DEVICES[0]) as opened:
        yield opened


def kernels(calls: Calls) -> Iterator[KernelCall]:
    for call in calls:
        if isinstance(call, WhereAligned):
            yield from kernels(call.aligned)
            yield from kernels(call.otherwise)
        elif isinstance(call, KernelCall):
            yield call


def joins(plan: Plan) -> bool:
    return any(slot.place == TICKETS for call in kernels(plan.work) for slot in call.slots)


def by_another_launch(*args: Any, joined: bool | None = None) -> Schedule | None:
    """The same tile and parts as `choose_split`, added up by a launch of their own."""
    found = None if joined else schedule.choose_split(*args, joined=joined)
    return None if found is None else replace(found, joined=False)


def test_every_case_is_there() -> None:
    assert {case.name for case in SELECTED} == SPLIT_K.keys()


@pytest.mark.parametrize("guard", [GUARD, GUARD + 1], ids=["aligned", "odd"])
@pytest.mark.parametrize("case", SELECTED, ids=lambda case: case.name)
def test_the_last_block_of_a_tile_joins_its_parts(own: Handle, case: Case, guard: int) -> None:
    """And leaves the tickets as they were: the harness looks at what lies before the workspace."""
    assert joins(own.plan(case.problem, algorithm=SPLIT_K[case.name]))
    check(own, case, SPLIT_K[case.name], guard)


@pytest.mark.parametrize("case", SELECTED, ids=lambda case: case.name)
def test_another_launch_can_add_them_up(own: Handle, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm, "choose_split", by_another_launch)
    plan = own.plan(case.problem, algorithm=SPLIT_K[case.name])
    assert not joins(plan)
    check(own, case, SPLIT_K[case.name])


JOINED = variants(joined=True)
JOINED_EXTENDED = variants(extended=True, joined=True)


def _of_a_part(variant: Variant) -> int:
    """Channels: two slabs of them, or as many as a pipelined kernel has places for; two of the deepest."""
    return min((4 if variant.pipelined else 2) * variant.tile.depth, 128)


def _two_tiles_down_and_across(variant: Variant, groups: int, layout: str) -> ConvolutionProblem:
    """1x1 filters over 8x8 places and channels whose sums are cut into two parts and half a part; C as `layout`.

    Padding of 1 where the kernel knows it; what a pipelined one reads lies along its walks.
    """
    rows, dtype, padding = variant.tile.rows + 8, variant.tile.dtype, int(variant.padded)
    of_w, of_x = "NHWC", "NHWC"
    if variant.pipelined:
        of_w, of_x = ("NHWC" if walk is Walk.REDUCTION else "CHWN" for walk in variant.walks)
    images = 8 if of_x == "CHWN" else variant.tile.columns // 64 + 1
    channels = _of_a_part(variant) * 5 // 2
    x, w = (images, channels * groups, 8, 8), (rows * groups, channels, 1, 1)
    conv = ConvolutionDescriptor.make(groups=groups, padding=padding)
    return ConvolutionProblem(
        Direction.FORWARD,
        TensorDescriptor.packed(x, dtype, of_x),
        TensorDescriptor.packed(w, dtype, of_w),
        TensorDescriptor.packed(conv.output_shape(x, w), DType.INT32 if dtype is DType.INT8 else dtype, layout),
        conv,
    )


def _join_with(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no choice but this variant."""

    def forced(*_args: Any, joined: bool | None = None) -> Schedule | None:
        return None if joined is False else Schedule(variant.tile, 3, _of_a_part(variant), 1e-9, joined=True)

    monkeypatch.setattr(algorithm, "choose_split", forced)
    if not variant.pipelined:
        monkeypatch.setattr(kernel, "choose_walks", lambda _product: variant.walks)


def _launched(plan: Plan) -> str:
    """The kernel of a plan where its operands are aligned."""
    return next(kernels(plan.work)).unit.entry


@pytest.mark.parametrize(("groups", "layout"), [(1, "NHWC"), (2, "NCHW")], ids=["rows", "columns of two groups"])
@pytest.mark.parametrize("variant", JOINED, ids=lambda variant: variant.unit.entry)
def test_every_kernel_that_joins_parts_joins_them(
    own: Handle, variant: Variant, groups: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _join_with(variant, monkeypatch)
    case = Case(f"{variant.unit.entry}-{layout}", _two_tiles_down_and_across(variant, groups, layout), 0.5, -2.0)
    assert _launched(own.plan(case.problem, algorithm="implicit_gemm_split_k")) == variant.unit.entry
    check(own, case, "implicit_gemm_split_k")


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("variant", JOINED_EXTENDED, ids=lambda variant: variant.unit.entry)
def test_everything_that_may_follow_a_convolution_follows_joined_parts(
    own: Handle, variant: Variant, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _join_with(variant, monkeypatch)
    plain = _two_tiles_down_and_across(variant, 1, layout)
    y = replace(plain.y, dtype=DType.FLOAT32) if variant.tile.dtype is DType.INT8 else plain.y
    parameter = TensorDescriptor.packed((1, y.shape[1], 1, 1), y.dtype)
    gelu = ActivationDescriptor.make("gelu")
    problem = FusedConvolutionProblem(plain.x, plain.w, y, plain.convolution, parameter, parameter, y, gelu, 0.5, -2.0)
    assert _launched(own.plan(problem, algorithm="implicit_gemm_split_k")) == variant.unit.entry
    check(own, Case(f"{variant.unit.entry}-{layout}", problem, 2.0, 0.5), "implicit_gemm_split_k")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts_are_added_up_in_one_order_either_way(
    own: Handle, shape: tuple[str, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = Multiplication(own, *shape)
    assert joins(joined.plan)
    monkeypatch.setattr(algorithm, "choose_split", by_another_launch)
    with Handle(own.info.name) as other:
        added = Multiplication(other, *shape)
        assert not joins(added.plan)
        assert added.bits() == joined.bits()


def test_one_workspace_serves_launches_of_many_tiles_and_parts(own: Handle) -> None:
    """In a row and alternately: each finds the tickets as the first did."""
    products = [Multiplication(own, *shape) for shape in SHAPES]
    first = [product.bits() for product in products]
    for order in ((0, 0, 0), (1, 0, 2, 3), (3, 1, 1, 0, 2)):
        for index in order:
            assert products[index].bits() == first[index]


def test_captured_programs_join_parts_side_by_side(own: Handle) -> None:
    products = [Multiplication(own, *shape) for shape in SHAPES[::2]]
    wanted = [product.bits() for product in products]
    captured = []
    for product in products:
        with own.record() as program:
            for _ in range(3):
                product.enqueue()
        captured.append(program.capture())
    streams = [own.device.create_stream() for _ in captured]
    for _ in range(3):
        for each, stream in zip(captured, streams, strict=True):
            each.run(stream)
    for stream in streams:
        stream.synchronize()
    assert [product.c.numpy().tobytes() for product in products] == wanted


def test_tickets_are_zero_in_a_new_workspace(own: Handle) -> None:
    for _ in range(2):  # the second one may lie where the first was
        memory = allocate(own.device, 256)
        assert memory.nbytes == TICKET_BYTES + 256
        tickets = np.ones(TICKET_BYTES, np.uint8)
        own.device.copy_to_host(own.stream, tickets, memory.at(0))
        own.synchronize()
        assert not tickets.any()
        own.device.copy_to_device(own.stream, memory.at(0), np.ones(TICKET_BYTES, np.uint8))
        own.synchronize()
        memory.close()


def test_the_order_in_which_blocks_arrive_does_not_show(own: Handle) -> None:
    expected = digests(own)  # blocks arrive in their own order, unless the caller of pytest has another
    for order in ("rev", "7"):
        environment = {**os.environ, "EMU_BLOCKS": order, "EMU_SCHED": order}
        command = [sys.executable, "-m", "tests.cuda.joined"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        assert done.stdout.split() == expected
