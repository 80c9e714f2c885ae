"""Each layer against OpenCV, PyTorch, or its formula."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import ModelImportError
from dnncore.importers.caffe import import_caffe
from dnncore.nn.model import Model
from dnncore.nn.passes import for_inference
from tests.importers.caffe.files import assert_close, caffemodel, data, layer, opencv, random_blobs, run

f = torch.nn.functional
RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 6, 9, 8)).astype(np.float32)
IMAGE = data(1, 6, 9, 8)

OPENCV = {
    "convolution": ("Convolution", "convolution_param { num_output: 4 kernel_size: 3 pad: 1 stride: 2 }"),
    "convolution-groups": (
        "Convolution",
        "convolution_param { num_output: 4 kernel_size: 3 group: 2 bias_term: false }",
    ),
    "convolution-dilated": ("Convolution", "convolution_param { num_output: 4 kernel_size: 3 dilation: 2 pad: 2 }"),
    "convolution-oblong": (
        "Convolution",
        "convolution_param { num_output: 4 kernel_h: 3 kernel_w: 1 pad_h: 1 pad_w: 0 stride_h: 1 stride_w: 2 }",
    ),
    "convolution-cudnn": ("Convolution", "convolution_param { num_output: 4 kernel_size: 3 engine: CUDNN }"),
    "deconvolution": ("Deconvolution", "convolution_param { num_output: 4 kernel_size: 4 pad: 1 stride: 2 }"),
    "deconvolution-groups": (
        "Deconvolution",
        "convolution_param { num_output: 6 kernel_size: 4 stride: 2 group: 6 bias_term: false }",
    ),
    "pooling-max": ("Pooling", "pooling_param { kernel_size: 3 stride: 2 }"),
    "pooling-average": ("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }"),
    "pooling-global": ("Pooling", "pooling_param { pool: AVE global_pooling: true }"),
    "relu": ("ReLU", "relu_param { negative_slope: 0.1 }"),
    "prelu": ("PReLU", ""),
    "elu": ("ELU", "elu_param { alpha: 1 }"),
    "sigmoid": ("Sigmoid", ""),
    "tanh": ("TanH", ""),
    "absolute": ("AbsVal", ""),
    "bnll": ("BNLL", ""),
    "power": ("Power", "power_param { power: 3 scale: 0.5 shift: 1 }"),
    "lrn": ("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 }"),
    "lrn-within": ("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 norm_region: WITHIN_CHANNEL }"),
    "inner-product": ("InnerProduct", "inner_product_param { num_output: 5 }"),
    "inner-product-no-bias": ("InnerProduct", "inner_product_param { num_output: 5 bias_term: false }"),
    "softmax": ("Softmax", ""),
    "dropout": ("Dropout", "dropout_param { dropout_ratio: 0.4 }"),
    "batch-norm": ("BatchNorm", "batch_norm_param { eps: 0.001 }"),
    "scale": ("Scale", "scale_param { bias_term: true }"),
    "flatten": ("Flatten", ""),
    "reshape": ("Reshape", "reshape_param { shape { dim: 0 dim: 3 dim: -1 dim: 8 } }"),
    "mvn": ("MVN", "mvn_param { eps: 1e-9 }"),
    "mvn-across": ("MVN", "mvn_param { across_channels: true }"),
    "mvn-mean": ("MVN", "mvn_param { normalize_variance: false }"),
}


@pytest.mark.parametrize("name", OPENCV)
def test_a_layer_agrees_with_opencv(name: str) -> None:
    kind, settings = OPENCV[name]
    text = IMAGE + layer(kind, "y", "data", settings)
    weights = caffemodel(random_blobs(text))
    assert_close(run(import_caffe(text.encode(), weights), X)["y"], opencv(text, weights, X))


T = torch.tensor(X, dtype=torch.float64)
FORMULAS: dict[str, tuple[str, str, Callable[[], torch.Tensor]]] = {
    "lrn-k": (
        "LRN",
        "lrn_param { local_size: 5 alpha: 0.5 beta: 0.75 k: 2 }",
        lambda: f.local_response_norm(T, 5, 0.5, 0.75, 2.0),
    ),
    "pooling-floor": (
        "Pooling",
        "pooling_param { kernel_size: 3 stride: 2 round_mode: FLOOR }",
        lambda: f.max_pool2d(T, 3, 2),
    ),
    "lrn-within-ignores-k": (
        "LRN",
        "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 k: 2 norm_region: WITHIN_CHANNEL }",
        lambda: T * (1 + 0.5 * f.avg_pool2d(T * T, 3, 1, 1)) ** -0.75,
    ),
    "softmax-axis": ("Softmax", "softmax_param { axis: -1 }", lambda: T.softmax(3)),
    "swish": ("Swish", "", lambda: f.silu(T)),
    "swish-beta": ("Swish", "swish_param { beta: 2 }", lambda: T * torch.sigmoid(2 * T)),
    "clip": ("Clip", "clip_param { min: -0.5 max: 0.75 }", lambda: T.clamp(-0.5, 0.75)),
    "exp": ("Exp", "", T.exp),
    "exp-base": ("Exp", "exp_param { base: 2 scale: 3 shift: 1 }", lambda: 2 ** (1 + 3 * T)),
    "log": ("Log", "log_param { shift: 9 scale: 2 }", lambda: (9 + 2 * T).log()),
    "log-base": ("Log", "log_param { base: 10 shift: 9 }", lambda: (9 + T).log10()),
    "threshold": ("Threshold", "threshold_param { threshold: 0.25 }", lambda: (T > 0.25).float()),
    "power-root": ("Power", "power_param { power: 0.5 shift: 9 }", lambda: (9 + T).sqrt()),
    "power-any": ("Power", "power_param { power: 2.5 shift: 9 scale: 0.5 }", lambda: (9 + T / 2) ** 2.5),
    "power-1": ("Power", "power_param { scale: 2 shift: 3 }", lambda: 2 * T + 3),
    "power-scale": ("Power", "power_param { scale: 2 }", lambda: 2 * T),
    "power-2": ("Power", "power_param { power: 2 }", lambda: T * T),
    "power-negative": ("Power", "power_param { power: -2 shift: 9 }", lambda: (9 + T) ** -2),
    "power-0": ("Power", "power_param { power: 0 }", lambda: torch.ones_like(T)),
    "power-constant": ("Power", "power_param { power: 2 scale: 0 shift: 3 }", lambda: torch.full_like(T, 9)),
    "tile": ("Tile", "tile_param { tiles: 3 }", lambda: T.repeat(1, 3, 1, 1)),
    "arg-max": ("ArgMax", "", lambda: T.flatten(1).argmax(1).reshape(2, 1, 1, 1)),
    "arg-max-several": (
        "ArgMax",
        "argmax_param { top_k: 3 out_max_val: true }",
        lambda: torch.stack([one.double() for one in T.flatten(1).topk(3)[::-1]], 1)[..., None],
    ),
    "arg-max-axis-several": ("ArgMax", "argmax_param { axis: -1 top_k: 2 }", lambda: T.topk(2, 3).indices),
    "arg-max-axis": ("ArgMax", "argmax_param { axis: 1 }", lambda: T.argmax(1, keepdim=True)),
    "arg-max-value": ("ArgMax", "argmax_param { axis: 2 out_max_val: true }", lambda: T.amax(2, keepdim=True)),
    "reduction-sum": ("Reduction", "reduction_param { axis: 2 }", lambda: T.sum((2, 3))),
    "reduction-asum": ("Reduction", "reduction_param { operation: ASUM axis: 1 }", lambda: T.abs().sum((1, 2, 3))),
    "reduction-sumsq": (
        "Reduction",
        "reduction_param { operation: SUMSQ axis: -1 coeff: 2 }",
        lambda: 2 * (T * T).sum(3),
    ),
    "reduction-mean": ("Reduction", "reduction_param { operation: MEAN axis: 1 }", lambda: T.mean((1, 2, 3))),
    "flatten-part": ("Flatten", "flatten_param { axis: 1 end_axis: 2 }", lambda: T.flatten(1, 2)),
    "reshape-part": (
        "Reshape",
        "reshape_param { shape { dim: 2 dim: -1 } axis: 1 num_axes: 1 }",
        lambda: T.reshape(2, 2, 3, 9, 8),
    ),
    "mvn-eps": (
        "MVN",
        "mvn_param { eps: 0.5 }",
        lambda: (T - T.mean((2, 3), True)) / (T.var((2, 3), correction=0, keepdim=True).sqrt() + 0.5),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_layer_agrees_with_its_formula(name: str) -> None:
    kind, settings, formula = FORMULAS[name]
    model = import_caffe((IMAGE + layer(kind, "y", "data", settings)).encode())
    assert_close(run(model, X)["y"], formula().numpy())


def test_exponentials_are_accurate_far_out() -> None:
    model = import_caffe((data(1, 5) + layer("Exp", "y", "data")).encode())
    x = np.array([[-80, -20, 0, 20, 80]], np.float32)
    np.testing.assert_allclose(run(model, x)["y"], np.exp(x.astype(np.float64)), rtol=1e-5)


Y = RNG.standard_normal((2, 6, 9, 8)).astype(np.float32)
BOTH = IMAGE + data(1, 6, 9, 8, name="data2")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Eltwise", ""),
        ("Eltwise", "eltwise_param { coeff: 0.5 coeff: -2 }"),
        ("Eltwise", "eltwise_param { operation: PROD }"),
        ("Eltwise", "eltwise_param { operation: MAX }"),
        ("Concat", ""),
        ("Concat", "concat_param { axis: 2 }"),
    ],
)
def test_a_layer_of_two_bottoms_agrees_with_opencv(kind: str, settings: str) -> None:
    text = BOTH + layer(kind, "y", "data data2", settings)
    assert_close(run(import_caffe(text.encode()), X, Y)["y"], opencv(text, caffemodel({}), X, Y))


def test_concat_knows_the_old_name_of_its_axis() -> None:
    """Which OpenCV does not."""
    text = BOTH + layer("Concat", "y", "data data2", "concat_param { concat_dim: 3 }")
    assert np.array_equal(run(import_caffe(text.encode()), X, Y)["y"], np.concatenate((X, Y), 3))


def test_a_sum_of_three_with_coefficients() -> None:
    text = BOTH + layer("Eltwise", "y", "data data2 data", "eltwise_param { coeff: 2 coeff: 3 coeff: -1 }")
    assert_close(run(import_caffe(text.encode()), X, Y)["y"], X + 3 * Y)


def test_scale_and_bias_take_their_factor_from_a_second_bottom() -> None:
    text = IMAGE + data(1, 6, name="gate")
    gate = Y[:, :, 0, 0].copy()
    for kind, expected in (("Scale", X * gate[..., None, None]), ("Bias", X + gate[..., None, None])):
        param = f"{kind.lower()}_param {{ axis: 0 }}"
        assert_close(run(import_caffe((text + layer(kind, "y", "data gate", param)).encode()), X, gate)["y"], expected)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ("", (6, 1, 1)),
        ("axis: 2 num_axes: 1", (9, 1)),
        ("axis: 1 num_axes: -1", (6, 9, 8)),
        ("axis: -1", (8,)),
        ("num_axes: 0", ()),
    ],
)
def test_scale_covers_the_dimensions_it_names(settings: str, shape: tuple[int, ...]) -> None:
    text = IMAGE + layer("Scale", "y", "data", f"scale_param {{ {settings} bias_term: true }}")
    blobs = random_blobs(text)
    scale, bias = blobs["y"]
    found = run(import_caffe(text.encode(), caffemodel(blobs)), X)["y"]
    assert_close(found, X * scale.reshape(shape) + bias.reshape(shape))


def test_bias_adds_its_blob() -> None:
    text = IMAGE + layer("Bias", "y", "data")
    blobs = random_blobs(text)
    assert_close(run(import_caffe(text.encode(), caffemodel(blobs)), X)["y"], X + blobs["y"][0][:, None, None])


@pytest.mark.parametrize(
    ("settings", "sizes"), [("", (2, 2, 2)), ("slice_point: 1 slice_point: 5", (1, 4, 1)), ("axis: 2", None)]
)
def test_slices_are_even_or_where_they_are_told(settings: str, sizes: tuple[int, ...] | None) -> None:
    text = IMAGE + layer("Slice", "s", "data", f"slice_param {{ {settings} }}", tops="a b c")
    found = run(import_caffe(text.encode()), X)
    expected = np.split(X, 3, 2) if sizes is None else np.split(X, np.cumsum(sizes)[:-1], 1)
    for name, part in zip("abc", expected, strict=True):
        assert np.array_equal(found[name], part)


def test_crop_takes_the_extents_of_its_reference() -> None:
    text = (
        IMAGE + data(1, 6, 5, 4, name="data2") + layer("Crop", "y", "data data2", "crop_param { offset: 2 offset: 3 }")
    )
    found = run(import_caffe(text.encode()), X)["y"]  # of the reference only the extents are needed
    assert np.array_equal(found, X[:, :, 2:7, 3:7])


def test_split_hands_the_same_values_out() -> None:
    text = IMAGE + layer("Split", "s", "data", tops="a b") + layer("ReLU", "y", "b")
    found = run(import_caffe(text.encode()), X)
    assert np.array_equal(found["a"], X)
    assert np.array_equal(found["y"], np.maximum(X, 0))


def test_inner_products_of_later_axes_and_transposed_weights() -> None:
    text = IMAGE + layer("InnerProduct", "y", "data", "inner_product_param { num_output: 5 axis: 2 transpose: true }")
    blobs = random_blobs(text)
    weight, bias = blobs["y"]
    assert weight.shape == (72, 5)
    found = run(import_caffe(text.encode(), caffemodel(blobs)), X)["y"]
    assert_close(found, X.reshape(2, 6, 72) @ weight + bias)


def test_convolutions_of_three_dimensions() -> None:
    text = data(1, 2, 5, 6, 7) + layer(
        "Convolution", "y", "data", "convolution_param { num_output: 3 kernel_size: 3 pad: 1 pad: 0 pad: 2 }"
    )
    x = RNG.standard_normal((2, 2, 5, 6, 7)).astype(np.float32)
    blobs = random_blobs(text)
    weight, bias = (torch.tensor(array, dtype=torch.float64) for array in blobs["y"])
    found = run(import_caffe(text.encode(), caffemodel(blobs)), x)["y"]
    assert_close(found, f.conv3d(torch.tensor(x, dtype=torch.float64), weight, bias, padding=(1, 0, 2)).numpy())


def test_prelu_may_share_its_slope() -> None:
    text = IMAGE + layer("PReLU", "y", "data", "prelu_param { channel_shared: true }")
    assert_close(run(import_caffe(text.encode()), X)["y"], np.where(X > 0, X, 0.25 * X))
    weights = caffemodel({"y": [np.array(0.5, np.float32)]})
    assert_close(run(import_caffe(text.encode(), weights), X)["y"], np.where(X > 0, X, 0.5 * X))


@pytest.mark.parametrize(
    ("order", "axes"),
    [((0, 2, 3, 1), (0, 2, 3, 1)), ((0, 3), (0, 3, 1, 2)), ((), (0, 1, 2, 3)), ((0, 1, 2), (0, 1, 2, 3))],
)
def test_dimensions_are_permuted_those_that_are_not_named_at_the_end(
    order: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    settings = " ".join(f"order: {axis}" for axis in order)
    model = import_caffe((IMAGE + layer("Permute", "y", "data", f"permute_param {{ {settings} }}")).encode())
    assert np.array_equal(run(model, X)["y"], X.transpose(axes))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((1, 0), r"order \[1, 0\]: images lie along dimension 0"),
        ((0, 1, 1), r"order \[0, 1, 1\] must name dimensions of 4, each once"),
        ((0, 4), r"order \[0, 4\] must name dimensions of 4, each once"),
    ],
)
def test_orders_that_are_none_are_refused(order: tuple[int, ...], message: str) -> None:
    settings = " ".join(f"order: {axis}" for axis in order)
    with pytest.raises(ModelImportError, match=rf"layer 'y' \(Permute\): {message}"):
        import_caffe((IMAGE + layer("Permute", "y", "data", f"permute_param {{ {settings} }}")).encode())


@pytest.mark.parametrize("shared", [True, False], ids=["one scale", "a scale a channel"])
@pytest.mark.parametrize("across", [True, False], ids=["an image", "a place"])
@pytest.mark.parametrize("epsilon", [None, 0.5, 0.0])
@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_values_are_divided_by_their_norm(size: float, epsilon: float | None, across: bool, shared: bool) -> None:
    settings = f"across_spatial: {str(across).lower()} channel_shared: {str(shared).lower()}"
    settings += "" if epsilon is None else f" eps: {epsilon}"
    text = IMAGE + layer("Normalize", "y", "data", f"norm_param {{ {settings} scale_filler {{ value: 20 }} }}")
    scale = np.array(3, np.float32) if shared else RNG.uniform(1, 3, 6).astype(np.float32)
    x = X * np.float32(size)
    squares = np.square(x.astype(np.float64)).sum((1, 2, 3) if across else 1, keepdims=True)
    normal = x / np.sqrt(squares + (1e-10 if epsilon is None else epsilon))
    found = run(import_caffe(text.encode(), caffemodel({"y": [scale]})), x)["y"]
    assert_close(found, normal * scale.reshape(-1, 1, 1))
    untrained = import_caffe(text.encode())
    assert_close(run(Model(untrained.graph, untrained.graph.initialize(0)), x)["y"], 20 * normal)


def test_a_norm_whose_square_16_bits_cannot_hold_is_right_in_16_bits() -> None:
    """As in SSD, whose values before it are in the hundreds."""
    text = IMAGE + layer("Normalize", "y", "data", "norm_param { across_spatial: false }")
    model = import_caffe(text.encode(), caffemodel({"y": [np.array(1, np.float32)]}))
    x = 500 * X
    expected = x / np.sqrt(np.square(x.astype(np.float64)).sum(1, keepdims=True))
    found = run(for_inference(model, DType.FLOAT16), x)["y"]
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=1e-3)


def test_a_norm_that_is_none_is_refused() -> None:
    with pytest.raises(ModelImportError, match=r"layer 'y' \(Normalize\): eps -1.0 must be 0 or more"):
        import_caffe((IMAGE + layer("Normalize", "y", "data", "norm_param { eps: -1 }")).encode())


def test_what_is_imported_runs_on_every_device(handle: Handle) -> None:
    text = (
        IMAGE
        + layer("Convolution", "c", "data", "convolution_param { num_output: 4 kernel_size: 3 }")
        + layer("BatchNorm", "n", "c", tops="c")
        + layer("Scale", "s", "c", "scale_param { bias_term: true }", tops="c")
        + layer("PReLU", "r", "c", tops="c")
        + layer("Deconvolution", "d", "c", "convolution_param { num_output: 3 kernel_size: 2 stride: 2 }")
        + layer("Pooling", "p", "d", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }")
        + layer("MVN", "m", "p")
        + layer("Exp", "e", "m")
        + layer("ArgMax", "a", "e", "argmax_param { axis: 1 }")
        + layer("Reduction", "sum", "e", "reduction_param { operation: ASUM axis: 1 }")
        + layer("Normalize", "l2", "e", "norm_param { across_spatial: false channel_shared: false }")
        + layer("Permute", "last", "l2", "permute_param { order: 0 order: 2 order: 3 order: 1 }")
    )
    model = import_caffe(text.encode(), caffemodel(random_blobs(text)))
    expected, found = run(model, X), run(model, X, handle=handle)
    assert_close(found["sum"], expected["sum"])
    assert_close(found["last"], expected["last"])
    assert np.array_equal(found["a"], expected["a"])
