"""Regions of shared memory: who may register which, who knows of them, and how long."""

from __future__ import annotations

import os
import signal
import tempfile
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import grpc
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.errors import UnavailableError
from dnnserve.front.processes import FrontProcesses
from dnnserve.shared_memory.posix import open_object
from dnnserve.shared_memory.requests import Registration

from tests.server.client_memory import (
    CODE,
    open_files,
    put,
    register,
    registered,
    request_of,
    scores_in,
    shared,
    unregister,
)
from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.serving import Client, front_end, infer_request, serving, status  # noqa: F401 - a fixture
from tests.server.test_front_processes import channels
from tests.server.test_rest import ask


def test_a_region_is_known_to_all_front_ends_or_to_none_and_to_those_that_are_started_again(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Lab(), front_ends=2, shared_memory=True) as (server, client):
        fronts = server._front
        assert isinstance(fronts, FrontProcesses)
        pid = fronts._fronts[1].pid
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr("dnnserve.front.process._ANSWER_S", 0.3)
        fd = open_object(memory.name)
        with pytest.raises(UnavailableError, match="front end 1 does not answer"):
            fronts.add_region(Registration("mine", memory.name, 0, 8192), fd)
        os.close(fd)
        monkeypatch.undo()
        os.kill(pid, signal.SIGCONT)
        register(client, memory.name).result(PATIENCE_S)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: fronts._fronts[1].pid != pid)
        for number, channel in enumerate(opened := channels(server.addresses.grpc, 6)):
            put(memory, number)
            Client(server, channel).infer.ModelInfer(request_of(), timeout=PATIENCE_S, wait_for_ready=True)
            assert scores_in(memory) == [[number, 2.0 * number, 3.0 * number]]
        for channel in opened:
            channel.close()


def test_what_is_unregistered_is_there_until_its_requests_have_ended(memory: SharedMemory) -> None:
    lab = Lab()
    with serving(lab, shared_memory=True) as (server, client):
        before = open_files(memory)
        register(client, memory.name).result(PATIENCE_S)
        put(memory, 3.0)
        lab.pause("cpu")
        waiting = client.infer.ModelInfer.future(request_of(), timeout=PATIENCE_S)
        cancelled = client.infer.ModelInfer.future(request_of(), timeout=PATIENCE_S)
        wait_until(lambda: server.scheduler.in_flight == 2)
        put(memory, 100.0)  # too late: it has been read
        unregister(client, "mine")
        unregister(client, "mine")  # which is no error
        assert open_files(memory) == before + 1
        cancelled.cancel()
        lab.resume()
        waiting.result(PATIENCE_S)
        assert scores_in(memory) == [[3.0, 6.0, 9.0]]
        wait_until(lambda: open_files(memory) == before)


def test_regions_are_bounded_and_names_are_taken_once(shared_client: Client) -> None:
    client = shared_client
    with shared() as first, shared(1 << 20) as second:
        register(client, first.name, "a", 4096, 4096).result(PATIENCE_S)
        assert registered(client, "a") == [("a", first.name, 4096, 4096)]
        assert status(register(client, first.name, "a"))[0] is CODE.ALREADY_EXISTS
        code, text = status(register(client, second.name, "b", 1 << 20))
        assert (code, "--max-shared-memory-mib" in text) == (CODE.RESOURCE_EXHAUSTED, True)
        register(client, second.name, "b", 4096).result(PATIENCE_S)
        code, text = status(register(client, first.name, "c", 1))
        assert (code, "--max-shared-memory-regions" in text) == (CODE.RESOURCE_EXHAUSTED, True)
        unregister(client)
        assert registered(client) == []
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            registered(client, "a")


def test_no_other_file_can_be_reached(shared_client: Client) -> None:
    folder = Path("/dev/shm")
    with shared() as memory, tempfile.TemporaryDirectory(dir=folder) as inner:
        (Path(inner) / "file").write_bytes(b"x" * 64)
        link, pipe = folder / f"{memory.name.lstrip('/')}-link", folder / f"{memory.name.lstrip('/')}-pipe"
        link.symlink_to("/etc/passwd")
        os.mkfifo(pipe)
        try:
            for key in (
                *("", "/", ".", "..", "/..", "../../etc/passwd", "/../etc/passwd", f"{Path(inner).name}/file"),
                *(Path(inner).name, link.name, pipe.name, "nowhere", "x" * 300, "a\0b", f"//{memory.name.lstrip('/')}"),
            ):
                code, text = status(register(shared_client, key, nbytes=1))
                assert code is CODE.INVALID_ARGUMENT, key
        finally:
            link.unlink()
            pipe.unlink()
        for nbytes, offset in ((8193, 0), (1, 8192), (0, 0), (1 << 63, 1 << 63)):
            code, text = status(register(shared_client, memory.name, nbytes=nbytes, offset=offset))
            assert code in (CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED), text
        assert registered(shared_client) == []


def test_over_http_regions_have_tritons_paths(shared_client: Client, memory: SharedMemory) -> None:
    path = "/v2/systemsharedmemory"
    key = {"key": memory.name, "byte_size": 64}
    assert ask(shared_client, f"{path}/region/mine/register", {**key, "offset": 1}).status == 200
    assert ask(shared_client, f"{path}/region/mine/register", key).status == 409
    assert ask(shared_client, f"{path}/region/mine/status").json == [
        {"name": "mine", "key": memory.name, "offset": 1, "byte_size": 64}
    ]
    assert ask(shared_client, f"{path}/region/mine/unregister", {}).status == 200
    assert ask(shared_client, f"{path}/unregister", {}).status == 200
    assert ask(shared_client, f"{path}/status").json == []
    assert ask(shared_client, f"{path}/region/mine/status").status == 404
    for bad in ({**key, "offset": -1}, {**key, "byte_size": "64"}, {"byte_size": 64}):
        assert ask(shared_client, f"{path}/region/mine/register", bad).status == 400
    assert ask(shared_client, f"{path}/register", key).status == 404
    assert ask(shared_client, "/v2/cudasharedmemory/region/mine/register", {}).status == 501
    assert ask(shared_client, "/v2/cudasharedmemory/unregister", {}).status == 200
    assert ask(shared_client, "/v2/cudasharedmemory/status").json == []


@pytest.mark.usefixtures("front_end")
def test_there_is_none_unless_the_operator_says_so(memory: SharedMemory) -> None:
    with serving(Lab()) as (_, client):
        code, text = status(register(client, memory.name))
        assert (code, "--shared-memory" in text) == (CODE.UNIMPLEMENTED, True)
        metadata = inference.ServerMetadataRequest()
        assert "system_shared_memory" not in client.infer.ServerMetadata(metadata, timeout=PATIENCE_S).extensions
    with serving(Lab(), shared_memory=True) as (_, client):
        register(client, memory.name).result(PATIENCE_S)
        assert "system_shared_memory" in client.infer.ServerMetadata(metadata, timeout=PATIENCE_S).extensions
        code, text = status(client.infer.CudaSharedMemoryRegister.future(inference.CudaSharedMemoryRegisterRequest()))
        assert (code, "CUDA shared memory is not supported" in text) == (CODE.UNIMPLEMENTED, True)
