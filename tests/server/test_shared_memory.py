"""Inputs and outputs in shared memory of clients, which do with it whatever they like."""

from __future__ import annotations

import io
import os
import signal
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.errors import InvalidRequestError, UnavailableError
from dnnserve.front import decoding, service
from dnnserve.front.areas import SharedImages, release
from dnnserve.front.processes import FrontProcesses
from dnnserve.front.requests import parse_infer
from dnnserve.shared_memory import regions
from dnnserve.shared_memory.posix import open_object
from dnnserve.shared_memory.regions import Region, Regions
from dnnserve.shared_memory.requests import Area, Registration
from PIL import Image

from tests.server.fakes import PATIENCE_S, Lab, make_rows, make_spec, wait_until
from tests.server.serving import Client, front_end, infer_request, serving, status  # noqa: F401 - a fixture
from tests.server.test_front_processes import channels
from tests.server.test_rest import INFER, ask

CODE = grpc.StatusCode
ROW = make_rows(0.0).nbytes
OUT = 4096  # where the outputs are


@contextmanager
def shared(nbytes: int = 8192) -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=nbytes)
    try:
        yield memory
    finally:
        memory.close()
        memory.unlink()


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with shared() as memory:
        yield memory


@pytest.fixture
def shared_client() -> Iterator[Client]:
    with serving(Lab(), shared_memory=True, http_port=0, max_shared_memory_regions=2, max_shared_memory_mib=1) as (
        _,
        client,
    ):
        yield client


def register(client: Client, key: str, name: str = "mine", nbytes: int = 8192, offset: int = 0) -> Any:
    request = inference.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=nbytes, offset=offset)
    return client.infer.SystemSharedMemoryRegister.future(request, timeout=PATIENCE_S)


def unregister(client: Client, name: str = "") -> None:
    client.infer.SystemSharedMemoryUnregister(
        inference.SystemSharedMemoryUnregisterRequest(name=name), timeout=PATIENCE_S
    )


def registered(client: Client, name: str = "") -> list[tuple[str, str, int, int]]:
    request = inference.SystemSharedMemoryStatusRequest(name=name)
    regions = client.infer.SystemSharedMemoryStatus(request, timeout=PATIENCE_S).regions
    return [(each.name, each.key, each.offset, each.byte_size) for each in regions.values()]


def place(tensor: Any, nbytes: int, offset: int = 0, region: str = "mine") -> None:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = nbytes
    if offset:
        tensor.parameters["shared_memory_offset"].int64_param = offset


def request_of(count: int = 1, *, given: bool = True, wanted: bool = True) -> Any:
    """A request whose rows and whose scores are in the region, or in the messages."""
    request = infer_request(5.0, count)
    if given:
        del request.raw_input_contents[:]
        place(request.inputs[0], count * ROW)
    if wanted:
        place(request.outputs.add(name="scores"), 1024, OUT)
    return request


def put(memory: SharedMemory, value: float, count: int = 1) -> None:
    write(memory, make_rows(value, count).tobytes())


def write(memory: SharedMemory, content: bytes) -> None:
    assert memory.buf is not None
    memory.buf[: len(content)] = content


def scores_in(memory: SharedMemory, count: int = 1) -> list[list[float]]:
    assert memory.buf is not None
    values: list[list[float]] = np.frombuffer(bytes(memory.buf[OUT : OUT + 12 * count]), "<f4").reshape(-1, 3).tolist()
    return values


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


def image_tensor(padding: int = 0) -> bytes:
    """A BYTES tensor of an image whose score is 48, with bytes behind it that no decoder reads."""
    file = io.BytesIO()
    Image.new("RGB", (4, 2), (1, 2, 3)).save(file, "png")
    content = file.getvalue() + bytes(padding)
    return struct.pack("<I", len(content)) + content


def images_request(nbytes: int) -> Any:
    request = inference.ModelInferRequest(model_name="toy")
    place(request.inputs.add(name="data", datatype="BYTES", shape=[1]), nbytes)
    return request


def score(answer: Any) -> float:
    return float(np.frombuffer(answer.raw_output_contents[0], "<f4")[0])


def test_images_may_lie_there(memory: SharedMemory) -> None:
    content = image_tensor()
    with serving(Lab(), shared_memory=True) as (_, client):
        register(client, memory.name).result(PATIENCE_S)
        write(memory, content)
        assert score(client.infer.ModelInfer(images_request(len(content)), timeout=PATIENCE_S)) == 48


def test_images_are_copied_once_when_they_are_decoded(memory: SharedMemory) -> None:
    known, content = Regions(taken=True, most_image_bytes=8192), image_tensor()
    fd = open_object(memory.name)
    known.add(Registration("mine", memory.name, 0, 8192), fd)
    os.close(fd)
    read = parse_infer(images_request(len(content)).SerializeToString(), known).read(make_spec())
    known.close()  # the request holds the region
    write(memory, content)
    assert isinstance(read.source, SharedImages)
    assert read.source.count_pixels(lambda: None) == 8
    write(memory, b"junk" * 16)
    (rows,) = read.source.rows(lambda: None)
    assert rows.tolist() == [[[[1, 2, 3]] * 4] * 2]
    before = open_files(memory)
    release(read.wanted, read.origins)
    assert open_files(memory) == before - 1


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


def test_nothing_is_read_for_a_request_that_is_late(memory: SharedMemory) -> None:
    with serving(Lab(), shared_memory=True) as (_, client):
        register(client, memory.name).result(PATIENCE_S)
        path = Path("/dev/shm", memory.name.lstrip("/"))
        os.truncate(path, 0)  # whoever reads gets another error
        request = request_of(wanted=False)
        request.parameters["timeout"].int64_param = 1
        assert status(client.infer.ModelInfer.future(request, timeout=PATIENCE_S))[0] is CODE.DEADLINE_EXCEEDED
        os.truncate(path, 8192)


def test_calls_are_taken_and_answered_while_a_large_copy_goes_on(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_COPIED_AT_ONCE_BYTES", ROW)
    copying, go_on = threading.Semaphore(0), threading.Semaphore(0)
    transfer = Region._transfer

    def held(region: Region, act: Any, data: memoryview, area: Area, checkpoint: Any) -> None:
        if area.nbytes > ROW:
            copying.release()
            assert go_on.acquire(timeout=PATIENCE_S)
        transfer(region, act, data, area, checkpoint)

    monkeypatch.setattr(Region, "_transfer", held)
    with serving(Lab(), specs=[make_spec(max_batch_rows=16)], shared_memory=True) as (_, client):
        register(client, memory.name).result(PATIENCE_S)
        put(memory, 5.0, 16)
        large = client.infer.ModelInfer.future(request_of(16), timeout=PATIENCE_S)
        for _ in ("its input is read", "its output is written"):
            assert copying.acquire(timeout=PATIENCE_S)
            client.infer.ModelInfer(request_of(1), timeout=PATIENCE_S)
            assert scores_in(memory) == [[5.0, 10.0, 15.0]]
            assert not large.done()
            go_on.release()
        large.result(PATIENCE_S)
        assert scores_in(memory, 16) == [[5.0, 10.0, 15.0]] * 16


def test_what_has_been_computed_does_not_wait_for_images_to_be_decoded(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_COPIED_AT_ONCE_BYTES", ROW)
    begun, go_on = threading.Semaphore(0), threading.Event()

    def decode(*_arguments: object) -> list[np.ndarray]:
        begun.release()
        assert go_on.wait(2 * PATIENCE_S)  # longer than anybody waits for what has been computed
        return [np.zeros((1, 2, 4, 3), np.uint8)]

    monkeypatch.setattr(SharedImages, "rows", decode)
    with serving(Lab(), specs=[make_spec(max_batch_rows=16)], shared_memory=True) as (_, client):
        register(client, memory.name).result(PATIENCE_S)
        content = image_tensor()
        write(memory, content)
        threads = min(os.cpu_count() or 1, decoding._MAX_THREADS)
        images = [client.infer.ModelInfer.future(images_request(len(content))) for _ in range(threads)]
        for _ in images:
            assert begun.acquire(timeout=PATIENCE_S)
        try:
            client.infer.ModelInfer(request_of(16, given=False), timeout=PATIENCE_S)
            assert scores_in(memory, 16) == [[5.0, 10.0, 15.0]] * 16
        finally:
            go_on.set()
            for each in images:
                status(each)


def test_a_copy_ends_where_nobody_waits_for_it_any_more(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "_PIECE_BYTES", 1024)
    region, looks = opened(memory), iter([None, None])
    with pytest.raises(StopIteration):
        region.read(Area("mine", 0, 4096), lambda: next(looks))
    looks = iter([None, None])
    with pytest.raises(StopIteration):
        region.write(Area("mine", 0, 4096), memoryview(b"x" * 4096), lambda: next(looks))
    assert memory.buf is not None
    assert bytes(memory.buf).rstrip(b"\0") == b"x" * 2048
    region.release()


def test_an_output_is_written_no_further_once_its_deadline_has_passed(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "_PIECE_BYTES", 4)
    late_ns = 0
    pwritev = os.pwritev

    def write_slowly(*arguments: Any) -> int:
        nonlocal late_ns
        late_ns += 3600 * 10**9
        return pwritev(*arguments)

    with serving(Lab(), shared_memory=True) as (server, client):
        register(client, memory.name).result(PATIENCE_S)
        put(memory, 5.0)
        the_service = server._front._service  # type: ignore[attr-defined]
        clock = the_service._clock
        monkeypatch.setattr(the_service, "_clock", lambda: clock() + late_ns)
        monkeypatch.setattr(os, "pwritev", write_slowly)
        code, text = status(client.infer.ModelInfer.future(request_of(), timeout=PATIENCE_S))
        assert (code, "before its outputs could be written" in text) == (CODE.DEADLINE_EXCEEDED, True)
        assert scores_in(memory) == [[5.0, 0.0, 0.0]]


def test_memory_that_is_cut_off_while_it_is_written_does_not_grow_again(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "_PIECE_BYTES", 1024)
    region, path = opened(memory), Path("/dev/shm", memory.name.lstrip("/"))
    sizes = iter([8192, 8192, 512])
    with pytest.raises(InvalidRequestError, match="has 512 bytes"):
        region.write(Area("mine", 0, 4096), memoryview(b"x" * 4096), lambda: os.truncate(path, next(sizes)))
    assert path.stat().st_size == 512
    region.release()


def test_nothing_is_written_for_a_client_that_has_gone_away(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, gone = Lab(), threading.Event()
    with serving(lab, shared_memory=True) as (server, client):
        register(client, memory.name).result(PATIENCE_S)
        put(memory, 5.0)
        monkeypatch.setattr(server.scheduler, "cancel", lambda _ticket: gone.set())  # it comes when the batch has ended
        lab.pause("cpu")
        cancelled = client.infer.ModelInfer.future(request_of(), timeout=PATIENCE_S)
        wait_until(lambda: server.scheduler.in_flight == 1)
        cancelled.cancel()
        assert gone.wait(PATIENCE_S)
        lab.resume()
        client.send(4.0).result(PATIENCE_S)
        assert scores_in(memory) == [[0.0, 0.0, 0.0]]


def opened(memory: SharedMemory, flags: int = os.O_RDWR) -> Region:
    fd = os.open(Path("/dev/shm", memory.name.lstrip("/")), flags)
    region = Region(Registration("mine", memory.name, 0, 8192), fd)
    os.close(fd)
    return region


def open_files(memory: SharedMemory) -> int:
    """Descriptors that this process, which is the server's, has of it; one is the test's."""
    links = (path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum(memory.name.lstrip("/") in link.name for link in links)


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


def test_a_client_that_cuts_its_memory_off_gets_an_error_and_nobody_else_does(memory: SharedMemory) -> None:
    lab = Lab()
    with serving(lab, shared_memory=True) as (server, client):
        register(client, memory.name).result(PATIENCE_S)
        put(memory, 3.0)
        lab.pause("cpu")
        written = client.infer.ModelInfer.future(request_of(), timeout=PATIENCE_S)
        other = client.send(4.0)
        wait_until(lambda: server.scheduler.in_flight == 2)
        path = Path("/dev/shm", memory.name.lstrip("/"))
        os.truncate(path, OUT)
        lab.resume()
        code, text = status(written)
        assert (code, "has been made shorter" in text) == (CODE.INVALID_ARGUMENT, True)
        other.result(PATIENCE_S)
        os.truncate(path, ROW - 1)
        code, text = status(client.infer.ModelInfer.future(request_of(wanted=False), timeout=PATIENCE_S))
        assert (code, "has been made shorter" in text) == (CODE.INVALID_ARGUMENT, True)
        assert path.stat().st_size == ROW - 1, "nothing of it grows again"
        client.send(4.0).result(PATIENCE_S)
        os.truncate(path, 8192)


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


def test_a_region_that_may_be_read_alone_takes_no_outputs(memory: SharedMemory) -> None:
    region, area = opened(memory, os.O_RDONLY), Area("mine", 0, 4)
    write(memory, b"abcd")
    region.check(area, written=False)
    assert bytes(region.read(area, lambda: None)) == b"abcd"
    with pytest.raises(InvalidRequestError, match="for reading alone"):
        region.check(area, written=True)
    region.release()
