"""First layers by implicit_gemm_wgmma_rows, forward and backward-filter: chunks begin anywhere, rectangles hang over borders, and
blocks take several."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, DType, Handle, MathType, TensorDescriptor, ops
from dnncore.cuda.convolution.implicit_gemm import IMPLICIT_GEMM
from dnncore.cuda.convolution.wgmma_rows import _PARAMS, WgmmaRows
from dnncore.descriptors import ActivationDescriptor
from dnncore.figures import H200
from dnncore.problems import (
    ConvolutionProblem,
    Direction,
    FusedConvolutionProblem,
    ImageConvolutionProblem,
    Problem,
)
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

pytestmark = pytest.mark.cuda  # wgmma is an instruction of GPUs

ALGORITHM = "implicit_gemm_wgmma_rows"
F16, BF16, I8, F32 = DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.FLOAT32


@dataclass(frozen=True)
class Layer:
    """`gap` is values between the rows of x, `dtype` that of what is multiplied: x, or what `pixels` or float32 `planes` become."""

    name: str
    x: tuple[int, int, int, int]
    w: tuple[int, int, int]
    convolution: ConvolutionDescriptor
    dtype: DType = F16
    gap: int = 0
    fused: bool = False
    pixels: bool = False
    planes: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    direction: Direction = Direction.FORWARD
    layout: str = "NHWC"
    blocks: int = 1
    kernel: str = ""
    wide: bool = False

    def case(self) -> Case:
        _, c, h, w = self.x
        pitch = w * c + self.gap
        x = TensorDescriptor(DType.UINT8 if self.pixels else self.dtype, self.x, (pitch * h, 1, pitch, c))
        if self.planes:
            pitch = w + self.gap
            x = TensorDescriptor(F32, self.x, (pitch * h * c, pitch * h, pitch, 1))
        filters = TensorDescriptor.packed((self.w[0], c, *self.w[1:]), F32 if self.wide else self.dtype, self.layout)
        y = TensorDescriptor.packed(self.convolution.output_shape(x.shape, filters.shape), self.dtype, "NHWC")
        conv = replace(self.convolution, math=MathType.TF32) if self.dtype is F32 else self.convolution
        row, leaky = TensorDescriptor.packed((1, self.w[0], 1, 1)), ActivationDescriptor.make("leaky_relu", 0.125)
        problem: Problem
        if self.pixels or self.planes:
            table = TensorDescriptor.packed((c, 256)) if self.pixels else None
            problem = ImageConvolutionProblem(x, filters, y, table, conv, row, leaky)
        elif not self.fused:
            problem = ConvolutionProblem(self.direction, x, filters, y, conv)
        else:
            alpha1 = 2.0**-9 if self.dtype is I8 else 0.5
            problem = FusedConvolutionProblem(x, filters, y, conv, row, row, y, leaky, alpha1, alpha2=-2.0)
        return Case(self.name, problem, self.alpha, self.beta)


LAYERS = (
    Layer("7x7 halved, 21 chunks", (2, 3, 58, 22), (64, 7, 7), ConvolutionDescriptor.make(padding=3, stride=2), fused=True),
    Layer("3x3, two tiles of filters", (1, 3, 16, 18), (72, 3, 3), ConvolutionDescriptor.make(padding=1), BF16, fused=True),
    Layer("11x11 by 4, rows of odd length", (1, 3, 71, 43), (8, 11, 11), ConvolutionDescriptor.make(padding=2, stride=4)),
    Layer("gray, uneven", (3, 1, 15, 13), (24, 4, 5), ConvolutionDescriptor.make(padding=((2, 0), (0, 9)), stride=(1, 3)),
          BF16, gap=3, alpha=-0.5, beta=2.0),
    Layer("one tap of 5", (2, 5, 15, 9), (16, 1, 1), ConvolutionDescriptor.make(dilation=2), gap=1, beta=-1.0),
    Layer("8x8 by 8, few stages", (3, 3, 72, 128), (8, 8, 8), ConvolutionDescriptor.make(stride=8)),
    Layer("pixels, 7x7 halved, whole words", (2, 3, 58, 24), (64, 7, 7), ConvolutionDescriptor.make(padding=3, stride=2),
          pixels=True),
    Layer("pixels, 11x11 by 4, one by one", (1, 3, 71, 43), (72, 11, 11), ConvolutionDescriptor.make(padding=2, stride=4),
          BF16, gap=1, pixels=True, alpha=-0.5, beta=2.0),
    Layer("planes, 7x7 halved", (2, 3, 58, 24), (64, 7, 7), ConvolutionDescriptor.make(padding=3, stride=2), planes=True),
    Layer("planes, 3x3, rows apart, two tiles of filters", (1, 3, 16, 20), (72, 3, 3), ConvolutionDescriptor.make(padding=1),
          BF16, gap=4, planes=True, alpha=-0.5, beta=2.0),
    Layer("planes, 4x4 by 4", (1, 3, 71, 44), (8, 4, 4), ConvolutionDescriptor.make(stride=4), planes=True),
    Layer("planes, gray, uneven", (3, 1, 15, 16), (24, 4, 5), ConvolutionDescriptor.make(padding=((2, 0), (0, 9)), stride=(1, 3)),
          BF16, planes=True),
    Layer("planes, more padding than image", (1, 4, 3, 4), (8, 3, 2), ConvolutionDescriptor.make(padding=5, stride=3), planes=True),
    Layer("more padding than image", (1, 4, 3, 2), (8, 3, 2), ConvolutionDescriptor.make(padding=4, stride=3)),
    Layer("tf32, 7x7 halved, two tiles of filters", (2, 3, 58, 22), (72, 7, 7), ConvolutionDescriptor.make(padding=3, stride=2),
          F32, fused=True, alpha=-0.5, beta=2.0),
    Layer("tf32, 11x11, rows one by one, upper halves alone", (1, 3, 27, 27), (36, 11, 11), ConvolutionDescriptor.make(), F32),
    Layer("tf32, gray, uneven", (3, 1, 15, 13), (24, 4, 5), ConvolutionDescriptor.make(padding=((2, 0), (0, 9)), stride=(1, 3)),
          F32, gap=3, beta=-1.0),
    Layer("tf32, more padding than image", (1, 4, 3, 2), (4, 3, 2), ConvolutionDescriptor.make(padding=4, stride=3), F32),
    Layer("int8, 7x7 halved, two tiles of filters", (2, 3, 58, 24), (80, 7, 7), ConvolutionDescriptor.make(padding=3, stride=2),
          I8, fused=True, alpha=2.0, beta=-1.0),
    Layer("int8, 11x11 by 4, rows of odd length", (1, 3, 71, 43), (16, 11, 11), ConvolutionDescriptor.make(padding=2, stride=4),
          I8, alpha=2.0**-9),
    Layer("int8, gray, uneven", (3, 1, 15, 12), (32, 4, 5), ConvolutionDescriptor.make(padding=((2, 0), (0, 9)), stride=(1, 3)),
          I8, gap=4, alpha=2.0**-9, beta=0.5),
    Layer("int8, more padding than image", (1, 4, 3, 2), (16, 3, 2), ConvolutionDescriptor.make(padding=4, stride=3), I8),
)  # fmt: skip

BACKWARD_FILTER = tuple(
    replace(layer, direction=Direction.BACKWARD_FILTER, kernel=f"convolution_wgmma_rows_backward_filter_{layer.kernel}")
    for layer in (
        Layer("7x7 halved, odd rows", (2, 3, 58, 40), (64, 7, 7), ConvolutionDescriptor.make(padding=3, stride=2),
              kernel="float16_8x24"),
        Layer("3x3, two tiles of filters, three blocks", (2, 3, 31, 24), (72, 3, 3), ConvolutionDescriptor.make(padding=1),
              BF16, alpha=0.5, beta=-1.0, layout="NCHW", blocks=3, kernel="bfloat16_4x16"),
        Layer("11x11 by 4, rows of odd length", (1, 3, 71, 43), (8, 11, 11), ConvolutionDescriptor.make(padding=2, stride=4),
              kernel="float16_12x40"),
        Layer("9x11, blocks as many as rectangles", (1, 3, 40, 48), (8, 9, 11), ConvolutionDescriptor.make(), BF16, blocks=50,
              kernel="bfloat16_12x40"),
        Layer("4x5, uneven, rows apart", (3, 4, 15, 13), (24, 4, 5),
              ConvolutionDescriptor.make(padding=((2, 0), (0, 9)), stride=(1, 3)), BF16, gap=3, alpha=-0.5, beta=2.0,
              kernel="bfloat16_8x24"),
        Layer("one tap of 5", (2, 5, 15, 9), (16, 1, 1), ConvolutionDescriptor.make(dilation=2), gap=1, beta=-1.0,
              kernel="float16_4x16"),
        Layer("8x8 by 8, small rectangles", (2, 3, 72, 128), (8, 8, 8), ConvolutionDescriptor.make(stride=8),
              kernel="float16_8x24"),
        Layer("more padding than image", (1, 4, 3, 2), (8, 3, 2), ConvolutionDescriptor.make(padding=4, stride=3),
              kernel="float16_4x16"),
        Layer("7x7 halved, in float32", (2, 3, 58, 40), (72, 7, 7), ConvolutionDescriptor.make(padding=3, stride=2),
              alpha=0.5, beta=-1.0, kernel="float16_8x24", wide=True),
        Layer("3x3, three blocks, in float32", (2, 3, 31, 24), (8, 3, 3), ConvolutionDescriptor.make(padding=1), BF16,
              layout="NCHW", blocks=3, kernel="bfloat16_4x16", wide=True),
    )
)  # fmt: skip
KERNELS = {layer.kernel for layer in BACKWARD_FILTER} | {
    f"convolution_wgmma_rows_backward_filter_parts_{'float' if layer.wide else layer.dtype.value}"
    for layer in BACKWARD_FILTER
}
"""Of gradients, what the cases here run."""


def _handle(multiprocessors: int, monkeypatch: pytest.MonkeyPatch) -> Handle:
    monkeypatch.setattr("dnncore.cuda.figures.of_device", lambda *_: replace(H200, multiprocessors=multiprocessors))
    return Handle(CUDA_DEVICES[0])


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_a_warpgroup_takes_several_rectangles(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    with _handle(-(-layer.w[0] // 64), monkeypatch) as few:
        case = layer.case()
        assert "convolution_wgmma_rows" in few.plan(case.problem, algorithm=ALGORITHM).describe()
        check(few, case, ALGORITHM)


@pytest.mark.parametrize("layer", BACKWARD_FILTER, ids=lambda layer: layer.name)
def test_blocks_share_the_rectangles_of_the_gradient(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    with _handle(layer.blocks * -(-layer.w[0] // 64), monkeypatch) as few:
        case = layer.case()
        assert f"{layer.kernel}: " in few.plan(case.problem, algorithm=ALGORITHM).describe()
        check(few, case, ALGORITHM)


@pytest.mark.parametrize(("size", "stride"), [(3, 2), (7, 2), (7, 4), (8, 8), (11, 4)])
def test_a_stage_is_always_the_same_pairs(size: int, stride: int) -> None:
    """Nothing orders the two pairs of a producer and a consumer: one that came to a stage of the other's could be a phase early."""
    conv = ConvolutionDescriptor.make(padding=size // 2, stride=stride)
    problem = Layer("", (64, 3, 224, 224), (64, size, size), conv).case().problem
    assert isinstance(problem, ConvolutionProblem)
    offer = WgmmaRows(ALGORITHM, IMPLICIT_GEMM).offer(problem, H200)
    assert not isinstance(offer, str)
    ((choice,),) = (offer.prepare(),)
    assert np.frombuffer(choice.aligned[0].params, _PARAMS)["stages"] % 2 == 0


def test_images_may_begin_at_any_value_and_outputs_are_computed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with _handle(1, monkeypatch) as few:
        check(few, LAYERS[0].case(), ALGORITHM, guard=GUARD + 1)
        check(few, next(layer for layer in LAYERS if layer.planes).case(), ALGORITHM, guard=GUARD + 1)
        check(few, BACKWARD_FILTER[-1].case(), ALGORITHM, guard=GUARD + 1)


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
def test_infinity_reaches_those_outputs_alone_whose_taps_meet_it(dtype: DType) -> None:
    """Chunks are filled up with zeros: of neighbours in x, infinity times a weight of zero would be NaN."""
    x, w = np.ones((1, 3, 24, 20), dtype.numpy), np.ones((8, 3, 7, 7), dtype.numpy)
    x[0, 1, 9, 10] = np.inf
    conv = ConvolutionDescriptor.make(padding=3, stride=2, math=MathType.TF32)
    padded = np.pad(np.isinf(x[0]).any(axis=0), 3)
    meets = [[padded[2 * p : 2 * p + 7, 2 * q : 2 * q + 7].any() for q in range(10)] for p in range(12)]
    with Handle(CUDA_DEVICES[0]) as own:
        images, filters = own.upload(x, "NHWC"), own.upload(w, "NHWC")
        y = own.tensor(TensorDescriptor.packed((1, 8, 12, 10), dtype, "NHWC"))
        ops.convolution_forward(own, 1.0, images, filters, conv, 0.0, y, algorithm=ALGORITHM)
        found = y.numpy()
    np.testing.assert_array_equal(np.isposinf(found), np.broadcast_to(meets, found.shape))
    assert not np.isnan(found).any()


def test_float32_is_rounded_to_the_nearest_of_tf32() -> None:
    """Which would be 1 for all of x if its last bits were cut off; a NaN whose last bits alone say so stays one."""
    x, w = np.full((1, 1, 4, 6), 1 + 2**-10 - 2**-12, np.float32), np.ones((4, 1, 1, 1), np.float32)
    x[0, 0, 1, 2] = np.uint32(0x7F800001).view(np.float32)
    expected = np.broadcast_to(np.where(np.isnan(x), np.nan, np.float32(1 + 2**-10)), (1, 4, 4, 6))
    conv = ConvolutionDescriptor.make(math=MathType.TF32)
    with Handle(CUDA_DEVICES[0]) as own:
        y = own.tensor(TensorDescriptor.packed((1, 4, 4, 6), F32, "NHWC"))
        ops.convolution_forward(
            own, 1.0, own.upload(x, "NHWC"), own.upload(w, "NHWC"), conv, 0.0, y, algorithm=ALGORITHM
        )
        np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.parametrize(("width", "columns"), [(20, 7), (24, 9)], ids=["loaded", "copied"])
def test_infinity_reaches_those_taps_alone_that_meet_it(width: int, columns: int) -> None:
    """dy is zeros beyond its rows and columns, where a rectangle meets pixels all the same: infinity times them would be NaN."""
    x, dy = np.ones((1, 3, 24, width), np.float16), np.ones((1, 8, 9, columns), np.float16)
    place = 18, width - 5
    x[0, 1, *place] = np.inf
    conv = ConvolutionDescriptor.make(stride=2)
    outputs = [(p, q) for p in range(9) for q in range(columns)]
    meets = [[any((2 * p + r, 2 * q + s) == place for p, q in outputs) for s in range(7)] for r in range(7)]
    expected = np.zeros((8, 3, 7, 7), bool)
    expected[:, 1] = meets
    with Handle(CUDA_DEVICES[0]) as own:
        images, gradient = own.upload(x, "NHWC"), own.upload(dy, "NHWC")
        dw = own.tensor(TensorDescriptor.packed((8, 3, 7, 7), F16, "NHWC"))
        ops.convolution_backward_filter(own, 1.0, images, gradient, conv, 0.0, dw, algorithm=ALGORITHM)
        found = dw.numpy()
    np.testing.assert_array_equal(np.isposinf(found), expected)
    assert not np.isnan(found).any()


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_pixels_give_the_bits_of_images_that_were_normalised_before(dtype: DType) -> None:
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (2, 31, 28, 3), np.uint8)
    lookups, filters = rng.uniform(-2, 2, (3, 256)).astype("f4"), rng.uniform(-1, 1, (64, 3, 7, 7)).astype(dtype.numpy)
    conv, relu = ConvolutionDescriptor.make(padding=3, stride=2), ActivationDescriptor.make("relu")
    with Handle(CUDA_DEVICES[0]) as own:
        x, table, w = own.upload(pixels), own.upload(lookups), own.upload(filters, "NHWC")
        x = x.view(x.descriptor.transposed(0, 3, 1, 2))
        images = own.tensor(TensorDescriptor.packed(x.shape, dtype, "NHWC"))
        found, expected = (
            own.tensor(TensorDescriptor.packed(conv.output_shape(x.shape, w.shape), dtype, "NHWC")) for _ in range(2)
        )
        ops.image_convolution(own, 1.0, x, table, w, conv, None, relu, 0.0, found, algorithm=ALGORITHM)
        ops.image_normalization(own, 1.0, x, table, 0.0, images)
        ops.convolution_bias_activation_forward(own, 1.0, images, w, conv, None, relu, expected, algorithm=ALGORITHM)
        np.testing.assert_array_equal(found.numpy().view(np.uint16), expected.numpy().view(np.uint16))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_planes_give_the_bits_of_images_that_were_cast_before(dtype: DType) -> None:
    """Of numbers that are ties, overflow 16 bits, are no numbers, or lie beside zeros of the padding."""
    rng = np.random.default_rng(3)
    planes = rng.uniform(-2, 2, (2, 3, 31, 28)).astype("f4")
    planes[0, 1, 9, 10], planes[1, 2, 0, 0], planes[1, 0, 30, 27] = np.inf, np.nan, -3e38
    planes[0, 0, :, :4], planes[0, 2, 5] = 1 + 2**-11, 2**-25
    filters = rng.uniform(-1, 1, (64, 3, 7, 7)).astype(dtype.numpy)
    conv, relu = ConvolutionDescriptor.make(padding=3, stride=2), ActivationDescriptor.make("relu")
    with Handle(CUDA_DEVICES[0]) as own:
        x, w = own.upload(planes), own.upload(filters, "NHWC")
        images = own.tensor(TensorDescriptor.packed(x.shape, dtype, "NHWC"))
        found, expected = (
            own.tensor(TensorDescriptor.packed(conv.output_shape(x.shape, w.shape), dtype, "NHWC")) for _ in range(2)
        )
        ops.image_convolution(own, 1.0, x, None, w, conv, None, relu, 0.0, found, algorithm=ALGORITHM)
        ops.add(own, 1.0, x, 0.0, images)
        ops.convolution_bias_activation_forward(own, 1.0, images, w, conv, None, relu, expected, algorithm=ALGORITHM)
        np.testing.assert_array_equal(found.numpy().view(np.uint16), expected.numpy().view(np.uint16))
