"""Every distinct convolution and fully connected layer of well-known nets, as the zoo's graphs have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.layers import LayerGeometry
from dnncore.nn.graph import Graph
from dnncore.nn.operators.convolution import Convolution
from dnncore.nn.operators.inner_product import InnerProduct
from dnncore.nn.zoo import ZOO

__all__ = ["GROUPED", "NETS", "SQUARES", "LinearGeometry", "convolutions", "layer_of", "linear_layers"]

NETS = ("resnet50", "vgg16", "mobilenet_v2", "googlenet", "alexnet")

GROUPED = tuple(
    LayerGeometry(f"resnext50-3x3-{channels}-{size}{'-s2' if stride == 2 else ''}", 64, channels, size, channels, 3, stride, 1, 32)
    for channels, size, stride in (
        (128, 56, 1), (256, 56, 2), (256, 28, 1), (512, 28, 2), (512, 14, 1), (1024, 14, 2), (1024, 7, 1),
    )
)  # fmt: skip
"""Of ResNeXt-50 (32x4d, arXiv 1611.05431), which is not in the zoo: 32 groups."""


@dataclass(frozen=True)
class LinearGeometry:
    """y [N, K] = x [N, C] times the transpose of w [K, C]. Immutable."""

    name: str
    n: int
    c: int
    k: int

    @property
    def shrunk(self) -> LinearGeometry:
        """So small that any machine computes it at once: for dry runs."""
        return replace(self, n=min(self.n, 4), c=min(self.c, 32), k=min(self.k, 16))


SQUARES = tuple(LinearGeometry(f"square-{size}", size, size, size) for size in (1024, 4096, 8192))
"""Of no net: large products, which as a layer and its gradients have three of the ways in which two matrices can lie."""


def _graphs() -> Iterator[Graph]:
    for net in NETS:
        yield ZOO[net]()


def convolutions(batch: int) -> dict[LayerGeometry, tuple[str, ...]]:
    """The nets that have each, for so many images of 224 x 224."""
    found: dict[LayerGeometry, dict[str, None]] = {}
    for graph in _graphs():
        specs = graph.specs(batch)
        for node in graph.nodes:
            if isinstance(node.operator, Convolution):
                x, w = (specs[name].shape for name in node.reads[:2])
                layer = layer_of(x, w, node.operator)
                found.setdefault(layer, {})[graph.name] = None
    return {layer: tuple(nets) for layer, nets in found.items()}


def layer_of(x: tuple[int, ...], w: tuple[int, ...], convolution: Convolution) -> LayerGeometry:
    """What a node of a graph convolves: x [N, C, H, H] with w [K, C/G, R, R]."""
    (n, c, height, width), (k, _, r, s) = x, w
    stride, padding, groups = convolution.stride, convolution.padding, convolution.groups
    assert height == width
    assert r == s
    assert isinstance(stride, int)
    assert isinstance(padding, int)
    kind = f"-g{groups}" if groups > 1 else ""
    name = f"{r}x{r}-{c}-{k}-{height}{f'-s{stride}' if stride > 1 else ''}{kind}"
    return LayerGeometry(name, n, c, height, k, r, stride, padding, groups)


def linear_layers(batch: int) -> dict[LinearGeometry, tuple[str, ...]]:
    """The nets that have each fully connected layer, for so many images."""
    found: dict[LinearGeometry, dict[str, None]] = {}
    for graph in _graphs():
        specs = graph.specs(batch)
        for node in graph.nodes:
            if isinstance(node.operator, InnerProduct):
                k, c = specs[node.reads[1]].shape
                found.setdefault(LinearGeometry(f"linear-{c}-{k}", batch, c, k), {})[graph.name] = None
    return {layer: tuple(nets) for layer, nets in found.items()}
