"""Convolutions in which blocks of kernels that the copy engine feeds take several tiles, and their ring of stages goes round."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, DType, Handle, MathType, TensorDescriptor, ops
from dnncore.cuda.convolution.wgmma import forward_launches
from dnncore.cuda.convolution.wgmma_tile import Tile
from dnncore.descriptors import ActivationDescriptor
from dnncore.figures import H200, DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, Problem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

pytestmark = pytest.mark.cuda  # wgmma is an instruction of GPUs

ALGORITHM = "implicit_gemm_wgmma"
ONE_MULTIPROCESSOR = replace(H200, multiprocessors=1)
LEAKY, RELU = ActivationDescriptor.make("leaky_relu", 0.125), ActivationDescriptor.make("relu")
F16, BF16, I8, F32 = DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.FLOAT32


def _images(shape: tuple[int, ...], dtype: DType, pitch: int) -> TensorDescriptor:
    """Channels last, so many elements from pixel to pixel: a slice of more channels."""
    _, _, h, w = shape
    return TensorDescriptor(dtype, shape, (pitch * w * h, 1, pitch * w, pitch))


@dataclass(frozen=True)
class Layer:
    """With 8 channels more from pixel to pixel than there are, of x and of y; of int8, 16 more."""

    dtype: DType
    batch: int
    extents: tuple[int, int]
    taps: tuple[int, int]
    convolution: ConvolutionDescriptor
    kernel: str
    fused: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    direction: Direction = Direction.FORWARD
    channels: int = 72
    filters: int = 136
    layout: str = "NHWC"
    blocks: int = 1
    activation: ActivationDescriptor = LEAKY
    algorithm: str = ALGORITHM
    wide: bool = False

    def case(self) -> Case:
        aligned = 16 if self.dtype is I8 else 8
        pitch = aligned + -(-self.channels // aligned) * aligned
        x = _images((self.batch, self.channels, *self.extents), self.dtype, pitch)
        of_w = F32 if self.wide else self.dtype
        w = TensorDescriptor.packed((self.filters, self.channels, *self.taps), of_w, self.layout)
        y = _images(self.convolution.output_shape(x.shape, w.shape), self.dtype, self.filters + aligned)
        problem: Problem = ConvolutionProblem(self.direction, x, w, y, self.convolution)
        if self.fused:
            row = TensorDescriptor.packed((1, self.filters, 1, 1))
            alpha1 = 2.0**-9 if self.dtype is I8 else 0.5
            activation = self.activation
            problem = FusedConvolutionProblem(x, w, y, self.convolution, row, row, y, activation, alpha1, alpha2=-2.0)
        return Case(self.kernel, problem, self.alpha, self.beta)


CEILING = ActivationDescriptor.make("clipped_relu", 1.5)
STRIDED = ConvolutionDescriptor.make(padding=((2, 1), (0, 3)), stride=(2, 1), dilation=(1, 2))
HALVED = ConvolutionDescriptor.make(padding=1, stride=2)
SAME = ConvolutionDescriptor.make(padding=1)
ONE_TAP, ROWS = ConvolutionDescriptor.make(), ConvolutionDescriptor.make(padding=(1, 0))
TF32_ONE_TAP, TF32_ROWS, TF32_STRIDED, TF32_SAME = (
    replace(conv, math=MathType.TF32) for conv in (ONE_TAP, ROWS, STRIDED, SAME)
)
FORWARD = (
    Layer(F16, 2, (13, 11), (1, 1), ONE_TAP, "convolution_wgmma_float16_128x192"),
    Layer(F16, 3, (7, 14), (3, 1), ROWS, "convolution_wgmma_float16_64x192", True),
    Layer(F16, 2, (13, 11), (1, 1), ONE_TAP, "convolution_wgmma_float16_128x96", alpha=2.0),
    Layer(BF16, 2, (16, 14), (3, 2), STRIDED, "convolution_wgmma_bfloat16_128x96", True, -0.5, 2.0),
    Layer(BF16, 2, (13, 11), (1, 1), ONE_TAP, "convolution_wgmma_bfloat16_128x192", True, 1.0, 1.0, activation=CEILING),
    Layer(BF16, 3, (7, 14), (3, 1), ROWS, "convolution_wgmma_bfloat16_64x192"),
    Layer(F16, 2, (30, 13), (3, 3), SAME, "convolution_wgmma_float16_64x224", True, -0.5, 2.0, channels=40, blocks=3),
    Layer(BF16, 1, (30, 34), (3, 3), ONE_TAP, "convolution_wgmma_bfloat16_64x224", channels=64, blocks=3),
    Layer(
        F16, 1, (30, 18), (3, 3), SAME, "convolution_wgmma_float16_64x224", True, 2.0, -1.0, channels=136, filters=72
    ),
    Layer(BF16, 2, (28, 9), (3, 3), SAME, "convolution_wgmma_bfloat16_64x224", channels=128, filters=64, blocks=2),
    Layer(F16, 3, (14, 9), (3, 3), SAME, "convolution_wgmma_float16_64x240", True, -0.5, 2.0, channels=136, filters=72),
    Layer(BF16, 4, (18, 10), (3, 3), ONE_TAP, "convolution_wgmma_bfloat16_64x240", channels=64, filters=64, blocks=2),
    Layer(
        I8, 2, (13, 11), (1, 1), ONE_TAP, "convolution_wgmma_int8_128x192", True, 2.0, -1.0, channels=144, filters=144
    ),
    Layer(I8, 3, (7, 14), (3, 1), ROWS, "convolution_wgmma_int8_64x192", True, channels=144, filters=144),
    Layer(I8, 2, (16, 14), (3, 2), STRIDED, "convolution_wgmma_int8_128x96", alpha=2.0**-9, channels=144, filters=144),
    Layer(
        I8,
        2,
        (13, 11),
        (2, 3),
        STRIDED,
        "convolution_wgmma_int8_64x192_narrow",
        True,
        alpha=2.0,
        channels=80,
        filters=144,
        activation=RELU,
    ),
    Layer(
        I8,
        2,
        (30, 13),
        (3, 3),
        SAME,
        "convolution_wgmma_int8_64x224",
        True,
        2.0,
        -1.0,
        channels=48,
        filters=64,
        blocks=3,
    ),
    Layer(
        I8,
        1,
        (30, 18),
        (3, 3),
        ONE_TAP,
        "convolution_wgmma_int8_64x224",
        alpha=2.0**-9,
        beta=0.5,
        channels=272,
        filters=80,
        blocks=2,
    ),
    Layer(I8, 2, (28, 9), (3, 3), SAME, "convolution_wgmma_int8_64x224", True, channels=128, filters=144, blocks=3),
    Layer(F32, 2, (13, 11), (1, 1), TF32_ONE_TAP, "convolution_wgmma_float_128x192", True, 1.0, -2.0),
    Layer(F32, 3, (7, 14), (3, 1), TF32_ROWS, "convolution_wgmma_float_64x192"),
    Layer(F32, 2, (16, 14), (3, 2), TF32_STRIDED, "convolution_wgmma_float_128x96", True, -0.5),
    Layer(F16, 2, (16, 14), (3, 2), STRIDED, "convolution_wgmma_float16_64x64_by_1", True, -0.5, 2.0, blocks=132),
    Layer(F16, 3, (7, 14), (3, 1), ROWS, "convolution_wgmma_float16_64x64_by_2", True, filters=72, blocks=132),
    Layer(F16, 2, (9, 7), (3, 3), SAME, "convolution_wgmma_float16_64x64_by_4", beta=2.0, filters=72, blocks=132),
    Layer(
        F16, 1, (9, 7), (3, 3), SAME, "convolution_wgmma_float16_64x64_by_8", True, channels=264, filters=72, blocks=132
    ),
    Layer(BF16, 2, (7, 14), (1, 1), ONE_TAP, "convolution_wgmma_bfloat16_64x64_by_1", filters=72, blocks=132),
    Layer(BF16, 2, (13, 11), (1, 1), ONE_TAP, "convolution_wgmma_bfloat16_64x64_by_2", filters=72, blocks=132),
    Layer(BF16, 1, (16, 14), (3, 2), STRIDED, "convolution_wgmma_bfloat16_64x64_by_4", True, filters=72, blocks=132),
    Layer(BF16, 2, (7, 5), (3, 3), HALVED, "convolution_wgmma_bfloat16_64x64_by_8", beta=-1.0, filters=72, blocks=132),
    Layer(F32, 2, (16, 14), (3, 2), TF32_STRIDED, "convolution_wgmma_float_64x64_by_1", True, -0.5, 2.0, blocks=132),
    Layer(F32, 3, (7, 14), (3, 1), TF32_ROWS, "convolution_wgmma_float_64x64_by_2", True, filters=72, blocks=132),
    Layer(F32, 2, (9, 7), (3, 3), TF32_SAME, "convolution_wgmma_float_64x64_by_4", beta=2.0, filters=72, blocks=132),
    Layer(F32, 1, (9, 7), (3, 3), TF32_SAME, "convolution_wgmma_float_64x64_by_8", True, filters=72, blocks=132),
    Layer(
        I8,
        2,
        (16, 14),
        (3, 2),
        STRIDED,
        "convolution_wgmma_int8_64x64_by_1",
        True,
        -0.5,
        2.0,
        channels=144,
        filters=144,
        blocks=132,
    ),
    Layer(
        I8, 3, (7, 14), (3, 1), ROWS, "convolution_wgmma_int8_64x64_by_2", True, channels=144, filters=80, blocks=132
    ),
    Layer(
        I8,
        2,
        (9, 7),
        (3, 3),
        SAME,
        "convolution_wgmma_int8_64x64_by_4",
        alpha=2.0**-9,
        beta=2.0,
        channels=144,
        filters=80,
        blocks=132,
    ),
    Layer(I8, 1, (9, 7), (3, 3), SAME, "convolution_wgmma_int8_64x64_by_8", True, channels=80, filters=16, blocks=132),
)
"""One for each kernel."""


BACKWARD_DATA = (
    Layer(F16, 3, (7, 14), (1, 1), ONE_TAP, "float16_128x192"),
    Layer(F16, 3, (7, 14), (3, 1), ROWS, "float16_64x192", channels=136),
    Layer(F16, 2, (16, 14), (3, 2), STRIDED, "float16_128x96", alpha=-0.5, beta=2.0),
    Layer(F16, 2, (30, 13), (3, 3), SAME, "float16_64x224", beta=-1.0, filters=56, blocks=2),
    Layer(BF16, 1, (30, 34), (3, 3), ONE_TAP, "bfloat16_64x224", filters=64, blocks=2),
    Layer(F16, 1, (30, 18), (3, 3), SAME, "float16_64x224", alpha=0.5, beta=-1.0, filters=144),
    Layer(F16, 3, (14, 9), (3, 3), SAME, "float16_64x240", beta=-1.0, filters=56, blocks=2),
    Layer(BF16, 2, (13, 10), (3, 3), ONE_TAP, "bfloat16_64x240", channels=64),
    Layer(BF16, 2, (20, 17), (3, 3), HALVED, "bfloat16_128x192", beta=1.0),
    Layer(BF16, 3, (7, 14), (3, 1), ROWS, "bfloat16_64x192", alpha=0.5, beta=-1.0, channels=40),
    Layer(BF16, 2, (16, 14), (3, 2), STRIDED, "bfloat16_128x96"),
    Layer(F32, 3, (7, 14), (1, 1), TF32_ONE_TAP, "float_128x192", beta=1.0),
    Layer(F32, 3, (7, 14), (3, 1), TF32_ROWS, "float_64x192", channels=40, filters=44),
    Layer(F32, 2, (16, 14), (3, 2), TF32_STRIDED, "float_128x96", alpha=-0.5, beta=2.0),
)
BACKWARD_FILTER = (
    Layer(F16, 2, (13, 11), (1, 1), ONE_TAP, "float16_128x192"),
    Layer(F16, 3, (7, 14), (3, 1), ROWS, "float16_128x128", alpha=0.5, beta=-1.0, blocks=5),
    Layer(F16, 2, (13, 11), (1, 1), ONE_TAP, "float16_128x64", channels=64, blocks=5),
    Layer(F16, 2, (16, 14), (3, 2), STRIDED, "float16_64x256", alpha=-0.5, beta=2.0, blocks=5),
    Layer(F16, 2, (28, 16), (3, 3), SAME, "float16_64x576", alpha=0.5, beta=-1.0, blocks=5),
    Layer(BF16, 2, (20, 17), (3, 3), HALVED, "bfloat16_128x192", beta=1.0, blocks=5),
    Layer(BF16, 3, (7, 14), (3, 1), ROWS, "bfloat16_128x128", layout="NCHW"),
    Layer(BF16, 2, (14, 12), (1, 3), ROWS, "bfloat16_128x64", blocks=5),
    Layer(BF16, 2, (7, 6), (3, 2), STRIDED, "bfloat16_64x256", channels=60, blocks=5),
    Layer(BF16, 1, (30, 18), (3, 3), ONE_TAP, "bfloat16_64x576", blocks=5),
    Layer(F16, 3, (13, 11), (1, 1), ONE_TAP, "float16_128x64", channels=64, blocks=5, wide=True),
    Layer(F16, 3, (7, 14), (1, 1), ONE_TAP, "float16_128x128", alpha=0.5, beta=-1.0, blocks=5, wide=True),
    Layer(BF16, 4, (16, 14), (3, 2), STRIDED, "bfloat16_64x256", channels=60, blocks=13, wide=True),
    Layer(F16, 4, (28, 16), (3, 3), SAME, "float16_64x576", alpha=0.5, layout="NCHW", blocks=7, wide=True),
)
FLOAT_BACKWARD_FILTER = (
    Layer(F32, 3, (7, 14), (3, 1), ROWS, "128x256", alpha=0.5, beta=-1.0, blocks=3),
    Layer(F32, 2, (13, 11), (1, 1), ONE_TAP, "128x128", channels=68, blocks=5),
    Layer(F32, 2, (16, 14), (3, 2), STRIDED, "64x256", alpha=-0.5, beta=2.0, filters=60, layout="NCHW"),
    Layer(F32, 2, (7, 14), (1, 3), ROWS, "256x64", beta=1.0, channels=40, filters=264, blocks=5),
)
LAYERS = (
    *FORWARD,
    *(
        replace(layer, direction=direction, kernel=f"convolution_wgmma_{direction.value}_{layer.kernel}")
        for direction, layers in (
            (Direction.BACKWARD_DATA, BACKWARD_DATA),
            (Direction.BACKWARD_FILTER, BACKWARD_FILTER),
        )
        for layer in layers
    ),
    *(
        replace(
            layer,
            direction=Direction.BACKWARD_FILTER,
            kernel=f"convolution_{name}_backward_filter_{layer.kernel}",
            algorithm=f"implicit_gemm_{name}",
            convolution=replace(layer.convolution, math=math),
        )
        for name, math in (("tf32", MathType.TF32), ("3xtf32", MathType.STRICT))
        for layer in (FLOAT_BACKWARD_FILTER if math is MathType.TF32 else FLOAT_BACKWARD_FILTER[1:])
    ),
)
KERNELS = (
    {layer.kernel for layer in LAYERS}
    | {f"convolution_wgmma_backward_filter_parts_{layer.dtype.value}" for layer in BACKWARD_FILTER if layer.blocks > 1}
    | {"convolution_tf32_backward_filter_parts", "convolution_wgmma_backward_filter_parts_float"}
)
"""What the cases here run."""


def _handle(figures: DeviceFigures, monkeypatch: pytest.MonkeyPatch) -> Handle:
    """A device as if it had fewer multiprocessors, which then take all tiles."""
    monkeypatch.setattr("dnncore.cuda.figures.of_device", lambda *_: figures)
    return Handle(CUDA_DEVICES[0])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Handle:
    """With one multiprocessor."""
    return _handle(ONE_MULTIPROCESSOR, monkeypatch)


def _ending(tile: Tile) -> str:
    """Of the names of its kernels."""
    cluster = getattr(tile, "cluster", 0)
    by = f"_by_{cluster}" if cluster else ""
    return f"_{tile.rows}x{tile.columns}" + ("_narrow" if getattr(tile, "row_bytes", 128) < 128 else "") + by


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.kernel)
def test_a_block_takes_several_tiles(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    for tiles in (
        "wgmma_launch.TILES",
        "wgmma_launch.TILES_OF_CLUSTERS",
        "wgmma_launch.TILES_OF_INT8",
        "wgmma_launch.TILES_OF_TF32",
        "wgmma_backward_filter.TILES",
        "tf32_backward_filter.TILES",
    ):
        where = f"dnncore.cuda.convolution.{tiles}"
        found = [tile for tile in pkgutil.resolve_name(where) if layer.kernel.endswith(_ending(tile))]
        monkeypatch.setattr(where, tuple(found))
    uncached = forward_launches.__wrapped__  # which may have had all tiles before
    monkeypatch.setattr("dnncore.cuda.convolution.wgmma.forward_launches", uncached)
    with _handle(replace(H200, multiprocessors=layer.blocks), monkeypatch) as few:
        case = layer.case()
        kernels = few.plan(case.problem, algorithm=layer.algorithm).describe()
        assert f"{layer.kernel}: " in kernels
        assert ("_parts" in kernels) == (layer.direction is Direction.BACKWARD_FILTER and layer.blocks > 1)
        assert ("_parts_float:" in kernels) == layer.wide
        check(few, case, layer.algorithm)


def test_operands_of_tf32_are_rounded_to_the_nearest_and_sums_are_not_rounded() -> None:
    """Cut off, 1 + 3 * 2^-12 would be 1; a tie goes to the even one. With 1 + 2^-10 for a weight products have 20 bits."""
    given = np.float32(1) + np.float32(2.0**-12) * np.arange(-8, 8, dtype=np.float32)
    places = np.where(given < 1, 2048, 1024)
    rounded = np.rint(given * places) / places
    x = np.broadcast_to(given.reshape(1, 1, 1, 16), (1, 4, 1, 16)) * np.array([1, 0, 0, 0], np.float32).reshape(
        1, 4, 1, 1
    )
    w = np.zeros((4, 4, 1, 1), np.float32)
    w[:, 0] = np.float32(1 + 2.0**-10 + 2.0**-13)  # the last of which is rounded away
    with Handle(CUDA_DEVICES[0]) as own:
        tx, tw = (own.upload(np.ascontiguousarray(value), "NHWC") for value in (x, w))
        y = own.tensor(TensorDescriptor.packed((1, 4, 1, 16), F32, "NHWC"))
        ops.convolution_forward(own, 1.0, tx, tw, TF32_ONE_TAP, 0.0, y, algorithm=ALGORITHM)
        np.testing.assert_array_equal(y.numpy()[0, 0, 0], (rounded * (1 + 2.0**-10)).astype(np.float32))


def test_operands_that_start_anywhere_are_computed_elsewhere(small: Handle) -> None:
    with small:
        check(small, LAYERS[0].case(), ALGORITHM, guard=GUARD + 1)


def test_other_buffers_have_other_tensor_maps() -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.uniform(-1, 1, (1, 16, 5, 6)).astype(np.float16) for _ in range(2))
    conv = ConvolutionDescriptor.make()
    weights = rng.uniform(-1, 1, (8, 16, 1, 1)).astype(np.float16)
    with Handle(CUDA_DEVICES[0]) as own:
        x, other, w = (own.upload(value, "NHWC") for value in (first, second, weights))
        y, again = (own.tensor(TensorDescriptor.packed((1, 8, 5, 6), F16, "NHWC")) for _ in range(2))
        ops.convolution_forward(own, 1.0, x, w, conv, 0.0, y, algorithm=ALGORITHM)
        ops.convolution_forward(own, 1.0, other, w, conv, 0.0, again, algorithm=ALGORITHM)
        expected, of_other = y.numpy(), again.numpy()
        assert not np.array_equal(expected, of_other)
        with own.record() as program:
            ops.convolution_forward(own, 1.0, x, w, conv, 0.0, y, algorithm=ALGORITHM)
        captured = program.capture()
        captured.run()
        np.testing.assert_array_equal(y.numpy(), expected)
        captured.move({x: other})
        captured.run()
        np.testing.assert_array_equal(y.numpy(), of_other)


@pytest.mark.parametrize("special", ["x", "dy"])
def test_split_factors_leave_infinities_and_nans_what_they_are(special: str) -> None:
    """Beside factors that are exact in tf32, and those that are a little more or less; and sums that these are not of."""
    ordinary = np.repeat(np.array([1, 1 + 2.0**-20, 1 - 2.0**-20, 0.1], np.float32)[:, None], 16, axis=1)
    other = np.ones((4, 16), np.float32)
    other[0, 3], other[1, 5] = np.inf, -np.inf
    other[2, 7:8].view(np.uint32)[:] = 0x7F800001
    conv = ConvolutionDescriptor.make()
    rows = {"x": ordinary, "dy": ordinary, special: other}
    with Handle(CUDA_DEVICES[0]) as own:
        images, gradient = (own.upload(rows[name].reshape(1, 4, 1, 16), "NHWC") for name in ("x", "dy"))
        dw = own.tensor(TensorDescriptor.packed((4, 4, 1, 1), F32, "NHWC"))
        ops.convolution_backward_filter(own, 1.0, images, gradient, conv, 0.0, dw, algorithm="implicit_gemm_3xtf32")
        found = dw.numpy()[:, :, 0, 0] if special == "dy" else dw.numpy()[:, :, 0, 0].T
    expected = np.repeat(np.array([np.inf, -np.inf, np.nan], np.float32)[:, None], 4, axis=1)
    np.testing.assert_array_equal(found[:3], expected)
    np.testing.assert_allclose(found[3], ordinary.astype(np.float64).sum(axis=1), rtol=2.0**-20)
