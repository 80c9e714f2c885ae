"""Models of several inputs and outputs: what requests may say, and that batches of them give each its own rows of every tensor."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from dnnclient import Client, InvalidArgumentError
from dnnserve.assembly import make_server
from dnnserve.command_line import parse_arguments
from dnnserve.engine.net import NetHost, ServedModel, Terms
from dnnserve.envelope import ModelKey, OwnBlock
from dnnserve.errors import InvalidRequestError
from dnnserve.front.areas import SharedRows, release
from dnnserve.front.model_info import config_message, metadata_message
from dnnserve.front.parameters import Wanted
from dnnserve.front.requests import parse_classify, parse_infer
from dnnserve.front.responses import infer_response
from dnnserve.front.rest.routes import Route
from dnnserve.front.rest.transcoding import infer_body, infer_message
from dnnserve.front.tensors import DATATYPES
from dnnserve.lifecycle.reading import model_spec
from dnnserve.shared_memory.regions import Regions
from dnnserve.shared_memory.requests import Registration

from dnncore.dtypes import DType
from dnncore.nn import Package
from dnncore.nn.passes import for_inference
from tests.conftest import DEVICES
from tests.server.client_memory import place
from tests.server.fakes import PATIENCE_S, run_blocks
from tests.server.mixed import INPUTS, OUTPUTS, mixed, rows_of_mixed, save_mixed, write_mixed

KEY = ModelKey("mixed", 1)
WANTED = ((0, 1, 2, 3), (3, 0), (2,))
FIELDS = {"FP32": "fp32_contents", "INT32": "int_contents", "UINT8": "uint_contents", "BOOL": "bool_contents"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("mixed")
    save_mixed(folder, folder / "package")
    return Package.load(folder / "package")


@pytest.fixture(scope="module")
def spec(package: Package) -> Any:
    return model_spec(KEY, package, 8)


def request_of(
    tensors: Mapping[str, np.ndarray], outputs: tuple[str, ...] = (), typed: tuple[str, ...] = ()
) -> inference.ModelInferRequest:
    """A request with these inputs in this order, some of them in the field for their datatype."""
    request = inference.ModelInferRequest(model_name="mixed")
    for name, array in tensors.items():
        datatype = DATATYPES[DType.of(array.dtype)]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if name in typed:
            getattr(tensor.contents, FIELDS[datatype]).extend(array.ravel().tolist())
        else:
            request.raw_input_contents.append(array.tobytes())
    for name in outputs:
        request.outputs.add(name=name)
    return request


def reversed_(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(reversed(list(tensors.items())))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", [DType.FLOAT32, DType.FLOAT16])
def test_requests_of_a_batch_get_their_own_rows_of_every_output(
    device: str, precision: DType, package: Package
) -> None:
    model = ServedModel(for_inference(package.serving_model, precision), None)
    host = NetHost(device, {KEY: model}, terms=Terms(batch_invariant=precision is DType.FLOAT16))
    pipeline = host.load(KEY, 8)
    requests = [rows_of_mixed(seed, rows) for seed, rows in enumerate((2, 1, 4))]
    blocks = [OwnBlock([*tensors.values()], wanted=wanted) for tensors, wanted in zip(requests, WANTED, strict=True)]
    run_blocks(pipeline, *blocks)
    run_blocks(pipeline, OwnBlock([*rows_of_mixed(9, 7).values()], wanted=WANTED[0]))  # leaves the first batch's alone
    for tensors, block in zip(requests, blocks, strict=True):
        assert tuple(block.outputs) == block.wanted
        for number, expected in enumerate(mixed(tensors).values()):
            if number in block.wanted:
                assert block.outputs[number].dtype == expected.dtype
                np.testing.assert_array_equal(block.outputs[number], expected)
    assert not any(array[7:].any() for array in pipeline.instance.slots[0].inputs), "padding is zero in all inputs"
    host.close()


@pytest.mark.parametrize("typed", [(), ("left",), tuple(name for name in INPUTS if name != "half")])
@pytest.mark.parametrize("order", [dict, reversed_])
def test_inputs_come_in_any_order_as_bytes_or_typed(
    order: Callable[..., dict[str, np.ndarray]], typed: tuple[str, ...], spec: Any
) -> None:
    tensors = rows_of_mixed(5, 3)
    read = parse_infer(request_of(order(tensors), typed=typed).SerializeToString()).read(spec)
    assert not read.pixels
    for found, sent in zip(read.source, tensors.values(), strict=True):  # type: ignore[arg-type]
        assert found.dtype == sent.dtype
        np.testing.assert_array_equal(found, sent)


def test_some_of_them_may_lie_in_shared_memory(spec: Any) -> None:
    tensors, regions, offset = rows_of_mixed(5, 3), Regions(taken=True), 4096
    fd = os.memfd_create("test")
    os.truncate(fd, 1 << 16)
    regions.add(Registration("mine", "/mine", 64, (1 << 16) - 64), fd)
    request = request_of(reversed_({name: rows for name, rows in tensors.items() if name not in ("half", "mask")}))
    for name in ("mask", "half"):
        tensor = request.inputs.add(
            name=name, datatype=DATATYPES[DType.of(tensors[name].dtype)], shape=tensors[name].shape
        )
        os.pwrite(fd, tensors[name].tobytes(), 64 + offset)
        place(tensor, tensors[name].nbytes, offset)
        offset += 1000  # no multiple of anything
    expected = mixed(tensors)
    for name in ("twice", "sums", "above"):
        output = request.outputs.add(name=name)
        if name != "sums":
            place(output, expected[name].nbytes + 5, offset)
            offset += 1000
    read = parse_infer(request.SerializeToString(), regions).read(spec)
    assert isinstance(read.source, SharedRows)
    for found, sent in zip(read.source.rows(lambda: None), tensors.values(), strict=True):
        np.testing.assert_array_equal(found, sent)
    answer = inference.ModelInferResponse.FromString(
        infer_response("", spec, dict(enumerate(expected.values())), read.wanted, lambda: None)
    )
    release(read.wanted, read.origins)
    assert answer.raw_output_contents == [b"", expected["sums"].tobytes(), b""]
    for written in (answer.outputs[0], answer.outputs[2]):
        nbytes, where = (written.parameters[f"shared_memory_{name}"].int64_param for name in ("byte_size", "offset"))
        assert os.pread(fd, nbytes, 64 + where) == expected[written.name].tobytes()
    regions.close()
    os.close(fd)


def altered(
    change: Callable[[dict[str, np.ndarray]], object] = lambda _: None, **asked: Any
) -> inference.ModelInferRequest:
    tensors = rows_of_mixed(5, 3)
    change(tensors)
    return request_of(tensors, **asked)


def with_second_left(request: inference.ModelInferRequest) -> inference.ModelInferRequest:
    request.inputs[1].CopyFrom(request.inputs[0])
    return request


def of_outputs(**parameters: Any) -> inference.ModelInferRequest:
    request = altered(outputs=("twice",))
    for name, value in parameters.items():
        request.outputs[0].parameters[name].int64_param = value
    return request


REFUSED = {
    "a missing input": (
        altered(lambda tensors: tensors.pop("mask")),
        r"has 4 inputs \('left', 'half', .*takes exactly these 5, 'left', 'half', 'count', 'byte', 'mask'",
    ),
    "an input that is none": (altered(lambda tensors: tensors.update(x=tensors.pop("mask"))), "'x'.*these 5"),
    "one input twice": (with_second_left(altered()), r"\('left', 'left', .*these 5"),
    "another number of rows": (
        altered(lambda tensors: tensors.update(byte=tensors["byte"][:2])),
        r"different numbers of rows \('left' 3, 'half' 3, 'count' 3, 'byte' 2, 'mask' 3\)",
    ),
    "another datatype": (
        altered(lambda tensors: tensors.update(half=tensors["half"].astype(np.float32))),
        "datatype 'FP32' of input 'half' is not supported; use FP16",
    ),
    "pixels": (
        altered(lambda tensors: tensors.update(half=tensors["byte"])),
        r"without preprocessing.*send FP16 \[n, 3\]",
    ),
    "another shape": (
        altered(lambda tensors: tensors.update(count=tensors["count"][:, None])),
        r"\[3, 1\] of INT32 input 'count' does not fit; send \[n\]",
    ),
    "bytes of none": (altered(typed=("left",)), None),
    "an unknown output": (altered(outputs=("sums", "y")), r"'sums', 'y'\).*has 'sums', 'chosen', 'twice', 'above'"),
    "one output twice": (altered(outputs=("sums", "sums")), "2 outputs.*each once"),
    "classes of integers": (of_outputs(classification=2), r"'twice' has no classes: it is int32\[\] a row"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_its_name(case: str, spec: Any) -> None:
    request, message = REFUSED[case]
    if message is None:
        del request.raw_input_contents[-1]
        message = "4 of the request's inputs have no contents, and it has the bytes of 3"
    with pytest.raises(InvalidRequestError, match=message):
        parse_infer(request.SerializeToString()).read(spec)


def test_every_byte_but_0_is_true(spec: Any) -> None:
    request = altered()
    request.raw_input_contents[-1] = bytes([0, 1, 2, 255, 0, 0, 0, 0, 128])
    *_, mask = parse_infer(request.SerializeToString()).read(spec).source  # type: ignore[misc]
    assert mask.view(np.uint8).tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 1]]


def test_numbers_that_are_too_large_are_refused(spec: Any) -> None:
    request = altered(typed=("byte",))
    request.inputs[3].contents.uint_contents[0] = 256
    with pytest.raises(InvalidRequestError, match="uint_contents has the value 256; UINT8 ends at 255"):
        parse_infer(request.SerializeToString()).read(spec)


def test_only_the_outputs_asked_for_are_answered_in_their_order(spec: Any) -> None:
    outputs = dict(enumerate(mixed(rows_of_mixed(5, 2)).values()))
    asked = parse_infer(altered(outputs=("above", "sums")).SerializeToString()).read(spec).wanted
    assert asked == (Wanted(3, 0), Wanted(0, 0))
    response = inference.ModelInferResponse.FromString(infer_response("r", spec, outputs, asked, lambda: None))
    assert [(one.name, one.datatype, tuple(one.shape)) for one in response.outputs] == [
        ("above", "BOOL", (2, 2, 3)),
        ("sums", "FP32", (2, 3)),
    ]
    assert response.raw_output_contents == [outputs[3].tobytes(), outputs[0].tobytes()]


def test_metadata_and_configuration_name_all_tensors(spec: Any) -> None:
    metadata, config = metadata_message(spec, [1]), config_message(spec)
    for described, configured, tensors in (
        (metadata.inputs, config.input, INPUTS),
        (metadata.outputs, config.output, OUTPUTS),
    ):
        found = {one.name: tuple(one.shape) for one in described}
        assert found == {name: (-1, *shape[1:]) for name, (_, shape) in tensors.items()}
        types = [inference.DataType.Name(one.data_type).removeprefix("TYPE_") for one in configured]
        assert types == [one.datatype for one in described]
        assert [(one.name, *one.dims) for one in configured] == [(one.name, *one.shape[1:]) for one in described]


def test_over_http_each_tensor_is_json_or_bytes(spec: Any) -> None:
    tensors = rows_of_mixed(5, 2)
    described: list[dict[str, Any]] = []
    behind = b""
    for name, array in tensors.items():
        one: dict[str, Any] = {"name": name, "datatype": DATATYPES[DType.of(array.dtype)], "shape": array.shape}
        if name in ("half", "byte"):
            one["parameters"] = {"binary_data_size": array.nbytes}
            behind += array.tobytes()
        else:
            one["data"] = array.tolist()
        described.append(one)
    as_bytes = {"parameters": {"binary_data": True}}
    asked = [{"name": "chosen", **as_bytes}, {"name": "sums"}, {"name": "above"}, {"name": "twice", **as_bytes}]
    text = json.dumps({"inputs": described, "outputs": asked}).encode()
    message, binary = infer_message(Route("ModelInfer", "mixed"), text + behind, len(text))
    read = parse_infer(message).read(spec)
    for found, sent in zip(read.source, tensors.values(), strict=True):  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, sent)
    outputs = mixed(tensors)
    body = infer_body(infer_response("", spec, dict(enumerate(outputs.values())), read.wanted, lambda: None), binary)
    assert body.json_bytes is not None
    chosen, sums, above, twice = json.loads(body.data[: body.json_bytes])["outputs"]
    assert body.data[body.json_bytes :] == outputs["chosen"].tobytes() + outputs["twice"].tobytes()
    for one in (chosen, twice):
        assert one["parameters"] == {"binary_data_size": outputs[one["name"]].nbytes}
    for one in (sums, above):
        assert one["data"] == outputs[one["name"]].ravel().tolist()
    described[1] = {"name": "half", "datatype": "FP16", "shape": [2, 3], "data": tensors["half"].tolist()}
    described[3]["parameters"]["binary_data_size"] = 6
    text = json.dumps({"inputs": described}).encode()
    message, _ = infer_message(Route("ModelInfer", "mixed"), text + bytes(6), len(text))
    with pytest.raises(InvalidRequestError, match=r"no field for FP16.*'half': send its bytes"):
        parse_infer(message).read(spec)


def test_classify_is_for_models_of_one_input(package: Package) -> None:
    graph = package.graph.rewritten(package.graph.nodes, outputs=("sums",))
    labelled = model_spec(KEY, Package("mixed", graph, package.weights, None, ("ant", "bee", "cat")), 8)
    request = classifier.ClassifyRequest(model_name="mixed", images=[b"x"])
    with pytest.raises(InvalidRequestError, match=r"mixed/1 has 5 inputs, and images are one; .* ModelInfer"):
        parse_classify(request.SerializeToString()).read(labelled)


@pytest.fixture(params=["thread", "process"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """Of a server in this process alone, and of one whose front end and engine have processes of their own."""
    apart = ["--front-ends", "1"] if request.param == "process" else []
    arguments = ["--devices", "cpu", "--max-batch", "8", "--grpc-port", "0", "--metrics-port", "0", *apart]
    config = parse_arguments(
        [
            "--model",
            str(write_mixed(tmp_path / "mixed.onnx")),
            "--engines",
            request.param,
            "--no-save-costs",
            *arguments,
        ]
    )
    server = make_server(config)
    server.start()
    with Client(server.addresses.grpc, model="mixed", timeout_s=PATIENCE_S) as client:
        yield client
    assert server.drain()


def test_clients_at_once_get_their_own_answers(client: Client) -> None:
    requests = [rows_of_mixed(seed, 1 + seed % 4) for seed in range(24)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(client.infer, requests))
    for tensors, answer in zip(requests, answers, strict=True):
        expected = mixed(tensors)
        assert list(answer) == list(OUTPUTS)
        for name, array in answer.items():
            np.testing.assert_array_equal(array, expected[name])
    assert list(client.infer(requests[0], outputs=("twice",))) == ["twice"]
    with pytest.raises(InvalidArgumentError, match="these 5"):
        client.infer({"left": requests[0]["left"]})
    assert client.model().input_shape == ()
