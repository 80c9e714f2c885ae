"""Inputs and outputs in shared memory of clients, which do with it whatever they like."""

from __future__ import annotations

import os
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest
from dnnserve.errors import InvalidRequestError
from dnnserve.shared_memory.requests import Area

from tests.server.client_memory import (
    CODE,
    OUT,
    ROW,
    image_tensor,
    images_request,
    opened,
    place,
    put,
    register,
    request_of,
    score,
    scores_in,
    shared,
    unregister,
    write,
)
from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.serving import Client, serving, status
from tests.server.test_rest import INFER, ask


def test_inputs_are_read_and_outputs_written_where_a_client_says(memory: SharedMemory) -> None:
    with serving(Lab(), http_port=0, shared_memory=True) as (_, client):
        register(client, f"/{memory.name.lstrip('/')}").result(PATIENCE_S)
        put(memory, 5.0, 3)
        answer = client.infer.ModelInfer(request_of(3), timeout=PATIENCE_S)
        assert scores_in(memory, 3) == [[5.0, 10.0, 15.0]] * 3
        (output,) = answer.outputs
        assert list(output.shape) == [3, 3]
        assert output.parameters["shared_memory_region"].string_param == "mine"
        assert output.parameters["shared_memory_offset"].int64_param == OUT
        assert output.parameters["shared_memory_byte_size"].int64_param == 36
        assert answer.raw_output_contents == [b""]
        body = {
            "inputs": [
                {"name": "data", "datatype": "FP32", "shape": [1, 3, 2, 4]}
                | {"parameters": {"shared_memory_region": "mine", "shared_memory_byte_size": ROW}}
            ]
        }
        put(memory, 7.0)
        assert ask(client, INFER, body).json["outputs"][0]["data"] == [7.0, 14.0, 21.0]
        unregister(client)
        assert status(client.infer.ModelInfer.future(request_of()))[0] is CODE.NOT_FOUND


def test_images_may_lie_there(memory: SharedMemory) -> None:
    content = image_tensor()
    with serving(Lab(), shared_memory=True) as (_, client):
        register(client, memory.name).result(PATIENCE_S)
        write(memory, content)
        assert score(client.infer.ModelInfer(images_request(len(content)), timeout=PATIENCE_S)) == 48


def test_inputs_have_a_budget_which_every_end_of_a_request_gives_back() -> None:
    lab, content = Lab(), image_tensor(600 << 10)
    with (
        shared(2 << 20) as memory,
        serving(lab, shared_memory=True, max_message_mib=2, max_shared_memory_input_mib=1) as (server, client),
    ):
        register(client, memory.name, nbytes=2 << 20).result(PATIENCE_S)

        def ask_for(nbytes: int = len(content)) -> Any:
            return client.infer.ModelInfer.future(images_request(nbytes), timeout=PATIENCE_S)

        write(memory, content)
        lab.pause("cpu")
        for cancel in (False, True):
            waiting = ask_for()
            wait_until(lambda: server.scheduler.in_flight == 1)
            code, text = status(ask_for())
            assert (code, "--max-shared-memory-input-mib" in text) == (CODE.RESOURCE_EXHAUSTED, True)
            if cancel:
                waiting.cancel()
                wait_until(lambda: server.scheduler.in_flight == 0)
            else:
                lab.resume()
                assert score(waiting.result(PATIENCE_S)) == 48
                lab.pause("cpu")
        lab.resume()
        unplaced = images_request(len(content))
        place(unplaced.outputs.add(name="scores"), 12, region="nowhere")
        wait_until(lambda: status(client.infer.ModelInfer.future(unplaced))[0] is CODE.NOT_FOUND)  # no more exhausted
        write(memory, content[:4] + bytes(64))
        assert status(ask_for())[0] is CODE.INVALID_ARGUMENT  # no image
        code, text = status(ask_for((1 << 20) + 1))
        assert (code, "--max-shared-memory-input-mib" in text) == (CODE.INVALID_ARGUMENT, True)
        write(memory, content)
        assert score(ask_for().result(PATIENCE_S)) == 48


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda request: place(request.inputs[0], ROW - 4), f"has {ROW - 4} bytes in shared memory"),
        (lambda request: place(request.inputs[0], ROW, 8192 - ROW + 1), "are not in shared memory region 'mine'"),
        (lambda request: place(request.inputs[0], ROW, -1), "from -1 on"),
        (lambda request: place(request.inputs[0], 0), "of 0 bytes"),
        (lambda request: place(request.outputs[0], 11, OUT), "has 12 bytes; 11 are there"),
        (lambda request: place(request.outputs[0], 12, 8190), "are not in shared memory region 'mine'"),
        (lambda request: request.raw_input_contents.append(b"x"), "raw_input_contents"),
        (lambda request: request.inputs[0].contents.fp32_contents.append(1.0), "lies in shared memory"),
        (lambda request: request.outputs[0].parameters["classification"].__setattr__("int64_param", 1), "classes"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(memory: SharedMemory, shared_client: Client, change: Any, part: str) -> None:
    register(shared_client, memory.name).result(PATIENCE_S)
    request = request_of()
    change(request)
    code, text = status(shared_client.infer.ModelInfer.future(request, timeout=PATIENCE_S))
    unregister(shared_client)
    assert (code, part in text) == (CODE.INVALID_ARGUMENT, True), text


def test_a_region_that_may_be_read_alone_takes_no_outputs(memory: SharedMemory) -> None:
    region, area = opened(memory, os.O_RDONLY), Area("mine", 0, 4)
    write(memory, b"abcd")
    region.check(area, written=False)
    assert bytes(region.read(area, lambda: None)) == b"abcd"
    with pytest.raises(InvalidRequestError, match="for reading alone"):
        region.check(area, written=True)
    region.release()
