"""Shared memory as clients have it: made, registered, filled, and spoken of in requests."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.shared_memory.regions import Region
from dnnserve.shared_memory.requests import Registration
from PIL import Image

from tests.server.fakes import PATIENCE_S, make_rows
from tests.server.serving import Client, infer_request

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


def opened(memory: SharedMemory, flags: int = os.O_RDWR) -> Region:
    fd = os.open(Path("/dev/shm", memory.name.lstrip("/")), flags)
    region = Region(Registration("mine", memory.name, 0, 8192), fd)
    os.close(fd)
    return region


def open_files(memory: SharedMemory) -> int:
    """Descriptors that this process, which is the server's, has of it; one is the test's."""
    links = (path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum(memory.name.lstrip("/") in link.name for link in links)
