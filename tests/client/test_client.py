from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from dnnclient import (
    CallCancelledError,
    Client,
    ClientError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    ServerError,
    UnavailableError,
    UnimplementedError,
)

from dnncore.errors import BadParamError, ClosedError, DnncoreError
from tests.client.fake_server import PREPROCESSING, FakeServer, image


def test_classify_returns_labels_most_probable_first(client: Client) -> None:
    (classification,) = client.classify(image(8), top_k=3)
    assert [p.index for p in classification.predictions] == [8, 9, 0]
    assert [p.probability for p in classification.predictions] == [0.5, 0.25, 0.125]
    assert classification.best == classification.predictions[0]
    assert classification.best.label == "label 8"


def test_classify_keeps_the_order_of_bytes_and_paths(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "five.png"
    path.write_bytes(image(5))
    assert [c.best.index for c in client.classify([image(7), path, image(2)])] == [7, 5, 2]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_classify_sends_arrays_as_one_tensor(client: Client, server: FakeServer, dtype: type) -> None:
    shape = (2, 3, 1) if dtype is np.uint8 else (1, 2, 3)
    batch: np.ndarray = np.stack([np.full(shape, index, dtype) for index in (4, 9, 1)])
    assert [c.best.index for c in client.classify(batch)] == [4, 9, 1]
    assert [c.best.index for c in client.classify(list(batch))] == [4, 9, 1]
    assert [c.best.index for c in client.classify(batch[1])] == [9]
    assert server.requests[0] == server.requests[1]


def test_a_call_may_name_model_version_and_the_client_a_default(server: FakeServer) -> None:
    with Client(server.target) as client:
        with pytest.raises(InvalidArgumentError, match="no model is named"):
            client.classify(image(1))
        client.classify(image(1), model="digits", version="1")
    assert [(r.model_name, r.model_version) for r in server.requests] == [("digits", "1")]


def test_model_describes_the_version_asked_for(client: Client) -> None:
    info = client.model(version="1")
    assert (info.name, info.version, info.versions) == ("digits", "1", ("1", "2"))
    assert info.input_shape == PREPROCESSING.input_shape
    assert info.preprocessing == PREPROCESSING
    assert len(info.labels) == 10
    assert info.max_batch_size == 8
    assert client.model().version == "2"


def test_a_call_may_state_a_priority_and_the_client_a_default(server: FakeServer) -> None:
    with Client(server.target, model="digits", priority=3) as client:
        client.classify(image(1))
        client.classify(image(1), priority=1)
        client.classify(image(1), priority=0)
        with pytest.raises(BadParamError, match="priority is -1"):
            client.classify(image(1), priority=-1)
    assert [seen.get("dnn-priority") for seen in server.metadata] == ["3", "1", None]
    with pytest.raises(BadParamError, match="priority is -1"):
        Client(server.target, priority=-1)


def test_infer_sends_and_returns_arrays_by_name(client: Client) -> None:
    inputs = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
        "text": np.array([b"", b"ab"], np.object_),
    }
    outputs = client.infer(inputs)
    assert outputs.keys() == {"x", "text"}
    np.testing.assert_array_equal(outputs["x"], inputs["x"])
    assert outputs["x"].dtype == np.float32
    assert outputs["text"].tolist() == [b"", b"ab"]
    assert client.infer(inputs, outputs=["text"]).keys() == {"text"}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_ARGUMENT", InvalidArgumentError),
        ("NOT_FOUND", NotFoundError),
        ("RESOURCE_EXHAUSTED", OverloadedError),
        ("DEADLINE_EXCEEDED", DeadlineExceededError),
        ("UNAVAILABLE", UnavailableError),
        ("CANCELLED", CallCancelledError),
        ("UNIMPLEMENTED", UnimplementedError),
        ("INTERNAL", ServerError),
        ("PERMISSION_DENIED", ClientError),
        ("UNKNOWN", ClientError),
    ],
)
def test_each_status_has_its_error_with_message_and_code(client: Client, code: str, kind: type[ClientError]) -> None:
    with pytest.raises(ClientError, match=r"^told to$") as caught:
        client.classify(image(1), model=f"abort {code}")
    assert type(caught.value) is kind
    assert caught.value.code is grpc.StatusCode[code]
    assert isinstance(caught.value, DnncoreError)


def test_errors_are_also_the_builtin_errors_of_their_kind(client: Client, nobody: str) -> None:
    with pytest.raises(ValueError, match="3 bytes are not an image"):
        client.classify(b"no!")
    with pytest.raises(LookupError, match="'cats' version '' is not loaded"):
        client.classify(image(1), model="cats")
    with Client(nobody, model="digits") as lost, pytest.raises(ConnectionError):
        lost.classify(image(1))


def test_a_full_server_is_overloaded_and_answers_the_others() -> None:
    with (
        FakeServer(max_in_flight=1, gather=2) as server,
        Client(server.target, model="digits") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(client.classify, image(1))
        server.wait_for_calls(1)
        with pytest.raises(OverloadedError, match="1 requests wait already"):
            client.classify(image(2))
        server.max_in_flight = 2
        assert client.classify(image(3))[0].best.index == 3
        assert first.result()[0].best.index == 1


def test_a_call_that_is_not_answered_in_time_ends_with_its_timeout() -> None:
    with FakeServer(gather=3) as server, Client(server.target, model="digits", timeout_s=0.2) as client:
        with pytest.raises(TimeoutError):
            client.classify(image(1))
        with pytest.raises(DeadlineExceededError):
            client.classify(image(1), timeout_s=0.05)


def test_an_answer_that_lacks_an_image_is_the_servers_error() -> None:
    with (
        FakeServer(answers_lost=1) as server,
        Client(server.target, model="digits") as client,
        pytest.raises(ServerError, match="1 classifications came back for 2 images"),
    ):
        client.classify([image(1), image(2)])


def test_a_client_is_used_by_several_threads_at_once() -> None:
    with FakeServer(gather=4) as server, Client(server.target, model="digits") as client:
        with ThreadPoolExecutor(4) as pool:  # answered only when four calls are under way
            answers = list(pool.map(client.classify, map(image, range(8))))
        assert [answer[0].best.index for answer in answers] == list(range(8))
        assert server.most_in_flight == 4


def test_live_and_ready_follow_the_servers_state(client: Client, server: FakeServer, nobody: str) -> None:
    assert (client.is_live(), client.is_ready(), client.is_ready("digits")) == (True, True, True)
    server.draining = True
    assert (client.is_live(), client.is_ready(), client.is_ready("digits")) == (True, False, False)
    server.draining = False
    with pytest.raises(NotFoundError):
        client.is_ready("cats")
    with Client(nobody) as lost:
        assert (lost.is_live(), lost.is_ready()) == (False, False)


def test_wait_until_ready_waits_for_the_state_or_says_what_was_not_ready(client: Client, server: FakeServer) -> None:
    server.draining = True
    with pytest.raises(UnavailableError, match=rf"{server.target} was not ready within 0\.2 s"):
        client.wait_until_ready(timeout_s=0.2)
    ready = threading.Timer(0.2, setattr, (server, "draining", False))
    ready.start()
    client.wait_until_ready(timeout_s=30)
    ready.join()
    assert client.is_ready()


def test_a_closed_client_says_so(server: FakeServer) -> None:
    with Client(server.target, model="digits") as client:
        client.close()
    for call in (lambda: client.classify(image(1)), client.is_live, client.model):
        with pytest.raises(ClosedError, match="was closed"):
            call()
