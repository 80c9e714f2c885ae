"""Operations called like this before: nothing is described, checked as a problem, chosen or planned again."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable

import pytest

from dnncore import RELU, ConvolutionDescriptor, Handle, Tensor, TensorDescriptor, descriptors, ops, planner, problems
from dnncore.descriptors import Layout, LRNDescriptor, PoolingDescriptor, PoolingMode
from dnncore.runner import Runner

CONV, LRN = ConvolutionDescriptor.make(padding=1), LRNDescriptor.make(n=3)
MAXIMA = PoolingDescriptor.make(PoolingMode.MAX, 2, spatial_ndim=2)
IMAGES, POOLED, CHANNELS = (2, 4, 6, 8), (2, 4, 3, 4), (1, 4, 1, 1)
NOT_ENQUEUED = {"dropout_state"}


def _calls(handle: Handle) -> dict[str, Callable[[], None]]:
    """Each operation once, on tensors without values."""

    def new(*shape: int, dtype: str = "float32", layout: Layout = Layout.NCHW) -> Tensor:
        return handle.tensor(TensorDescriptor.packed(shape, dtype, layout))

    h = handle
    x, y, z, dx, dy, gradient = (new(*IMAGES) for _ in range(6))
    w, dw, velocity, square = (new(4, 4, 3, 3) for _ in range(4))
    scale, bias, dscale, dbias, mean, inv_std = (new(*CHANNELS) for _ in range(6))
    scale_of_rows, dscale_of_rows, dbias_of_rows = (new(1, 1, 6, 8) for _ in range(3))
    mean_of_rows, inv_std_of_rows = (new(2, 4, 1, 1) for _ in range(2))
    mean_of_groups, inv_std_of_groups = (new(2, 2, 1, 1) for _ in range(2))
    pooled, dpooled, indices = new(*POOLED), new(*POOLED), new(*POOLED, dtype="int32")
    columns, condition, state = new(2, 36, 48), new(*IMAGES, dtype="bool"), new(4, dtype="int32")
    pixels, table = new(*IMAGES, dtype="uint8", layout=Layout.NHWC), new(4, 256)
    bytes_, of_images, taps = new(500, dtype="uint8"), new(2, 5, dtype="int32"), new(90, dtype="int32")
    rows, labels, loss, drows = new(3, 5), new(3, dtype="int32"), new(3), new(3, 5)
    a, b, c = new(3, 5), new(5, 4), new(3, 4)
    weights, dweights, products = new(7, 192), new(7, 192), new(2, 7)
    values, places = new(2, 4, 6, 2), new(2, 4, 6, 2, dtype="int32")
    half, narrow = (new(*IMAGES, dtype="float16", layout=Layout.NHWC) for _ in range(2))
    depthwise, project = new(4, 1, 3, 3, dtype="float16"), new(4, 4, 1, 1, dtype="float16", layout=Layout.NHWC)
    filters, narrow_pooled = (new(*shape, dtype="float16", layout=Layout.NHWC) for shape in ((4, 4, 3, 3), POOLED))
    return {
        "activation_forward": lambda: ops.activation_forward(h, RELU, 1, x, 0, y),
        "activation_backward": lambda: ops.activation_backward(h, RELU, 1, y, dy, x, 0, dx),
        "adam_step": lambda: ops.adam_step(
            *(h, -1, [dw, dbias], [velocity, mean], [square, inv_std], 1, [w, bias]),
            momentum=0.9,
            momentum2=0.99,
            epsilon=1e-8,
        ),
        "add": lambda: ops.add(h, 1, bias, 1, y),
        "batch_norm_forward": lambda: ops.batch_norm_forward(h, "spatial", 1, x, 0, y, scale, bias, mean, inv_std),
        "batch_norm_backward": lambda: ops.batch_norm_backward(
            h, "spatial", 1, 0, 1, 0, x, dy, dx, scale, dscale, dbias, mean, inv_std
        ),
        "batch_norm_inference": lambda: ops.batch_norm_inference(h, "spatial", 1, x, 0, y, scale, bias, mean, inv_std),
        "binary": lambda: ops.binary(h, "mul", 1, x, 1, bias, 0, y),
        "bottleneck": lambda: ops.bottleneck(h, 1, half, project, filters, project, 0, narrow),
        "col2im": lambda: ops.col2im(h, 1, columns, CONV, (3, 3), 0, x),
        "convolution_backward_bias": lambda: ops.convolution_backward_bias(h, 1, dy, 0, dbias),
        "convolution_backward_data": lambda: ops.convolution_backward_data(h, 1, w, dy, CONV, 0, dx),
        "convolution_backward_filter": lambda: ops.convolution_backward_filter(h, 1, x, dy, CONV, 0, dw),
        "convolution_bias_activation_backward": lambda: ops.convolution_bias_activation_backward(
            h,
            1,
            x,
            w,
            CONV,
            RELU,
            y,
            dy,
            gradient,
            scale=scale,
            dx=dx,
            dw=dw,
            dbias=dbias,
            dscale=dscale,
            filter_gradient=dw,
        ),
        "convolution_bias_activation_forward": lambda: ops.convolution_bias_activation_forward(
            h, 1, x, w, CONV, bias, RELU, y, z=z
        ),
        "convolution_forward": lambda: ops.convolution_forward(h, 1, x, w, CONV, 0, y),
        "cross_entropy_backward": lambda: ops.cross_entropy_backward(h, 1, rows, labels, 0, drows),
        "cross_entropy_forward": lambda: ops.cross_entropy_forward(h, 1, rows, labels, 0, loss),
        "dropout_backward": lambda: ops.dropout_backward(h, 0.5, 1, dy, state, 0, dx),
        "dropout_forward": lambda: ops.dropout_forward(h, 0.5, 1, x, state, 0, y),
        "group_norm_backward": lambda: ops.group_norm_backward(
            h, 2, 1, 0, 1, 0, x, dy, dx, scale, dscale, dbias, mean_of_groups, inv_std_of_groups
        ),
        "group_norm_forward": lambda: ops.group_norm_forward(
            h, 2, 1, x, 0, y, scale, bias, mean_of_groups, inv_std_of_groups
        ),
        "im2col": lambda: ops.im2col(h, 1, x, CONV, (3, 3), 0, columns),
        "image_convolution": lambda: ops.image_convolution(h, 1, pixels, table, w, CONV, bias, RELU, 0, y),
        "image_normalization": lambda: ops.image_normalization(h, 1, pixels, table, 0, y),
        "image_resize": lambda: ops.image_resize(h, 1, bytes_, of_images, taps, 0, pixels),
        "inner_product_backward_data": lambda: ops.inner_product_backward_data(h, 1, weights, products, 0, dx),
        "inner_product_backward_weights": lambda: ops.inner_product_backward_weights(h, 1, x, products, 0, dweights),
        "inner_product_forward": lambda: ops.inner_product_forward(h, 1, x, weights, 0, products),
        "inverted_residual": lambda: ops.inverted_residual(h, 1, half, depthwise, project, 0, narrow),
        "layer_norm_backward": lambda: ops.layer_norm_backward(
            *(h, 2, 1, 0, 1, 0, x, dy, dx, scale_of_rows, dscale_of_rows, dbias_of_rows, mean_of_rows, inv_std_of_rows)
        ),
        "layer_norm_forward": lambda: ops.layer_norm_forward(
            h, 2, 1, x, 0, y, scale_of_rows, dbias_of_rows, mean_of_rows, inv_std_of_rows
        ),
        "lrn_backward": lambda: ops.lrn_backward(h, LRN, 1, y, dy, x, 0, dx),
        "lrn_forward": lambda: ops.lrn_forward(h, LRN, 1, x, 0, y),
        "matmul": lambda: ops.matmul(h, 1, a, b, 0, c),
        "momentum_step": lambda: ops.momentum_step(
            h, -1, [dw, dbias], [velocity, mean], 1, [w, bias], momentum=0.9, decay=0.1
        ),
        "pooled_convolution": lambda: ops.pooled_convolution(h, 1, half, filters, CONV, 0, narrow_pooled),
        "pooling_backward": lambda: ops.pooling_backward(h, 1, pooled, dpooled, x, MAXIMA, 0, dx),
        "pooling_backward_indices": lambda: ops.pooling_backward_indices(h, 1, dpooled, indices, MAXIMA, 0, dx),
        "pooling_forward": lambda: ops.pooling_forward(h, 1, x, MAXIMA, 0, pooled, indices),
        "reduce": lambda: ops.reduce(h, "norm2", 1, x, 0, bias),
        "rms_norm_backward": lambda: ops.rms_norm_backward(
            h, 2, 1, 0, 1, 0, x, dy, dx, scale_of_rows, dscale_of_rows, inv_std_of_rows
        ),
        "rms_norm_forward": lambda: ops.rms_norm_forward(h, 2, 1, x, 0, y, scale_of_rows, inv_std_of_rows),
        "scale_tensor": lambda: ops.scale_tensor(h, 2, y),
        "set_tensor": lambda: ops.set_tensor(h, 2, y),
        "softmax_backward": lambda: ops.softmax_backward(h, "accurate", "channel", 1, y, dy, 0, dx),
        "softmax_forward": lambda: ops.softmax_forward(h, "accurate", "channel", 1, x, 0, y),
        "sum_to": lambda: ops.sum_to(h, 1, x, 0, bias),
        "top_k": lambda: ops.top_k(h, 3, 1, x, 0, values, places),
        "transform": lambda: ops.transform(h, 1, x, 0, half),
        "unary": lambda: ops.unary(h, "exp", 1, x, 0, y),
        "where": lambda: ops.where(h, 1, condition, x, bias, 0, y),
    }


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often descriptors, problems and plans were made, and choices, by their names."""
    found: Counter[str] = Counter()

    def count(where: object, name: str, what: str) -> None:
        own = getattr(where, name)

        def counted(*arguments: object, **settings: object) -> object:
            found[what] += 1
            return own(*arguments, **settings)

        monkeypatch.setattr(where, name, counted)

    for kind in {getattr(module, name) for module in (descriptors, problems) for name in module.__all__}:
        if isinstance(kind, type) and "__post_init__" in vars(kind):
            count(kind, "__post_init__", kind.__name__)
    for name in ("make_plan", "choose", "rank"):
        count(planner, name, name)
    return found


def test_every_operation_is_called() -> None:
    with Handle("cpu") as handle:
        operations = {name for name in ops.__all__ if inspect.isfunction(getattr(ops, name))}
        assert set(_calls(handle)) == operations - NOT_ENQUEUED


@pytest.mark.parametrize("name", sorted({name for name in ops.__all__ if name.islower()} - NOT_ENQUEUED))
def test_an_operation_called_like_this_before_describes_and_plans_nothing(
    name: str, made: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launches: list[object] = []
    # What the reference backend's functions describe while they run is no part of the way to them.
    monkeypatch.setattr(Runner, "launch", lambda _self, plan, *_: launches.append(plan))
    with Handle("cpu") as handle:
        call = _calls(handle)[name]
        made.clear()
        call()
        assert made["make_plan"] == len(launches) > 0
        first, launches[:] = list(launches), []
        made.clear()
        call()
        assert made == {}
        assert launches == first
