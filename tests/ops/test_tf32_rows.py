"""First layers' gradients of filters in planes of float32 by implicit_gemm_3xtf32_rows: rows of any length, several images to a
block, rings that come round, tiles that are not full."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, DType, Handle, TensorDescriptor, ops
from dnncore.cuda.convolution.tf32_rows_backward_filter import TILES
from dnncore.figures import H200
from dnncore.problems import ConvolutionProblem, Direction
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

pytestmark = pytest.mark.cuda  # for one architecture

ALGORITHM = "implicit_gemm_3xtf32_rows"
F32 = DType.FLOAT32
HALVED = ConvolutionDescriptor.make(padding=3, stride=2)
QUARTERED = ConvolutionDescriptor.make(padding=2, stride=4)
DENSE = ConvolutionDescriptor.make()


@dataclass(frozen=True)
class Layer:
    """`gap` is elements between the rows of x and of dy, `tile` the filters and columns of a block's tile."""

    name: str
    x: tuple[int, int, int, int]
    w: tuple[int, int, int]
    convolution: ConvolutionDescriptor
    tile: tuple[int, int]
    blocks: int = 1
    gap: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    layout: str = "NCHW"

    def _rows(self, shape: tuple[int, ...]) -> TensorDescriptor:
        n, c, h, w = shape
        row = w + self.gap
        return TensorDescriptor(F32, (n, c, h, w), (c * h * row, h * row, row, 1))

    def case(self) -> Case:
        filters = TensorDescriptor.packed((self.w[0], self.x[1], *self.w[1:]), F32, self.layout)
        y = self._rows(self.convolution.output_shape(self.x, filters.shape))
        problem = ConvolutionProblem(Direction.BACKWARD_FILTER, self._rows(self.x), filters, y, self.convolution)
        return Case(self.name, problem, self.alpha, self.beta)

    @property
    def kernel(self) -> str:
        """That computes it."""
        filters, columns = self.tile
        return f"convolution_3xtf32_rows_backward_filter_{filters}x{columns}_stride_{self.convolution.stride[1]}"


LAYERS = (
    Layer("7x7 halved, two units to a row", (2, 3, 20, 140), (64, 7, 7), HALVED, (64, 160)),
    Layer("7x7 halved, two tiles of filters, three blocks", (3, 3, 15, 37), (72, 7, 7), HALVED, (64, 160), blocks=3,
          gap=3, alpha=-0.5, beta=2.0),
    Layer("3x3, odd rows of several images", (5, 3, 4, 13), (40, 3, 3), ConvolutionDescriptor.make(padding=1), (64, 160),
          beta=-1.0, layout="NHWC"),
    Layer("5x5 quartered", (1, 3, 30, 41), (16, 5, 5), QUARTERED, (64, 160)),
    Layer("11x11 quartered", (2, 3, 47, 63), (64, 11, 11), QUARTERED, (64, 192), blocks=2),
    Layer("11x11", (1, 3, 14, 83), (70, 11, 11), DENSE, (64, 192), blocks=4),
    Layer("9x11 halved, gray, padded unevenly", (2, 1, 14, 40), (8, 9, 11),
          ConvolutionDescriptor.make(padding=((2, 0), (0, 9)), stride=(3, 2)), (64, 192), gap=1),
    Layer("11x11, 96 filters", (2, 3, 14, 21), (96, 11, 11), DENSE, (96, 192), blocks=3, alpha=0.5, beta=-1.0),
    Layer("7x7 halved, 90 filters", (1, 2, 17, 29), (90, 7, 7), HALVED, (96, 192)),
    Layer("more padding than image", (2, 4, 3, 2), (8, 3, 2), ConvolutionDescriptor.make(padding=4, stride=(3, 4)), (96, 192)),
    Layer("one tap of 5", (2, 5, 15, 9), (16, 1, 1), ConvolutionDescriptor.make(dilation=2), (64, 160), blocks=40),
    Layer("one tap, rows of x that nothing meets", (2, 3, 11, 9), (16, 1, 1), ConvolutionDescriptor.make(stride=(5, 2)), (64, 160)),
)  # fmt: skip
KERNELS = {layer.kernel for layer in LAYERS} | {"convolution_3xtf32_rows_backward_filter_parts"}
"""What the cases here run."""


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_blocks_share_out_the_rows_of_all_images(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(tile for tile in TILES if (tile.filters, tile.columns) == layer.tile)
    monkeypatch.setattr("dnncore.cuda.convolution.tf32_rows_backward_filter.TILES", found)
    case = layer.case()
    columns = layer.w[1] * layer.w[2] * layer.x[1]
    tiles = -(-layer.w[0] // layer.tile[0]) * -(-columns // layer.tile[1])
    figures = replace(H200, multiprocessors=layer.blocks * tiles)
    monkeypatch.setattr("dnncore.cuda.figures.of_device", lambda *_: figures)
    with Handle(CUDA_DEVICES[0]) as few:
        assert f"{layer.kernel}: " in few.plan(case.problem, algorithm=ALGORITHM).describe()
        check(few, case, ALGORITHM)


def test_operands_may_begin_anywhere() -> None:
    with Handle(CUDA_DEVICES[0]) as own:
        check(own, LAYERS[2].case(), ALGORITHM, guard=GUARD + 1)


def test_infinities_and_nans_reach_the_taps_that_meet_them_alone() -> None:
    """The last row of y has fewer outputs than are multiplied at a time, and taps that no output follows meet the infinity."""
    x, dy = np.ones((1, 1, 8, 11), np.float32), np.ones((1, 2, 6, 9), np.float32)
    x[0, 0, 7, 10] = np.inf
    x[0, 0, 0, 0] = np.nan
    with Handle(CUDA_DEVICES[0]) as own:
        images, gradient = own.upload(x), own.upload(dy)
        dw = own.tensor(TensorDescriptor.packed((2, 1, 3, 3), F32))
        ops.convolution_backward_filter(own, 1.0, images, gradient, DENSE, 0.0, dw, algorithm=ALGORITHM)
        found = dw.numpy()[:, 0]
    expected = np.full((2, 3, 3), 54.0, np.float32)
    expected[:, 0, 0], expected[:, 2, 2] = np.nan, np.inf
    np.testing.assert_array_equal(found, expected)


def test_sums_are_as_precise_as_those_of_float32() -> None:
    """Of factors of one sign what is cut off adds up; two units to a row."""
    rng = np.random.default_rng(0)
    x, dy = (rng.uniform(0.5, 1.0, shape).astype(np.float32) for shape in ((1, 1, 9, 98), (1, 1, 7, 96)))
    with Handle(CUDA_DEVICES[0]) as own:
        images, gradient = own.upload(x), own.upload(dy)
        dw = own.tensor(TensorDescriptor.packed((1, 1, 3, 3), F32))
        ops.convolution_backward_filter(own, 1.0, images, gradient, DENSE, 0.0, dw, algorithm=ALGORITHM)
        found = dw.numpy()[0, 0]
    windows = np.lib.stride_tricks.sliding_window_view(x[0, 0].astype(np.float64), (7, 96))
    exact = np.einsum("rspq,pq->rs", windows, dy[0, 0].astype(np.float64))
    assert np.max(np.abs(found - exact) / exact) < 2.0**-20
