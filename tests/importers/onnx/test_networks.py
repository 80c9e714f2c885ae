"""Whole networks: the nine that the wheel of onnx holds, and trained ones that other packages ship."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from PIL import Image, ImageDraw

from dnncore import Handle
from dnncore.errors import ModelImportError
from dnncore.importers.onnx import import_onnx
from tests.importers.onnx.nets import close, onnxruntime_run, run

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)


@pytest.fixture(scope="module")
def cpu() -> Iterator[Handle]:
    with Handle("cpu") as handle:
        yield handle


LARGE_LOGITS = {"squeezenet"}
"""Its thousand logits are equal and 9.5e9 each: neighbours in float32 are 1024 apart, so that a BLAS that adds up some rows in
another order than others would decide between the classes. It is run in float64."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_the_networks_of_onnx_give_what_is_stored_with_them(cpu: Handle, name: str) -> None:
    proto = onnx.load(LIGHT / f"light_{name}.onnx")
    model = import_onnx(_in_double(proto) if name in LARGE_LOGITS else proto)
    stored = TensorProto.FromString((LIGHT / f"light_{name}_output_0.pb").read_bytes())
    ((output,), (value,)) = model.graph.outputs, model.graph.inputs
    found = run(cpu, model, {value.name: _dummy(value.spec(1).shape).astype(value.dtype.numpy)}, 1)[output]
    np.testing.assert_allclose(found, numpy_helper.to_array(stored), rtol=1e-3, atol=1e-7)


def _in_double(model: ModelProto) -> ModelProto:
    """The network with float64 in place of float32."""
    for one in (*model.graph.input, *model.graph.output):
        if one.type.tensor_type.elem_type == TensorProto.FLOAT:
            one.type.tensor_type.elem_type = TensorProto.DOUBLE
    attributes = [attribute for node in model.graph.node for attribute in node.attribute]
    for tensor in (*model.graph.initializer, *(attribute.t for attribute in attributes)):
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


@pytest.mark.parametrize("name", sorted(LARGE_LOGITS))
def test_logits_too_large_for_a_softmax_in_float32_agree_with_onnxruntime(cpu: Handle, name: str) -> None:
    proto = onnx.load(LIGHT / f"light_{name}.onnx")
    softmax = proto.graph.node[-1]
    assert softmax.op_type == "Softmax"
    proto.graph.output[0].name = softmax.input[0]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.node.pop()
    model = import_onnx(proto)
    (value,) = model.graph.inputs
    x = _dummy(value.spec(1).shape)
    close(run(cpu, model, {value.name: x}, 1), onnxruntime_run(proto, {value.name: x}), 1e-5)


def _dummy(shape: tuple[int, ...]) -> np.ndarray:
    """What the stored outputs belong to: see `generate_dummy_data` in the runner of onnx.backend.test."""
    size = int(np.prod(shape))
    return (np.arange(size).reshape(shape) / size).astype(np.float32)


def _with_random_weights(path: Path) -> ModelProto:
    """A network of onnx whose weights, all of them constant, are exchanged for such as a net begins its training with."""
    model, rng = onnx.load(path), np.random.default_rng(0)
    shapes = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    variances = {node.input[4] for node in model.graph.node if node.op_type == "BatchNormalization"}
    for node in [node for node in model.graph.node if node.op_type == "ConstantOfShape"]:
        shape = shapes[node.input[0]].tolist()
        fan_in = max(int(np.prod(shape[1:])), 1)
        array = rng.standard_normal(shape) * (2 / fan_in) ** 0.5 if len(shape) > 1 else rng.uniform(-0.1, 0.1, shape)
        array = array + 1 if node.output[0] in variances else array
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), node.output[0]))
        model.graph.node.remove(node)
    return model


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["resnet50", "shufflenet", "squeezenet"])
def test_networks_made_for_one_image_run_for_any_number_and_agree_with_onnxruntime(cpu: Handle, name: str) -> None:
    proto = _with_random_weights(LIGHT / f"light_{name}.onnx")
    given = {one.name for one in proto.graph.initializer}
    (data,) = [one.name for one in proto.graph.input if one.name not in given]
    model = import_onnx(proto, shapes={data: ("N", 3, 224, 224)})
    x = np.random.default_rng(1).standard_normal((2, 3, 224, 224)).astype(np.float32)
    found = run(cpu, model, {data: x}, 2)
    apart = [onnxruntime_run(proto, {data: x[i : i + 1]}) for i in range(2)]
    close(found, {name: np.concatenate([one[name] for one in apart]) for name in apart[0]})


_OCR = importlib.util.find_spec("rapidocr_onnxruntime")
_MODELS = Path(_OCR.origin or "").parent / "models" if _OCR else None
_needs_ocr = pytest.mark.skipif(_MODELS is None, reason="pip install --no-deps rapidocr-onnxruntime==1.4.4")


def _text(height: int, width: int, *lines: str) -> np.ndarray:
    """Black lines on white, float32 [1, 3, H, W] from -1 to 1; each line as wide as the image."""
    image = Image.new("L", (width, height), 255)
    for number, line in enumerate(lines):
        box = ImageDraw.Draw(image).textbbox((0, 0), line)
        drawn = Image.new("L", (int(box[2]) + 2, int(box[3]) + 2), 255)
        ImageDraw.Draw(drawn).text((1, 1), line, fill=0)
        part = height // len(lines)
        image.paste(drawn.resize((width - 16, part - 12)), (8, number * part + 6))
    plane = np.asarray(image, np.float32) / 127.5 - 1
    return np.broadcast_to(plane, (1, 3, height, width))


@_needs_ocr
@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("ch_ppocr_mobile_v2.0_cls_infer", [_text(48, 192, "dnncore"), _text(48, 192, "dnncore")[:, :, ::-1, ::-1]]),
        ("ch_PP-OCRv4_rec_infer", [_text(48, 320, "dnncore"), _text(48, 320, "tensors")]),
        ("ch_PP-OCRv4_det_infer", [_text(96, 160, "graphs", "tensors"), _text(96, 160, "layers")]),
    ],
    ids=["classifier", "recogniser", "detector"],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_trained_networks_agree_with_onnxruntime(cpu: Handle, name: str, images: list[np.ndarray], batch: int) -> None:
    assert _MODELS is not None
    path, x = _MODELS / f"{name}.onnx", np.concatenate(images[:batch])
    model = import_onnx(path, shapes={"x": ("N", *x.shape[1:])})
    found, expected = run(cpu, model, {"x": x}, batch), onnxruntime_run(path, {"x": x})
    assert found.keys() == expected.keys()
    for output, array in expected.items():
        assert found[output].shape == array.shape
        assert array.max() > 0.9  # it has found something
        assert np.abs(found[output] - array).max() < 1e-4


@_needs_ocr
def test_a_trained_network_says_which_extents_it_leaves_open() -> None:
    assert _MODELS is not None
    with pytest.raises(ModelImportError) as caught:
        import_onnx(_MODELS / "ch_PP-OCRv4_rec_infer.onnx")
    (problem,) = caught.value.problems
    assert problem == "input 'x': dimension 2 (?) is left open; give it, as shapes={'x': ('N', 3, ..., ...)}"
