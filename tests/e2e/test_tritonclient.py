"""An unmodified tritonclient against `dnnserve`, in a process of its own: its stubs and ours clash in one.

Run as a script (`python test_tritonclient.py GRPC HTTP`) this file is that client and prints what it saw as JSON.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

ROWS = np.random.default_rng(13).normal(size=(3, 1, 8, 8)).astype(np.float32)
TENSORS: dict[str, np.ndarray] = {
    "left": ROWS.reshape(3, 64)[:, :6].reshape(3, 2, 3),
    "half": np.arange(9, dtype=np.float16).reshape(3, 3),
    "count": np.arange(3, dtype=np.int32),
    "byte": np.arange(250, 259).astype(np.uint8).reshape(3, 3),
    "mask": np.array([[True, False, True]] * 3),
}
"""Inputs of `tests.server.mixed`."""

SOME = ("above", "chosen", "twice")
"""Outputs of it."""

PIXELS = np.random.default_rng(17).integers(0, 256, (2, 8, 8, 1), np.uint8)


def several_tensors(triton: Any, client: Any, **asked: Any) -> dict[str, Any]:
    """What a model of several inputs and outputs answers, and what it says of a request that lacks one."""
    from tritonclient.utils import InferenceServerException, np_to_triton_dtype

    inputs = []
    for name, array in reversed(list(TENSORS.items())):
        inputs.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    result = client.infer("mixed", inputs, outputs=[triton.InferRequestedOutput(name, **asked) for name in SOME])
    seen = {name: result.as_numpy(name).tolist() for name in SOME}
    seen["not asked for"] = result.as_numpy("sums")
    seen["all"] = client.infer("mixed", inputs).as_numpy("sums").tolist()
    try:
        client.infer("mixed", inputs[1:])
    except InferenceServerException as error:
        seen["error"] = error.message()
    return seen


def client_session(address: str) -> dict[str, Any]:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    def fails(call: Any) -> list[str]:
        try:
            call()
        except InferenceServerException as error:
            return [str(error.status()), str(error.message())]
        return ["OK", ""]

    def tensor(array: np.ndarray, datatype: str, name: str = "data") -> Any:
        value = triton.InferInput(name, list(array.shape), datatype)
        value.set_data_from_numpy(array)
        return value

    rows = tensor(ROWS, "FP32")
    with triton.InferenceServerClient(address) as client:
        seen: dict[str, Any] = {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model_ready": client.is_model_ready("digits"),
            "unknown_ready": fails(lambda: client.is_model_ready("nope")),
            "server": client.get_server_metadata(as_json=True),
            "metadata": client.get_model_metadata("digits", as_json=True),
            "config": client.get_model_config("digits", as_json=True)["config"],
        }
        result = client.infer("digits", [rows], request_id="r1", outputs=[triton.InferRequestedOutput("probabilities")])
        seen["id"] = result.get_response().id
        seen["several"] = several_tensors(triton, client)
        seen["probabilities"] = result.as_numpy("probabilities").tolist()
        seen["version_1"] = client.infer("digits", [rows], model_version="1").as_numpy("probabilities").tolist()
        pixels = client.infer("digits", [tensor(PIXELS, "UINT8")])
        seen["pixels"] = pixels.as_numpy("probabilities").tolist()
        classes = client.infer("digits", [rows], outputs=[triton.InferRequestedOutput("probabilities", class_count=2)])
        seen["classes"] = [[text.decode() for text in row] for row in classes.as_numpy("probabilities")]
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        for _ in range(20):
            client.async_infer("digits", [rows], lambda result, error: answers.put((result, error)))
        concurrent = [answers.get(timeout=30) for _ in range(20)]
        assert [error for _, error in concurrent] == [None] * 20
        seen["concurrent"] = [result.as_numpy("probabilities").tolist() for result, _ in concurrent]
        streamed: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: streamed.put((result, error)))
        for number in range(20):
            client.async_stream_infer("digits", [rows], request_id=str(number), model_version="1")
        client.async_stream_infer("nope", [rows], request_id="nope")
        answered = [streamed.get(timeout=30) for _ in range(21)]
        client.stop_stream()
        seen["stream"] = {
            result.get_response().id: result.as_numpy("probabilities").tolist()
            for result, error in answered
            if error is None
        }
        seen["stream_errors"] = [str(error.message()) for _, error in answered if error is not None]
        seen["unknown_model"] = fails(lambda: client.infer("nope", [rows]))
        seen["unknown_version"] = fails(lambda: client.infer("digits", [rows], model_version="9"))
        seen["wrong_name"] = fails(lambda: client.infer("digits", [tensor(ROWS, "FP32", "image")]))
        seen["wrong_shape"] = fails(lambda: client.infer("digits", [tensor(ROWS[:, :, :7].copy(), "FP32")]))
        seen["wrong_type"] = fails(lambda: client.infer("digits", [tensor(ROWS.astype(np.float64), "FP64")]))
        seen["not_an_image"] = fails(lambda: client.infer("digits", [tensor(np.array([b"junk"], np.object_), "BYTES")]))
        seen["generous_timeout"] = fails(lambda: client.infer("digits", [rows], timeout=30_000_000))
        seen["shared_memory"] = fails(client.get_system_shared_memory_status)
        seen["statistics"] = client.get_inference_statistics("digits", as_json=True)["model_stats"]
        seen["too_late"] = fails(lambda: client.infer("digits", [rows], timeout=1))
        seen["index"] = client.get_model_repository_index(as_json=True)["models"]
        client.unload_model("faces")
        seen["unloaded"] = fails(lambda: client.infer("faces", [rows]))
        seen["index_without"] = client.get_model_repository_index(as_json=True)["models"]
        client.load_model("faces")
        seen["loaded"] = client.infer("faces", [rows]).as_numpy("probabilities").tolist()
        seen["load_unknown"] = fails(lambda: client.load_model("nope"))
        seen["load_override"] = fails(lambda: client.load_model("digits", config="{}"))
    return seen


def http_session(address: str) -> dict[str, Any]:
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

    def fails(call: Any) -> list[str]:
        try:
            call()
        except InferenceServerException as error:
            return [str(error.status()), str(error.message())]
        return ["OK", ""]

    def tensor(array: np.ndarray, datatype: str, *, binary: bool = True) -> Any:
        value = triton.InferInput("data", list(array.shape), datatype)
        value.set_data_from_numpy(array, binary_data=binary)
        return value

    def output(**asked: Any) -> list[Any]:
        return [triton.InferRequestedOutput("probabilities", **asked)]

    rows = tensor(ROWS, "FP32")
    with triton.InferenceServerClient(address.removeprefix("http://"), concurrency=8) as client:
        answers = [
            client.infer("digits", [rows]),
            client.infer("digits", [tensor(ROWS, "FP32", binary=False)], outputs=output(binary_data=False)),
            client.infer("digits", [rows], model_version="2", outputs=output(binary_data=True), timeout=30_000_000),
            *[call.get_result() for call in [client.async_infer("digits", [rows]) for _ in range(20)]],
        ]
        classes = [
            client.infer("digits", [rows], outputs=output(binary_data=binary, class_count=2)).as_numpy("probabilities")
            for binary in (True, False)
        ]
        client.unload_model("faces")
        index = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
        client.load_model("faces")
        return {
            "index": [index["faces"], *(entry["state"] for entry in client.get_model_repository_index())],
            "load_override": fails(lambda: client.load_model("digits", config="{}")),
            "several": [several_tensors(triton, client, binary_data=binary) for binary in (True, False)],
            "live": [client.is_server_live(), client.is_server_ready(), client.is_model_ready("digits", "1")],
            "unknown_ready": client.is_model_ready("nope"),
            "server": client.get_server_metadata(),
            "metadata": client.get_model_metadata("digits"),
            "config": client.get_model_config("digits"),
            "probabilities": [answer.as_numpy("probabilities").tolist() for answer in answers],
            "pixels": client.infer("digits", [tensor(PIXELS, "UINT8")]).as_numpy("probabilities").tolist(),
            "classes": [
                [[str(np.char.decode(t) if isinstance(t, bytes) else t) for t in r] for r in c] for c in classes
            ],
            "id": client.infer("digits", [rows], request_id="r1").get_response()["id"],
            "statistics": client.get_inference_statistics("digits", "1"),
            "unknown_model": fails(lambda: client.infer("nope", [rows])),
            "wrong_type": fails(lambda: client.infer("digits", [tensor(ROWS.astype(np.float64), "FP64")])),
            "not_an_image": fails(lambda: client.infer("digits", [tensor(np.array([b"junk"], np.object_), "BYTES")])),
            "too_late": fails(lambda: client.infer("digits", [rows], timeout=1)),
        }


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    pytest.importorskip("tritonclient")
    from tests.server.mixed import save_mixed
    from tests.server.packages import make_repository
    from tests.server.test_command_line import started

    folder = tmp_path_factory.mktemp("triton")
    repository = make_repository(folder / "models")
    save_mixed(folder, repository / "mixed" / "1")
    arguments = (
        "--model-repository",
        repository,
        "--all-versions",
        "--devices",
        "cpu",
        "--max-batch",
        8,
        "--http-port",
        0,
        "--repository-mode",
        "explicit",
        "--load-model",
        "*",
    )
    with started(folder / "ready.json", *arguments) as (_, ready):
        result = subprocess.run(
            [sys.executable, __file__, str(ready["grpc"]), str(ready["http"])],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        yield json.loads(result.stdout)


def expected(seed: int, rows: np.ndarray) -> np.ndarray:
    from tests.server.packages import make_package, probabilities

    return probabilities(make_package(seed=seed), rows)


def test_it_finds_the_server_live_and_ready(seen: dict[str, Any]) -> None:
    assert [seen["live"], seen["ready"], seen["model_ready"]] == [True] * 3
    assert seen["unknown_ready"][0] == "StatusCode.NOT_FOUND"
    assert seen["server"]["name"] == "dnnserve"


def test_it_reads_metadata_and_config_as_the_image_client_needs_them(seen: dict[str, Any]) -> None:
    assert seen["metadata"]["versions"] == ["1", "2"]
    assert seen["metadata"]["inputs"] == [{"name": "data", "datatype": "FP32", "shape": ["-1", "1", "8", "8"]}]
    assert seen["metadata"]["outputs"] == [{"name": "probabilities", "datatype": "FP32", "shape": ["-1", "10"]}]
    assert (seen["config"]["name"], seen["config"]["max_batch_size"]) == ("digits", 8)
    assert seen["config"]["input"] == [
        {"name": "data", "data_type": "TYPE_FP32", "format": "FORMAT_NCHW", "dims": ["1", "8", "8"]}
    ]
    assert seen["config"]["output"] == [{"name": "probabilities", "data_type": "TYPE_FP32", "dims": ["10"]}]


def test_it_gets_the_probabilities_of_the_net_itself(seen: dict[str, Any]) -> None:
    from tests.server.packages import make_package

    assert seen["id"] == "r1"
    np.testing.assert_allclose(seen["probabilities"], expected(2, ROWS), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(seen["version_1"], expected(1, ROWS), rtol=1e-5, atol=1e-7)
    for answer in seen["concurrent"]:
        np.testing.assert_allclose(answer, expected(2, ROWS), rtol=1e-5, atol=1e-7)
    normalised = make_package().of_images[0].normalize(PIXELS)
    np.testing.assert_allclose(seen["pixels"], expected(2, normalised), rtol=1e-5, atol=1e-7)


def test_it_sends_and_gets_several_tensors(seen: dict[str, Any]) -> None:
    from tests.server.mixed import mixed

    outputs = mixed(TENSORS)
    for answer in (seen["several"], *seen["http"]["several"]):
        for name in SOME:
            assert answer[name] == outputs[name].tolist()
        np.testing.assert_allclose(answer["all"], outputs["sums"], rtol=1e-6)
        assert answer["not asked for"] is None
        assert "the request has 4 inputs ('byte', 'count', 'half', 'left')" in answer["error"]


def test_a_stream_gives_it_an_answer_for_each_request(seen: dict[str, Any]) -> None:
    assert set(seen["stream"]) == {str(number) for number in range(20)}
    for answer in seen["stream"].values():
        np.testing.assert_allclose(answer, expected(1, ROWS), rtol=1e-5, atol=1e-7)
    (error,) = seen["stream_errors"]
    assert "'nope'" in error


def test_it_gets_classes_as_value_index_label(seen: dict[str, Any]) -> None:
    from tests.server.packages import LABELS

    probabilities = expected(2, ROWS)
    for texts, row in zip(seen["classes"], probabilities, strict=True):
        for text, index in zip(texts, np.argsort(-row)[:2], strict=True):
            value, number, label = text.split(":")
            assert (int(number), label) == (index, LABELS[index])
            assert float(value) == pytest.approx(row[index], abs=1e-6)


ERRORS = {
    "unknown_model": ("NOT_FOUND", "'nope'"),
    "unknown_version": ("NOT_FOUND", "version 9"),
    "wrong_name": ("INVALID_ARGUMENT", "'image'"),
    "wrong_shape": ("INVALID_ARGUMENT", "[3, 1, 7, 8]"),
    "wrong_type": ("INVALID_ARGUMENT", "'FP64'"),
    "not_an_image": ("INVALID_ARGUMENT", "image 0"),
    "too_late": ("DEADLINE_EXCEEDED", "deadline"),
    "shared_memory": ("UNIMPLEMENTED", ""),
}


@pytest.mark.parametrize("case", ERRORS)
def test_it_sees_typed_errors(seen: dict[str, Any], case: str) -> None:
    code, part = ERRORS[case]
    status, message = seen[case]
    assert status == f"StatusCode.{code}"
    assert part in message


def test_its_statistics_count_what_it_sent(seen: dict[str, Any]) -> None:
    assert seen["generous_timeout"][0] == "OK"
    latest = {model["version"]: model for model in seen["statistics"]}["2"]
    # Of 3 rows: the first call, the one for classes, the one with a timeout and 20 at once; of 2 rows: the one with pixels.
    assert int(latest["inference_stats"]["success"]["count"]) == 24
    assert int(latest["inference_count"]) == 23 * 3 + 2
    # wrong_name, wrong_shape, wrong_type and not_an_image; those without a model or version have none to be counted for.
    assert int(latest["inference_stats"]["fail"]["count"]) == 4
    batches = {int(batch["batch_size"]): int(batch["compute_infer"]["count"]) for batch in latest["batch_stats"]}
    assert sum(size * count for size, count in batches.items()) == 23 * 3 + 2
    assert sum(batches.values()) == int(latest["execution_count"])
    assert max(batches) <= 8


def test_it_loads_and_unloads_models(seen: dict[str, Any]) -> None:
    ready = [("digits", "1", "READY"), ("digits", "2", "READY"), ("faces", "7", "READY"), ("mixed", "1", "READY")]
    assert [(entry["name"], entry["version"], entry["state"]) for entry in seen["index"]] == ready
    assert seen["unloaded"][0] == "StatusCode.NOT_FOUND"
    assert seen["index_without"][-2] == {
        "name": "faces",
        "version": "7",
        "state": "UNAVAILABLE",
        "reason": "not loaded",
    }
    np.testing.assert_allclose(seen["loaded"], expected(3, ROWS), rtol=1e-5, atol=1e-7)
    for case, code, part in (
        ("load_unknown", "NOT_FOUND", "there are 'digits', 'faces', 'mixed'"),
        ("load_override", "INVALID_ARGUMENT", "'config' of a load is not supported"),
    ):
        assert (case, seen[case][0], part in seen[case][1]) == (case, f"StatusCode.{code}", True)
    assert seen["http"]["index"] == ["UNAVAILABLE", "READY", "READY", "READY", "READY"]
    assert seen["http"]["load_override"][0] == "400"


def test_over_http_it_sees_the_same(seen: dict[str, Any]) -> None:
    from tests.server.packages import LABELS, make_package

    http = seen["http"]
    assert [*http["live"], http["unknown_ready"]] == [True, True, True, False]
    assert (http["server"]["name"], http["id"]) == ("dnnserve", "r1")
    assert http["metadata"]["inputs"] == [{"name": "data", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert (http["config"]["max_batch_size"], http["config"]["output"][0]["dims"]) == (8, [10])
    for answer in http["probabilities"]:
        np.testing.assert_allclose(answer, expected(2, ROWS), rtol=1e-5, atol=1e-7)
    normalised = make_package().of_images[0].normalize(PIXELS)
    np.testing.assert_allclose(http["pixels"], expected(2, normalised), rtol=1e-5, atol=1e-7)
    assert http["classes"][0] == http["classes"][1]
    for texts, row in zip(http["classes"][0], expected(2, ROWS), strict=True):
        assert [text.partition(":")[2] for text in texts] == [f"{i}:{LABELS[i]}" for i in np.argsort(-row)[:2]]
    assert http["statistics"]["model_stats"][0]["version"] == "1"
    errors = {"unknown_model": ("404", "'nope'"), "wrong_type": ("400", "'FP64'"), "not_an_image": ("400", "image 0")}
    for case, (code, part) in {**errors, "too_late": ("504", "deadline")}.items():
        assert (case, http[case][0], part in http[case][1]) == (case, code, True)


if __name__ == "__main__":
    print(json.dumps({**client_session(sys.argv[1]), "http": http_session(sys.argv[2])}))
