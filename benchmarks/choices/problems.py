"""Which problems are measured: what nets ask for when they are served and trained, and layers that libraries are compared by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.kernels.precision import Precision
from benchmarks.layers import LAYERS, LayerGeometry
from benchmarks.net_layers import layer_of
from dnncore import RELU, TensorDescriptor
from dnncore.descriptors import MathType
from dnncore.figures import DeviceFigures
from dnncore.nn.estimate import estimate
from dnncore.nn.model import Model
from dnncore.nn.operators.convolution import Convolution
from dnncore.nn.passes import for_inference
from dnncore.nn.zoo import ZOO
from dnncore.problems import Direction, FusedConvolutionProblem, Problem

__all__ = ["anchors", "of_net"]


def of_net(net: str, precisions: Sequence[Precision], figures: DeviceFigures) -> Callable[[int], Iterator[Problem]]:
    """What a net of the zoo multiplies, by the number of images: fused as it is served, then each layer in three directions.

    Args:
        net: Its name.
        precisions: Element types, and how the layers lie that are trained.
        figures: Of the GPU that it is lowered for.
    """
    graph = ZOO[net]()
    model = Model(graph, graph.initialize(0))
    dtypes = [precision.dtype for precision in precisions if precision.math is MathType.STRICT]
    served = [for_inference(model, dtype).graph for dtype in dtypes]
    convolutions = [(node, node.operator) for node in graph.nodes if isinstance(node.operator, Convolution)]

    def of_batch(batch: int) -> Iterator[Problem]:
        for each in served:
            plans = (plan for one in estimate(each, figures, batch).computations for plan in one.plans)
            yield from (plan.problem for plan in plans if plan.problem.macs)
        specs = graph.specs(batch)
        for node, operator in convolutions:
            x, w = (specs[name].shape for name in node.reads[:2])
            for precision in precisions:
                yield from _directions(layer_of(x, w, operator), precision)

    return of_batch


def anchors(precisions: Sequence[Precision], *, shrunken: bool = False) -> Iterator[Problem]:
    """The layers of `benchmarks.layers` in all directions, and with a bias and ReLU; for dry runs shrunken."""
    for precision in precisions:
        for layer in LAYERS:
            own = layer.shrunk if shrunken else layer
            yield from _directions(own, precision)
            forward = own.problem(Direction.FORWARD, precision.dtype, precision.layout, precision.math)
            bias = TensorDescriptor.packed((1, own.k, 1, 1), precision.dtype)
            operands = forward.x, forward.w, forward.y, forward.convolution
            yield FusedConvolutionProblem(*operands, bias=bias, activation=RELU)


def _directions(layer: LayerGeometry, precision: Precision) -> Iterator[Problem]:
    for direction in Direction:
        yield layer.problem(direction, precision.dtype, precision.layout, precision.math)
