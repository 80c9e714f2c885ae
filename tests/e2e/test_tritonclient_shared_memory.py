"""An unmodified tritonclient with system shared memory, against a server of one process and one with several front ends.

Run as a script (`python test_tritonclient_shared_memory.py GRPC HTTP`) this file is that client, because its stubs and ours clash
in one process, and prints what it saw as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

ROWS = np.arange(48, dtype=np.float32).reshape(2, 3, 2, 4)
CLIENTS = 6
"""Each has a connection of its own, so that several front ends are met."""


def session(triton: Any, shm: Any, address: str) -> dict[str, Any]:
    """What one client after another sees, over gRPC or HTTP."""
    from tritonclient.utils import InferenceServerException, serialize_byte_tensor

    def fails(call: Any) -> str:
        try:
            call()
        except InferenceServerException as error:
            return str(error.message())
        return "nothing"

    def infer(client: Any, offset: int, *, given: bool, wanted: bool) -> Any:
        value = triton.InferInput("data", list(ROWS.shape), "FP32")
        if given:
            value.set_shared_memory("in", ROWS.nbytes, offset)
        else:
            value.set_data_from_numpy(ROWS)
        output = triton.InferRequestedOutput("scores")
        if wanted:
            output.set_shared_memory("out", 24, offset)
        result = client.infer("toy", [value], outputs=[output])
        if not wanted:
            return result.as_numpy("scores").tolist()
        return shm.get_contents_as_numpy(handles["out"], np.float32, [2, 3], offset).tolist()

    def images(client: Any) -> Any:
        from io import BytesIO

        from PIL import Image

        file = BytesIO()
        Image.new("RGB", (4, 2), (1, 2, 3)).save(file, "png")
        content = serialize_byte_tensor(np.array([file.getvalue()], np.object_))
        shm.set_shared_memory_region(handles["in"], [content])
        value = triton.InferInput("data", [1], "BYTES")
        value.set_shared_memory("in", len(content.item()))
        return client.infer("toy", [value]).as_numpy("scores").tolist()

    keys = {name: f"/dnnserve-test-{os.getpid()}-{name}" for name in ("in", "out")}
    handles = {name: shm.create_shared_memory_region(name, key, 4096, create_only=True) for name, key in keys.items()}
    clients = [triton.InferenceServerClient(address) for _ in range(CLIENTS)]
    first, *_ = clients
    try:
        first.unregister_system_shared_memory()
        first.unregister_cuda_shared_memory()
        for name, key in keys.items():
            first.register_system_shared_memory(name, key, 4096)
        seen: dict[str, Any] = {"answers": []}
        for number, client in enumerate(clients):
            offset = 256 * number
            shm.set_shared_memory_region(handles["in"], [ROWS], offset)
            for given, wanted in ((True, True), (True, False), (False, True)):
                seen["answers"].append(infer(client, offset, given=given, wanted=wanted))
        seen["images"] = images(first)
        status = first.get_system_shared_memory_status()
        seen["status"] = sorted(
            status.regions if triton.__name__.endswith("grpc") else (each["name"] for each in status)
        )
        seen["again"] = fails(lambda: first.register_system_shared_memory("in", keys["in"], 4096))
        seen["cuda"] = fails(lambda: first.register_cuda_shared_memory("gpu", b"aGFuZGxl", 0, 64))
        first.unregister_system_shared_memory("in")
        seen["gone"] = [fails(lambda client=client: infer(client, 0, given=True, wanted=False)) for client in clients]
        first.unregister_system_shared_memory()
        return seen
    finally:
        for client in clients:
            client.close()
        for handle in handles.values():
            shm.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("front_ends", [0, 2])
def test_it_reads_and_writes_in_shared_memory(front_ends: int) -> None:
    pytest.importorskip("tritonclient")
    from tests.server.fakes import Lab
    from tests.server.serving import serving

    with serving(Lab(), shared_memory=True, front_ends=front_ends, http_port=0) as (server, client):
        done = subprocess.run(
            [sys.executable, __file__, server.addresses.grpc, client.http_address],
            env={**os.environ, "TRITON_CLIENT_GRPC_CHANNEL_MAX_SHARE_COUNT": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    expected = [[row.sum() * factor for factor in (1, 2, 3)] for row in ROWS]
    for seen in json.loads(done.stdout):
        assert seen["answers"] == [expected] * 3 * CLIENTS
        assert seen["images"] == [[48.0, 96.0, 144.0]]
        assert seen["status"] == ["in", "out"]
        assert "'in' is registered already" in seen["again"]
        assert "CUDA shared memory is not supported" in seen["cuda"]
        assert all("'in' is not registered" in text for text in seen["gone"])


if __name__ == "__main__":
    import tritonclient.grpc
    import tritonclient.http
    import tritonclient.utils.shared_memory

    sessions = [
        session(protocol, tritonclient.utils.shared_memory, address)
        for protocol, address in zip((tritonclient.grpc, tritonclient.http), sys.argv[1:], strict=True)
    ]
    print(json.dumps(sessions))
