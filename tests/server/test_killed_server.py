"""The server's own process is killed under load: nothing of it is left, and the next one begins on the same port at once."""

from __future__ import annotations

import random
import signal
import socket
import threading
from collections import Counter
from pathlib import Path

import grpc
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.inference import grpc_service_pb2_grpc as inference_grpc

from tests.processes import children, is_running
from tests.server.fakes import PATIENCE_S, wait_until
from tests.server.packages import make_package
from tests.server.test_command_line import started

ARGUMENTS = ("--devices", "cpu", "--engines", "process", "--front-ends", 2)


class Crowd:
    """Clients that ask without a pause until they are told to leave. Thread-safe: `_counted` guards `codes`."""

    def __init__(self, address: str, size: int) -> None:
        self.codes: Counter[str] = Counter()
        self._address = address
        self._counted = threading.Condition()
        self._left = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(size)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, code: str, more: int) -> None:
        with self._counted:
            before = self.codes[code]
            assert self._counted.wait_for(lambda: self.codes[code] >= before + more, PATIENCE_S), self.codes

    def leave(self) -> None:
        self._left.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask(self) -> None:
        request = inference.ModelInferRequest(model_name="digits")
        request.inputs.add(name="data", datatype="FP32", shape=[1, 1, 8, 8])
        request.raw_input_contents.append(bytes(256))
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 100)]
        with grpc.insecure_channel(self._address, options) as channel:
            infer = inference_grpc.GRPCInferenceServiceStub(channel).ModelInfer
            while not self._left.is_set():
                try:
                    infer(request, timeout=PATIENCE_S)
                    code = "OK"
                except grpc.RpcError as error:
                    code = error.code().name
                    self._left.wait(0.01)
                with self._counted:
                    self.codes[code] += 1
                    self._counted.notify_all()


def port_that_no_client_has() -> int:
    """A free one below those that clients are given, of whom one that found no server could have just this port."""
    (lowest, _) = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    for port in random.sample(range(int(lowest) - 10_000, int(lowest)), 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("100 ports are all in use")


def test_nothing_of_a_killed_server_is_left_and_the_next_one_has_its_port(tmp_path: Path) -> None:
    make_package().save(tmp_path / "digits")
    arguments = ("--model", tmp_path / "digits", *ARGUMENTS, "--grpc-port", port_that_no_client_has())
    with started(tmp_path / "ready.json", *arguments) as (process, ready):
        address = str(ready["grpc"])
        crowd = Crowd(address, 8)
        try:
            crowd.wait_for("OK", 100)
            family = children(process.pid)
            assert len(family) == 3, "two front ends and an engine"
            process.send_signal(signal.SIGKILL)
            assert process.wait(PATIENCE_S) == -signal.SIGKILL
            wait_until(lambda: not any(map(is_running, family)))
            crowd.wait_for("UNAVAILABLE", 1)
            with started(tmp_path / "again.json", *arguments):
                crowd.wait_for("OK", 100)
        finally:
            crowd.leave()
    assert set(crowd.codes) <= {"OK", "UNAVAILABLE"}, crowd.codes
