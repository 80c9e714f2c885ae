"""Images of 8 bits a channel, and of float32 that are rounded."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ImageConvolutionProblem, ImageNormalizationProblem, ImageResizeProblem
from tests.cases.case import Case, describe

__all__ = ["CASES", "CONVOLUTIONS"]

F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
BGR = (2, 1, 0)


@dataclass(frozen=True)
class Normalization:
    """Images [N, C, H, W] into [N, C, P, Q]."""

    name: str
    x: tuple[int, int, int, int]
    size: tuple[int, int]
    dtype: DType = F32
    layouts: tuple[str, str] = ("NHWC", "NCHW")
    offset: tuple[int, int] = (0, 0)
    order: tuple[int, ...] | None = None
    border: tuple[int, ...] | None = None
    mean: str | None = None
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def case(self) -> Case:
        batch, channels, *_ = self.x
        of_x, of_y = self.layouts
        problem = ImageNormalizationProblem(
            describe(self.x, DType.UINT8, of_x),
            TensorDescriptor.packed((channels, 256)),
            describe((batch, channels, *self.size), self.dtype, of_y),
            None if self.mean is None else describe((channels, *self.size), F32, self.mean),
            self.offset,
            self.order,
            self.border,
        )
        return Case(f"image-normalization-{self.name}", problem, self.alpha, self.beta)


NORMALIZATIONS = (
    Normalization("photographs", (2, 3, 4, 8), (4, 8)),
    Normalization("nhwc-fp16", (2, 3, 5, 12), (5, 12), F16, ("NHWC", "NHWC"), order=BGR),
    Normalization("nhwc-bf16-crop", (1, 3, 9, 11), (5, 7), BF16, ("NHWC", "NHWC"), (3, 1)),
    Normalization("gray-fp16-blend", (3, 1, 7, 16), (7, 16), F16, alpha=2.0, beta=-0.5),
    Normalization("gray-bf16", (1, 1, 3, 5), (3, 5), BF16),
    Normalization(
        "border", (2, 3, 3, 5), (7, 13), F32, offset=(-2, -4), order=BGR, border=(7, 255, 0), alpha=-1.5, beta=1.0
    ),
    Normalization("nowhere-near", (1, 3, 4, 4), (3, 6), F32, offset=(9, -20), border=(1, 2, 3)),
    Normalization("gray-mean-image", (2, 1, 6, 8), (4, 8), F32, offset=(1, 0), mean="NCHW"),
    Normalization("mean-image-with-gaps", (2, 3, 4, 9), (4, 9), F32, order=BGR, mean="gaps"),
    Normalization("planes", (2, 3, 4, 5), (4, 5), F32, ("NCHW", "NHWC"), mean="NCHW"),
    Normalization(
        "gaps-fp16", (2, 2, 3, 5), (3, 4), F16, ("gaps", "gaps"), (0, -1), (1, 1), (200, 9), alpha=0.5, beta=2.0
    ),
    Normalization("four-channels-bf16", (1, 4, 3, 3), (2, 3), BF16, order=(3, 0, 0, 1)),
    Normalization("no-images", (0, 3, 4, 4), (4, 4)),
)

# name, bytes of images, words of taps, [N, C, P, Q], layout, border, whether it rounds between, alpha, beta
RESIZES = (
    ("photographs", 3000, 2000, (3, 3, 7, 5), "NHWC", (9, 0, 255), True, 1.0, 0.0),
    ("gray-blend", 800, 900, (2, 1, 6, 9), "NCHW", None, True, 0.5, -0.25),
    ("alpha-channel", 900, 500, (2, 4, 3, 3), "gaps", None, False, 1.0, 0.0),
    ("no-images", 16, 16, (0, 3, 4, 4), "NHWC", None, True, 1.0, 0.0),
)

ROWS = ("implicit_gemm_wgmma_rows",)


@dataclass(frozen=True)
class Convolution:
    """Images [N, C, H, W] and K filters of R x S; `layouts` of x and of y; `rounded` are those of float32."""

    name: str
    x: tuple[int, int, int, int]
    w: tuple[int, int, int]
    padding: int = 0
    stride: int = 1
    dtype: DType = F16
    layouts: tuple[str, str] = ("NHWC", "NHWC")
    biased: bool = True
    rounded: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    written_for: tuple[str, ...] = ()

    @property
    def case(self) -> Case:
        conv = ConvolutionDescriptor.make(padding=self.padding, stride=self.stride)
        of_x, of_y = self.layouts
        filters = (self.w[0], self.x[1], *self.w[1:])
        problem = ImageConvolutionProblem(
            describe(self.x, F32 if self.rounded else DType.UINT8, of_x),
            describe(filters, self.dtype, of_y),
            describe(conv.output_shape(self.x, filters), self.dtype, of_y),
            None if self.rounded else TensorDescriptor.packed((self.x[1], 256)),
            conv,
            TensorDescriptor.packed((1, self.w[0], 1, 1)) if self.biased else None,
            ActivationDescriptor.make("relu") if self.biased else None,
        )
        return Case(f"image-convolution-{self.name}", problem, self.alpha, self.beta, self.written_for)


CONVOLUTIONS = (
    Convolution("7x7-halved", (2, 3, 15, 12), (16, 7, 7), 3, 2),
    Convolution("odd-rows-bf16", (1, 3, 7, 9), (72, 3, 3), 1, 1, BF16, alpha=-0.5, beta=2.0, written_for=ROWS),
    Convolution("gray-no-bias", (3, 1, 9, 10), (8, 5, 4), 4, 3, biased=False, written_for=ROWS),
    Convolution("four-channels", (1, 4, 6, 5), (8, 2, 3), 0, 2, written_for=ROWS),
    Convolution("planes", (2, 3, 6, 5), (5, 3, 3), 1, 1, layouts=("NCHW", "NCHW")),
    Convolution("rounded-7x7-halved", (2, 3, 15, 12), (16, 7, 7), 3, 2, layouts=("NCHW", "NHWC"), rounded=True),
    Convolution(
        "rounded-3x3-bf16", (1, 3, 17, 20), (72, 3, 3), 1, 1, BF16, ("NCHW", "NHWC"), False, True, -0.5, 2.0, ROWS
    ),
    Convolution("rounded-odd-rows", (2, 3, 7, 9), (8, 3, 3), 1, 2, layouts=("NCHW", "NHWC"), rounded=True),
    Convolution("rounded-gaps", (2, 4, 6, 5), (5, 2, 3), 0, 2, BF16, ("gaps", "NCHW"), rounded=True, beta=0.5),
    Convolution("fp32-blend", (2, 3, 6, 7), (4, 5, 5), 2, 2, F32, ("gaps", "NCHW"), alpha=2.0, beta=-1.0),
)

CASES = (
    *(one.case for one in CONVOLUTIONS),
    *(one.case for one in NORMALIZATIONS),
    *(
        Case(
            f"image-resize-{name}",
            ImageResizeProblem(
                TensorDescriptor.packed((nbytes,), DType.UINT8),
                TensorDescriptor.packed((shape[0], 5), DType.INT32),
                TensorDescriptor.packed((words,), DType.INT32),
                describe(shape, DType.UINT8, layout),
                border,
                rounds_between,
            ),
            alpha,
            beta,
        )
        for name, nbytes, words, shape, layout, border, rounds_between, alpha, beta in RESIZES
    ),
)
