"""What trips importers: each rule of Caffe's that is not what one would think, by itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ModelImportError
from dnncore.importers.caffe import Transformation, import_caffe, import_trainable, read_mean, read_transformation
from dnncore.nn.gradient import differentiate
from dnncore.nn.graph import Role, Value
from dnncore.nn.initializers import Bilinear, Filled, Normal, SparseNormal, Uniform, UnitBall
from dnncore.nn.model import Model
from dnncore.nn.operators import BatchNorm
from dnncore.nn.trainable import Multipliers
from dnncore.nn.training import in_training
from tests.importers.caffe.files import assert_close, blob, caffemodel, data, layer, random_blobs, run

RNG = np.random.default_rng(7)
X = RNG.standard_normal((2, 4, 6, 6)).astype(np.float32)
IMAGE = data(10, 4, 6, 6)


def _pooled(x: np.ndarray, kernel: int, stride: int, pad: int, *, average: bool) -> np.ndarray:
    """Caffe's loops as its documents tell them, along one dimension, [N, C, H, 1]."""
    extent = x.shape[2]
    count = -(-(extent + 2 * pad - kernel) // stride) + 1
    if pad and (count - 1) * stride >= extent + pad:
        count -= 1
    found = []
    for place in range(count):
        start = place * stride - pad
        end = min(start + kernel, extent + pad)
        size = end - start
        window = x[:, :, max(start, 0) : min(end, extent)]
        found.append(window.sum(2, keepdims=True) / size if average else window.max(2, keepdims=True))
    return np.concatenate(found, 2)


@pytest.mark.parametrize("average", [False, True], ids=["MAX", "AVE"])
def test_poolings_round_up_and_divide_by_the_window_cut_to_the_padded_image(average: bool) -> None:
    refused = 0
    for extent, kernel, stride, pad in itertools.product(range(1, 12), range(1, 5), range(1, 6), range(4)):
        if pad >= kernel or extent + 2 * pad < kernel:
            continue
        settings = f"kernel_h: {kernel} kernel_w: 1 stride_h: {stride} stride_w: 1 pad_h: {pad} pad_w: 0"
        text = data(1, 1, extent, 1) + layer(
            "Pooling", "y", "data", f"pooling_param {{ pool: {'AVE' if average else 'MAX'} {settings} }}"
        )
        outside = not pad and (-(-(extent - kernel) // stride)) * stride >= extent
        if outside:
            refused += 1
            with pytest.raises(ModelImportError, match=r"layer 'y' \(Pooling\): stride .* -FLT_MAX or NaN"):
                import_caffe(text.encode())
            continue
        graph = import_caffe(text.encode()).graph
        x = RNG.standard_normal((1, 1, extent, 1)).astype(np.float32)
        expected = _pooled(x, kernel, stride, pad, average=average)
        assert graph.values["y"].shape == ("N", 1, *expected.shape[2:])
        if extent % 4 == 3:
            assert_close(run(import_caffe(text.encode()), x)["y"], expected)
    assert refused > 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("pool: STOCHASTIC kernel_size: 2", "pool: STOCHASTIC"),
        ("global_pooling: true pad: 1", "global_pooling takes no"),
        ("kernel_size: 2 pad: 2", "pad .* must be less than the kernel"),
        ("kernel_size: 2 kernel_h: 2", "kernel_size is given beside"),
        ("kernel_size: 9", "larger than the padded input"),
        ("", "must be 1 or more"),
        ("kernel_size: 2 stride: 0", "must be 1 or more"),
    ],
)
def test_poolings_that_are_not_there_are_refused_by_name(settings: str, message: str) -> None:
    with pytest.raises(ModelImportError, match=rf"layer 'y' \(Pooling\): .*{message}"):
        import_caffe((IMAGE + layer("Pooling", "y", "data", f"pooling_param {{ {settings} }}")).encode())


def test_the_places_of_maxima_are_refused() -> None:
    with pytest.raises(ModelImportError, match="a second top, the places of the maxima"):
        import_caffe(
            (IMAGE + layer("Pooling", "y", "data", "pooling_param { kernel_size: 2 }", tops="y mask")).encode()
        )


def test_of_equal_maxima_the_first_gets_the_gradient() -> None:
    """Caffe compares with >, row by row."""
    graph = import_caffe(
        (data(1, 1, 3, 4) + layer("Pooling", "y", "data", "pooling_param { kernel_size: 3 }")).encode()
    ).graph
    given = Value("dy", DType.FLOAT32, ("N", 1, 1, 2))
    found = differentiate(graph.rewritten(graph.nodes, inputs=(*graph.inputs, given)), {"y": "dy"}, ["data"])
    x = np.array([[0, 1, 2, 0], [2, 0, 2, 2], [2, 2, 2, 2]], np.float32)[None, None]
    outputs = run(Model(found.graph, {}), x, np.array([3, 5], np.float32).reshape(1, 1, 1, 2))
    assert np.array_equal(outputs["y"].ravel(), [2, 2])
    expected = np.zeros((3, 4), np.float32)
    expected[0, 2] = 3 + 5
    assert np.array_equal(outputs[found.gradients["data"]][0, 0], expected)


def test_the_maximum_with_a_nan_is_nan_where_caffe_passes_over_it() -> None:
    """A difference that docs/caffe.md lists: Caffe would give 3."""
    pooling = layer("Pooling", "y", "data", "pooling_param { kernel_h: 1 kernel_w: 2 stride: 2 }")
    model = import_caffe((data(1, 1, 1, 4) + pooling).encode())
    found = run(model, np.array([np.nan, 3, 1, 2], np.float32).reshape(1, 1, 1, 4))["y"].ravel()
    assert np.isnan(found[0])
    assert found[1] == 2


@pytest.mark.parametrize("images", [0, 0.5, 999.98])
def test_statistics_are_divided_by_their_weight_and_are_0_of_no_images(images: float) -> None:
    text = IMAGE + layer("BatchNorm", "y", "data", "batch_norm_param { eps: 0.01 }")
    mean, variance = RNG.standard_normal(4).astype(np.float32), RNG.uniform(1, 2, 4).astype(np.float32)
    model = import_caffe(text.encode(), caffemodel({"y": [mean, variance, np.array([images], np.float32)]}))
    factor = 0 if images == 0 else 1 / images
    expected = (X - (mean * factor)[:, None, None]) / np.sqrt((variance * factor)[:, None, None] + 0.01)
    assert_close(run(model, X)["y"], expected)


def test_batch_normalisation_and_the_scale_behind_it_are_one_node() -> None:
    text = IMAGE + layer("BatchNorm", "bn", "data") + layer("Scale", "sc", "bn", "scale_param { bias_term: true }")
    blobs = random_blobs(text)
    model = import_caffe(text.encode(), caffemodel(blobs))
    (node,) = model.graph.nodes
    assert node.operator == BatchNorm(1e-5, 0.001)
    assert node.inputs == ("data", "sc.scale", "sc.bias", "bn.mean", "bn.variance", "bn.count")
    assert [model.graph.constant[name].role for name in node.reads[1:]] == [*[Role.TRAINABLE] * 2, *[Role.BUFFER] * 3]
    mean, variance, _ = blobs["bn"]
    scale, bias = blobs["sc"]
    normal = (X - mean[:, None, None] / 4) / np.sqrt(variance[:, None, None] / 4 + 1e-5)
    assert_close(run(model, X)["sc"], normal * scale[:, None, None] + bias[:, None, None])


def test_a_normalisation_with_global_statistics_keeps_them_while_it_is_trained() -> None:
    text = (
        IMAGE
        + layer("BatchNorm", "kept", "data", "batch_norm_param { use_global_stats: true }")
        + layer("BatchNorm", "running", "kept")
    )
    for phase in ("test", "train"):
        graph = in_training(import_caffe(text.encode(), phase=phase).graph)
        assert [node.operator.kind for node in graph.nodes] == ["batch_norm", "batch_norm_training"]
        assert set(graph.updates) == {"running.mean", "running.variance", "running.count"}


def test_a_normalisation_that_is_read_before_its_scale_stays_by_itself() -> None:
    text = IMAGE + layer("BatchNorm", "bn", "data") + layer("ReLU", "r", "bn") + layer("Scale", "sc", "bn", tops="bn")
    model = import_caffe(text.encode(), caffemodel(random_blobs(text)))
    assert [node.name for node in model.graph.nodes] == ["bn", "r", "sc"]
    assert {"r", "bn"} == set(model.graph.outputs)


def test_nvidias_fork_keeps_scale_and_bias_in_the_normalisation() -> None:
    for settings in ("scale_bias: true", "scale_filler { value: 2 }"):
        text = IMAGE + layer("BatchNorm", "y", "data", f"batch_norm_param {{ {settings} eps: 1e-9 }}")
        blobs = random_blobs(text)
        model = import_caffe(text.encode(), caffemodel(blobs, "raw32"))
        assert model.graph.nodes[0].operator == BatchNorm(1e-5, 0.001)
        mean, variance, _, scale, bias = (array.reshape(-1, 1, 1) for array in blobs["y"])
        expected = (X - mean / 4) / np.sqrt(variance / 4 + 1e-5) * scale + bias
        assert_close(run(model, X)["y"], expected)


def test_statistics_of_the_batch_are_refused_when_nets_are_run() -> None:
    text = IMAGE + layer("BatchNorm", "y", "data", "batch_norm_param { use_global_stats: false }")
    with pytest.raises(ModelImportError, match="use_global_stats: false"):
        import_caffe(text.encode())
    assert import_caffe(text.encode(), phase="train").graph.outputs == ("y",)


def test_a_blob_is_what_was_written_to_it_last() -> None:
    """Layers in place rewrite a blob, and whoever reads it later gets the new values; the last has its name."""
    text = (
        IMAGE
        + layer("Power", "a", "data", "power_param { scale: 2 }")
        + layer("Power", "before", "a", "power_param { shift: 1 }")
        + layer("ReLU", "r", "a", tops="a")
        + layer("Power", "between", "a", "power_param { shift: 2 }")
        + layer("Power", "b", "a", "power_param { scale: -1 }", tops="a")
    )
    model = import_caffe(text.encode())
    found = run(model, X)
    assert set(found) == {"before", "between", "a"}
    assert_close(found["before"], 2 * X + 1)
    assert_close(found["between"], np.maximum(2 * X, 0) + 2)
    assert_close(found["a"], -np.maximum(2 * X, 0))


def test_an_input_may_be_rewritten_and_keeps_its_name() -> None:
    model = import_caffe((IMAGE + layer("ReLU", "r", "data", tops="data")).encode())
    assert model.graph.inputs[0].name == "data"
    (found,) = run(model, X).values()
    assert np.array_equal(found, np.maximum(X, 0))


def test_a_blob_with_two_sources_is_refused() -> None:
    text = IMAGE + layer("ReLU", "a", "data", tops="y") + layer("TanH", "b", "data", tops="y")
    with pytest.raises(ModelImportError, match=r"layer 'b' \(TanH\): writes 'y', which another layer has written"):
        import_caffe(text.encode())
    with pytest.raises(ModelImportError, match="writes a blob twice"):
        import_caffe((IMAGE + layer("Slice", "s", "data", tops="y y")).encode())


RULES = """
layer {{ name: "input" type: "Input" top: "data" input_param {{ shape {{ dim: 1 dim: 2 }} }} }}
layer {{ name: "always" type: "ReLU" bottom: "data" top: "always" }}
layer {{ name: "perhaps" type: "TanH" bottom: "data" top: "perhaps" {rules} }}
"""


@pytest.mark.parametrize(
    ("rules", "state", "kept"),
    [
        ("include { phase: TEST }", {}, True),
        ("include { phase: TRAIN }", {}, False),
        ("include { phase: TRAIN }", {"phase": "train"}, True),
        ("exclude { phase: TEST }", {}, False),
        ("include { phase: TRAIN } include { stage: 'a' }", {"stages": ["a"]}, True),
        ("include { stage: 'a' stage: 'b' }", {"stages": ["a"]}, False),
        ("include { stage: 'a' stage: 'b' }", {"stages": ["b", "a"]}, True),
        ("exclude { not_stage: 'a' }", {}, False),
        ("exclude { not_stage: 'a' }", {"stages": ["a"]}, True),
        ("include { min_level: 1 }", {}, False),
        ("include { min_level: 1 max_level: 2 }", {"level": 2}, True),
        ("include { max_level: 2 }", {"level": 3}, False),
        ("include: { phase: TEST stage: 'a' }", {}, False),
    ],
)
def test_layers_are_there_when_their_rules_say_so(rules: str, state: dict[str, object], kept: bool) -> None:
    graph = import_caffe(RULES.format(rules=rules).encode(), **state).graph  # type: ignore[arg-type]
    assert ("perhaps" in graph.outputs) == kept


def test_the_file_may_say_its_stages_itself() -> None:
    text = 'state { stage: "a" level: 3 }' + RULES.format(rules='include { stage: "a" min_level: 3 }')
    assert "perhaps" in import_caffe(text.encode()).graph.outputs


def test_rules_of_both_kinds_and_other_phases_are_refused() -> None:
    with pytest.raises(ModelImportError, match="'perhaps' has both include and exclude"):
        import_caffe(RULES.format(rules="include { } exclude { }").encode())
    with pytest.raises(BadParamError, match="'deploy'"):
        import_caffe(RULES.format(rules="").encode(), phase="deploy")


TRAIN_VAL = """
name: "both"
layer {
  name: "images" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { crop_size: 6 mirror: true mean_file: "/etc/passwd" } data_param { source: "../train" batch_size: 9 }
}
layer {
  name: "images" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  image_data_param { source: "list.txt" new_height: 6 new_width: 7 batch_size: 3 }
}
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "aux" type: "InnerProduct" bottom: "ip" top: "aux" inner_product_param { num_output: 5 } include { phase: TRAIN } }
layer { name: "aux/loss" type: "SoftmaxWithLoss" bottom: "aux" bottom: "label" include { phase: TRAIN } loss_weight: 0.3 }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def test_losses_and_data_layers_are_left_out_and_what_they_read_is_given() -> None:
    serving, training = (import_caffe(TRAIN_VAL.encode(), phase=phase).graph for phase in ("test", "train"))
    assert (serving.inputs[0].shape, serving.outputs) == (("N", 3, 6, 7), ("ip",))
    assert (training.inputs[0].shape, training.outputs) == (("N", 3, 6, 6), ("aux",))
    assert len(serving.inputs) == len(training.inputs) == 1


def test_what_only_a_loss_would_compare_with_is_left_out_too() -> None:
    text = (
        data(1, 6)
        + layer("InnerProduct", "code", "data", "inner_product_param { num_output: 6 }")
        + layer("Flatten", "wanted", "data")
        + layer("SigmoidCrossEntropyLoss", "loss", "code wanted")
        + layer("TanH", "swallowed", "data")
        + layer("Silence", "silence", "swallowed").replace('top: "silence"', "")
    )
    graph = import_caffe(text.encode()).graph
    assert (graph.outputs, [node.name for node in graph.nodes]) == (("code",), ["code"])


def test_an_input_of_unknown_shape_is_named_and_can_be_given() -> None:
    text = 'layer { name: "d" type: "HDF5Data" top: "data" top: "label" }' + layer("ReLU", "y", "data")
    with pytest.raises(ModelImportError, match="reads 'data', whose shape no layer says; give it in `input_shapes`"):
        import_caffe(text.encode())
    assert import_caffe(text.encode(), input_shapes={"data": (3, 4)}).graph.inputs[0].shape == ("N", 3, 4)


def test_an_input_listed_without_extents_can_be_given_them() -> None:
    text = 'input: "data" ' + layer("ReLU", "y", "data")
    with pytest.raises(ModelImportError, match="give it in `input_shapes`"):
        import_caffe(text.encode())
    assert import_caffe(text.encode(), input_shapes={"data": (3, 4)}).graph.values["y"].shape == ("N", 3, 4)


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        ('type: "MemoryData" memory_data_param { batch_size: 1 channels: 2 height: 3 width: 4 }', ("N", 2, 3, 4)),
        ('type: "DummyData" dummy_data_param { num: 1 channels: 2 height: 3 width: 4 }', ("N", 2, 3, 4)),
        ('type: "DummyData" dummy_data_param { shape { dim: 7 dim: 5 } }', ("N", 5)),
        ('type: "WindowData" window_data_param { crop_size: 9 }', ("N", 3, 9, 9)),
        ('type: "Data" data_param { crop_size: 8 } transform_param { force_gray: true }', ("N", 1, 8, 8)),
    ],
)
def test_sources_of_data_say_their_shape_where_they_can(source: str, shape: tuple[int, ...]) -> None:
    text = f'layer {{ name: "d" top: "data" {source} }}' + layer("ReLU", "y", "data")
    assert import_caffe(text.encode()).graph.inputs[0].shape == shape


def test_sums_are_of_equal_extents_only() -> None:
    text = IMAGE + data(1, 4, 1, 1, name="other") + layer("Eltwise", "y", "data other")
    with pytest.raises(ModelImportError, match=r"reads \[1, 4, 6, 6\], \[1, 4, 1, 1\], which must be equal"):
        import_caffe(text.encode())
    with pytest.raises(ModelImportError, match="1 coeff; they are for SUM, one for each of 2 bottoms"):
        import_caffe((IMAGE + layer("Eltwise", "y", "data data", "eltwise_param { coeff: 1 }")).encode())


def test_fields_of_nvidias_fork_are_read() -> None:
    text = "default_forward_type: FLOAT16 default_backward_math: FLOAT " + IMAGE
    text += layer("ReLU", "y", "data", "forward_type: FLOAT backward_math: FLOAT16")
    assert import_caffe(text.encode()).graph.outputs == ("y",)


@pytest.mark.parametrize("phase", ["train", "test"])
def test_what_a_net_does_to_images_is_told(phase: str) -> None:
    text = """
    layer {
      name: "d" type: "Data" top: "data" include { phase: TRAIN }
      transform_param { mirror: true crop_size: 227 mean_file: "mean.binaryproto" scale: 0.017 }
    }
    layers_of_test
    """.replace(
        "layers_of_test",
        """layer {
      name: "d" type: "Data" top: "data" include { phase: TEST }
      transform_param { crop_size: 224 mean_value: [104, 117, 123] }
    }""",
    )
    expected = {
        "train": Transformation(scale=0.017, mirror=True, crop_size=227, mean_file="mean.binaryproto"),
        "test": Transformation(crop_size=224, mean_value=(104.0, 117.0, 123.0)),
    }
    assert read_transformation(text.encode(), phase=phase) == expected[phase]
    assert read_transformation((IMAGE + layer("ReLU", "y", "data")).encode()) is None
    old = (
        'layers { name: "d" type: DATA top: "data" data_param { scale: 0.5 mean_file: "m" mirror: true crop_size: 3 } }'
    )
    assert read_transformation(old.encode()) == Transformation(0.5, mirror=True, crop_size=3, mean_file="m")
    with pytest.raises(ModelImportError, match=r"layer 'd' .*both mean_file and mean_value"):
        read_transformation(text.replace("mean_value", 'mean_file: "m" mean_value').encode())


def test_layers_may_share_parameters_by_name() -> None:
    def inner(name: str, bottom: str, settings: str = "") -> str:
        share = 'param { name: "w" } param { name: "b" }'
        return layer("InnerProduct", name, bottom, f"{share} inner_product_param {{ num_output: 6 {settings} }}")

    text = data(1, 6) + inner("one", "data") + inner("two", "one")
    model = import_caffe(text.encode())
    assert list(model.graph.constant) == ["one.weight", "one.bias"]
    w, b = RNG.standard_normal((6, 6)).astype(np.float32), RNG.standard_normal(6).astype(np.float32)
    found = run(
        import_caffe(text.encode(), caffemodel({"one": [w, b], "two": [w, b]})),
        X[:, :, 0, :4].reshape(-1, 16)[:, :6].copy(),
    )
    x = X[:, :, 0, :4].reshape(-1, 16)[:, :6]
    assert_close(found["two"], (x @ w.T + b) @ w.T + b)
    with pytest.raises(ModelImportError, match=r"layer 'two' .*shares parameter 'w' of extents \[6, 6\], its own are"):
        import_caffe(
            (data(1, 6) + inner("one", "data") + inner("two", "one").replace("num_output: 6", "num_output: 7")).encode()
        )


def _sharing(*settings: str) -> str:
    """Inner products of 6 by 6 that share their weights, each with other settings of these."""
    text, bottom = data(1, 6), "data"
    for number, setting in enumerate(settings):
        shared = f'param {{ name: "w" {setting} }} inner_product_param {{ num_output: 6 bias_term: false }}'
        text, bottom = text + layer("InnerProduct", f"ip{number}", bottom, shared), f"ip{number}"
    return text


def test_the_gradient_of_a_shared_parameter_is_the_sum_over_its_uses() -> None:
    w = RNG.standard_normal((6, 6)).astype(np.float32)
    x, dy = (RNG.standard_normal((3, 6)).astype(np.float32) for _ in range(2))
    model = import_caffe(_sharing("", "").encode(), caffemodel({"ip0": [w], "ip1": [w]}))
    given = Value("dy", DType.FLOAT32, ("N", 6))
    graph = model.graph.rewritten(model.graph.nodes, inputs=(*model.graph.inputs, given))
    found = differentiate(graph, {"ip1": "dy"})
    assert list(found.gradients) == ["ip0.weight"]
    gradient = run(Model(found.graph, model.weights), x, dy)[found.gradients["ip0.weight"]]
    assert_close(gradient, dy.T @ (x @ w.T) + (dy @ w).T @ x)


def test_the_weights_of_a_shared_parameter_are_those_of_its_first_layer() -> None:
    """A difference that docs/caffe.md lists, of files that Caffe does not write: it would take the last's."""
    w = RNG.standard_normal((6, 6)).astype(np.float32)
    model = import_caffe(_sharing("", "").encode(), caffemodel({"ip0": [w], "ip1": [2 * w]}))
    assert np.array_equal(model.weights["ip0.weight"], w)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("lr_mult: 2 decay_mult: 0", ""), Multipliers(2, 0)),
        (("", "lr_mult: 2"), Multipliers(2)),
        (("decay_mult: 0", "lr_mult: 3", "lr_mult: 3 decay_mult: 0"), Multipliers(3, 0)),
        (("", "lr_mult: 0"), Multipliers(0)),
    ],
)
def test_multipliers_of_a_shared_parameter_are_those_that_a_layer_says(
    settings: tuple[str, ...], expected: Multipliers
) -> None:
    text = _sharing(*settings) + 'layer { name: "d" type: "Data" top: "d" top: "label" }\n'
    net, _ = import_trainable((text + layer("SoftmaxWithLoss", "loss", f"ip{len(settings) - 1} label")).encode())
    assert net.multipliers == {"ip0.weight": expected}
    assert (net.graph.constant["ip0.weight"].role is Role.TRAINABLE) == bool(expected.lr)


def test_multipliers_of_a_shared_parameter_must_agree() -> None:
    for what in ("lr_mult", "decay_mult"):
        message = rf"layer 'ip2' .*{what} 2.0 of the shared parameter 'w'; another layer says 1.0"
        with pytest.raises(ModelImportError, match=message):
            import_caffe(_sharing(f"{what}: 1", "", f"{what}: 2").encode())


def test_a_parameter_cannot_be_shared_under_another_shape() -> None:
    text = data(1, 6) + layer(
        "InnerProduct", "one", "data", 'param { name: "w" } inner_product_param { num_output: 4 bias_term: false }'
    )
    text += layer(
        "InnerProduct",
        "two",
        "one",
        'param { name: "w" share_mode: PERMISSIVE } inner_product_param { num_output: 6 bias_term: false }',
    )
    with pytest.raises(
        ModelImportError, match=r"'w' of extents \[4, 6\], its own are \[6, 4\]: sharing under another shape"
    ):
        import_caffe(text.encode())


def test_parameters_that_do_not_learn_are_fixed() -> None:
    text = IMAGE + layer(
        "Convolution", "c", "data", "param { lr_mult: 0 } convolution_param { num_output: 2 kernel_size: 1 }"
    )
    constants = import_caffe(text.encode()).graph.constant
    assert (constants["c.weight"].role, constants["c.bias"].role) == (Role.FIXED, Role.TRAINABLE)


@pytest.mark.parametrize(
    ("filler", "initial"),
    [
        ('type: "constant" value: 3', Filled(3.0)),
        ('type: "uniform" min: -1 max: 3', Uniform(2.0, 1.0)),
        ('type: "gaussian" mean: 1 std: 0.5', Normal(0.25, 1.0)),
        ('type: "gaussian" std: 1 sparse: 5', SparseNormal(0.0, 1.0, 5)),
        ('type: "xavier"', Uniform((3 / 36) ** 0.5)),
        ('type: "xavier" variance_norm: FAN_OUT', Uniform((3 / 72) ** 0.5)),
        ('type: "xavier" variance_norm: AVERAGE', Uniform((3 / 54) ** 0.5)),
        ('type: "msra"', Normal(2 / 36)),
        ('type: "positive_unitball"', UnitBall()),
        ('type: "bilinear"', Bilinear()),
    ],
)
def test_fillers_say_what_constants_begin_with(filler: str, initial: object) -> None:
    settings = f"convolution_param {{ num_output: 8 kernel_size: 3 weight_filler {{ {filler} }} }}"
    model = import_caffe((IMAGE + layer("Convolution", "c", "data", settings)).encode())
    assert model.graph.constant["c.weight"].initial == initial


def test_what_fillers_make() -> None:
    generator = np.random.default_rng(0)
    assert abs(Uniform(2.0, 1.0).fill(generator, (1000,)).mean() - 1) < 0.2
    assert abs(Normal(0.25, 1.0).fill(generator, (1000,)).mean() - 1) < 0.1
    sparse = SparseNormal(0.0, 1.0, 5).fill(generator, (100, 50))
    assert 4 < np.count_nonzero(sparse) / 100 < 6
    np.testing.assert_allclose(UnitBall().fill(generator, (3, 4, 5)).sum((1, 2)), 1, rtol=1e-5)
    np.testing.assert_allclose(Bilinear().fill(generator, (1, 1, 4, 4))[0, 0, 1], [0.1875, 0.5625, 0.5625, 0.1875])


def test_a_batch_written_into_a_reshape_is_the_batch() -> None:
    text = IMAGE + layer("Reshape", "y", "data", "reshape_param { shape { dim: 10 dim: 8 dim: -1 } }")
    assert import_caffe(text.encode()).graph.values["y"].shape == ("N", 8, 18)
    with pytest.raises(ModelImportError, match="5 in place of the number of images"):
        import_caffe(text.replace("dim: 10 dim: 8", "dim: 5 dim: 16").encode())


@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 5, 4)])
def test_mean_images_are_read(shape: tuple[int, ...]) -> None:
    mean = RNG.uniform(0, 255, shape).astype(np.float32)
    for how in ("legacy", "double", "raw32"):
        assert np.array_equal(read_mean(blob(mean, how).SerializeToString()), mean)
    with pytest.raises(ModelImportError, match="is no mean image"):
        read_mean(blob(mean.ravel()).SerializeToString())
    broken = blob(mean, "legacy")
    del broken.data[0]
    with pytest.raises(ModelImportError, match=f"has {mean.size - 1} elements"):
        read_mean(broken.SerializeToString())
