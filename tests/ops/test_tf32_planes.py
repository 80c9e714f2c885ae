"""Convolutions of float32 planes by three products of tf32: tails, gaps, several tiles to a block, precision."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, DType, Handle, Preference, TensorDescriptor, ops
from dnncore.cuda.convolution.tf32_backward_filter import TILES
from dnncore.descriptors import ActivationDescriptor
from dnncore.figures import H200
from dnncore.plan import rank
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, Problem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

pytestmark = pytest.mark.cuda  # wgmma is an instruction of GPUs

ALGORITHM = "implicit_gemm_3xtf32"
FORWARD_KERNELS = {"convolution_3xtf32_planes", "convolution_3xtf32_split_filters"}

ONE_TAP = ConvolutionDescriptor.make()


@dataclass(frozen=True)
class Planes:
    """Images of planes, so many elements from plane to plane and from image to image beyond what they have."""

    name: str
    batch: int
    channels: int
    filters: int
    extents: tuple[int, int]
    direction: Direction = Direction.FORWARD
    activation: str | None = None
    gap: int = 0
    w_layout: str = "NCHW"
    alpha: float = 1.0
    beta: float = 0.0

    def _images(self, channels: int) -> TensorDescriptor:
        (h, w), n = self.extents, self.batch
        plane = h * w + self.gap
        return TensorDescriptor(DType.FLOAT32, (n, channels, h, w), (plane * channels + 4 * self.gap, plane, w, 1))

    def case(self) -> Case:
        x, y = self._images(self.channels), self._images(self.filters)
        w = TensorDescriptor.packed((self.filters, self.channels, 1, 1), DType.FLOAT32, self.w_layout)
        problem: Problem = ConvolutionProblem(self.direction, x, w, y, ONE_TAP)
        if self.activation is not None:
            row = TensorDescriptor.packed((1, self.filters, 1, 1))
            activation = ActivationDescriptor.make(self.activation, *(() if self.activation == "relu" else (0.125,)))
            problem = FusedConvolutionProblem(x, w, y, ONE_TAP, row, row, y, activation, 0.5, alpha2=-2.0)
        return Case(self.name, problem, self.alpha, self.beta)


PLANES = (
    Planes("tails-of-all", 3, 72, 136, (12, 13)),
    Planes("whole-tiles", 2, 64, 64, (8, 16)),
    Planes("one-image-small", 1, 16, 5, (2, 2)),
    Planes("odd-pixels-with-gaps", 3, 33, 70, (5, 27), gap=1, alpha=-0.5, beta=2.0),
    Planes("fused-relu", 2, 40, 72, (10, 14), activation="relu", beta=1.0),
    Planes("fused-leaky-odd-pixels", 2, 40, 24, (3, 45), activation="leaky_relu", gap=5, alpha=2.0),
    Planes("fused-clipped", 1, 200, 24, (2, 6), activation="clipped_relu", alpha=0.5, beta=-1.0, w_layout="CHWN"),
    Planes("backward-data-tails", 3, 136, 72, (12, 13), Direction.BACKWARD_DATA, alpha=0.5, beta=-1.0),
    Planes("backward-data-gaps", 2, 20, 36, (5, 27), Direction.BACKWARD_DATA, gap=1, w_layout="CHWN"),
)
FILTERS = {
    (128, 128): Planes("tails-of-all", 3, 68, 136, (12, 13), Direction.BACKWARD_FILTER, beta=-1.0),
    (64, 256): Planes("odd-pixels-with-gaps", 2, 264, 36, (5, 27), Direction.BACKWARD_FILTER, gap=1, w_layout="CHWN"),
    (256, 64): Planes("small-images", 5, 40, 200, (4, 6), Direction.BACKWARD_FILTER, alpha=-0.5, beta=2.0),
}
"""Backward-filter, by its tile."""

KERNELS = FORWARD_KERNELS | {f"convolution_3xtf32_backward_filter_{rows}x{columns}_planes" for rows, columns in FILTERS}
"""What the cases here run."""


def _few(monkeypatch: pytest.MonkeyPatch, multiprocessors: int) -> Handle:
    """A device as if it had fewer multiprocessors, which then take all tiles."""
    monkeypatch.setattr("dnncore.cuda.figures.of_device", lambda *_: replace(H200, multiprocessors=multiprocessors))
    return Handle(CUDA_DEVICES[0])


@pytest.mark.parametrize("planes", PLANES, ids=lambda planes: planes.name)
def test_one_block_takes_all_tiles(planes: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    with _few(monkeypatch, 1) as few:
        case = planes.case()
        kernels = few.plan(case.problem, algorithm=ALGORITHM).describe()
        assert all(f"{kernel}: " in kernels for kernel in FORWARD_KERNELS)
        check(few, case, ALGORITHM)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("tile", FILTERS, ids=lambda tile: FILTERS[tile].name)
def test_blocks_share_out_tiles_of_filters(tile: tuple[int, int], blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(each for each in TILES if (each.rows, each.columns) == tile)
    monkeypatch.setattr("dnncore.cuda.convolution.tf32_backward_filter.TILES", found)
    with _few(monkeypatch, blocks) as few:
        case = FILTERS[tile].case()
        kernels = few.plan(case.problem, algorithm=ALGORITHM).describe()
        assert f"convolution_3xtf32_backward_filter_{tile[0]}x{tile[1]}_planes: " in kernels
        assert ("_parts" in kernels) == (blocks > 1)
        check(few, case, ALGORITHM)


def test_planes_that_start_anywhere_are_computed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with _few(monkeypatch, 2) as few:
        check(few, PLANES[4].case(), ALGORITHM, guard=GUARD + 1)


def test_planes_of_7_x_7_are_left_to_others() -> None:
    with Handle(CUDA_DEVICES[0]) as own:
        problem = Planes("7x7", 2, 32, 32, (7, 7)).case().problem
        reasons = {each.name: each.status for each in rank(problem, own.device, Preference.PREFER_FASTEST)}
    assert "planes a multiple of 4 elements apart" in str(reasons[ALGORITHM])


def test_sums_of_one_sign_are_as_precise_as_those_of_fp32() -> None:
    """1024 positive products: each product of tf32 alone is wrong by up to 2^-10, and sums that are cut off by 1024 * 2^-24."""
    rng = np.random.default_rng(5)
    x, w = (rng.uniform(0.5, 1, shape).astype(np.float32) for shape in ((1, 1024, 4, 8), (64, 1024, 1, 1)))
    exact = np.einsum("kc,cp->kp", w[:, :, 0, 0].astype(np.float64), x.reshape(1024, 32).astype(np.float64))
    with Handle(CUDA_DEVICES[0]) as own:
        y = own.tensor(TensorDescriptor.packed((1, 64, 4, 8), DType.FLOAT32))
        ops.convolution_forward(own, 1.0, own.upload(x), own.upload(w), ONE_TAP, 0.0, y, algorithm=ALGORITHM)
        found = y.numpy().reshape(64, 32)
    assert np.max(np.abs(found - exact) / exact) < 2.0**-20


def test_split_factors_leave_infinities_and_nans_what_they_are() -> None:
    x = np.ones((1, 16, 1, 4), np.float32)
    x[0, 3, 0, :3] = np.inf, -np.inf, np.nan
    w = np.full((2, 16, 1, 1), 1 + 2.0**-20, np.float32)
    with Handle(CUDA_DEVICES[0]) as own:
        y = own.tensor(TensorDescriptor.packed((1, 2, 1, 4), DType.FLOAT32))
        ops.convolution_forward(own, 1.0, own.upload(x), own.upload(w), ONE_TAP, 0.0, y, algorithm=ALGORITHM)
        found = y.numpy()[0, :, 0]
    np.testing.assert_array_equal(found[:, :3], np.array([[np.inf, -np.inf, np.nan]] * 2, np.float32))
    assert np.isfinite(found[:, 3]).all()
