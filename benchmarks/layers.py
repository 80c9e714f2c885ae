"""Convolution layers that people compare libraries by.

Sources: soumith/convnet-benchmarks (the five layers of the cuDNN paper), the 2014 cuDNN announcement, VGG, ResNet-50.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dnncore import ConvolutionDescriptor, DType, MathType, TensorDescriptor
from dnncore.descriptors import Layout
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["LAYERS", "LayerGeometry"]


@dataclass(frozen=True)
class LayerGeometry:
    """N C HxW -> K with a square filter, in G groups."""

    name: str
    n: int
    c: int
    size: int
    k: int
    filter: int
    stride: int
    padding: int
    groups: int = 1

    def problem(
        self,
        direction: Direction,
        dtype: DType = DType.FLOAT32,
        layout: Layout = Layout.NCHW,
        math: MathType = MathType.STRICT,
    ) -> ConvolutionProblem:
        """One direction, all tensors in one layout (NHWC: the filter is KRSC)."""
        conv = ConvolutionDescriptor.make(stride=self.stride, padding=self.padding, groups=self.groups, math=math)
        x = (self.n, self.c, self.size, self.size)
        w = (self.k, self.c // self.groups, self.filter, self.filter)
        return ConvolutionProblem(
            direction,
            TensorDescriptor.packed(x, dtype, layout),
            TensorDescriptor.packed(w, dtype, layout),
            TensorDescriptor.packed(conv.output_shape(x, w), dtype, layout),
            conv,
        )

    @property
    def shrunk(self) -> LayerGeometry:
        """So small that any machine computes it at once, and of the same kind: for dry runs."""
        per_group = min(self.c // self.groups, 8), min(self.k // self.groups, 8)
        groups = min(self.groups, 16)
        size = max(self.filter - 2 * self.padding, min(self.size, 2 * self.stride + 3))
        return replace(self, n=1, c=per_group[0] * groups, size=size, k=per_group[1] * groups, groups=groups)


LAYERS = tuple(
    LayerGeometry(*row)
    for row in (
        ("cudnn-paper-1", 128, 3, 128, 96, 11, 1, 0),
        ("cudnn-paper-2", 128, 64, 64, 128, 9, 1, 0),
        ("cudnn-paper-3", 128, 128, 32, 128, 9, 1, 0),
        ("cudnn-paper-4", 128, 128, 16, 128, 7, 1, 0),
        ("cudnn-paper-5", 128, 384, 13, 384, 3, 1, 0),
        ("announcement-2014", 128, 96, 221, 256, 7, 2, 0),
        ("alexnet-conv1", 128, 3, 224, 64, 11, 4, 2),
        ("vgg-3x3-64", 32, 64, 224, 64, 3, 1, 1),
        ("vgg-3x3-512", 32, 512, 28, 512, 3, 1, 1),
        ("r50-conv1", 64, 3, 224, 64, 7, 2, 3),
        ("r50-3x3-64", 64, 64, 56, 64, 3, 1, 1),
        ("r50-1x1-64-256", 64, 64, 56, 256, 1, 1, 0),
        ("r50-1x1-256-64", 64, 256, 56, 64, 1, 1, 0),
        ("r50-3x3-128", 64, 128, 28, 128, 3, 1, 1),
        ("r50-3x3-256", 64, 256, 14, 256, 3, 1, 1),
        ("r50-1x1-1024-256", 64, 1024, 14, 256, 1, 1, 0),
        ("r50-3x3-512", 64, 512, 7, 512, 3, 1, 1),
        ("r50-1x1-512-2048", 64, 512, 7, 2048, 1, 1, 0),
        ("r50-3x3-256-n1", 1, 256, 14, 256, 3, 1, 1),
    )
)
