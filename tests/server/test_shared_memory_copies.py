"""Copies from and to shared memory: who waits for them, and where they end when clients leave or take the memory away."""

from __future__ import annotations

import os
import threading
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dnnserve.errors import InvalidRequestError
from dnnserve.front import decoding, service
from dnnserve.front.areas import SharedImages, release
from dnnserve.front.requests import parse_infer
from dnnserve.shared_memory import regions
from dnnserve.shared_memory.posix import open_object
from dnnserve.shared_memory.regions import Region, Regions
from dnnserve.shared_memory.requests import Area, Registration

from tests.server.client_memory import (
    CODE,
    OUT,
    ROW,
    image_tensor,
    images_request,
    open_files,
    opened,
    put,
    register,
    request_of,
    scores_in,
    write,
)
from tests.server.fakes import PATIENCE_S, Lab, make_spec, wait_until
from tests.server.serving import serving, status


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
