"""A lane whose server has stopped while it could not go on: whatever it begins then ends calls, and nothing else.

gRPC's core ends the process where an operation is begun on a queue that was shut down, so all of it happens in one of its own. Run
as a script (`python test_stopped_lane.py WHERE`) this file is that process, and prints what became of its lane.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from dnnserve.errors import RequestError
from dnnserve.front import lane as fast
from dnnserve.front.answers import Answers
from dnnserve.front.call import Call
from dnnserve.front.door import Door
from dnnserve.front.gate import Gate
from dnnserve.scheduling.outlook import Outlook

PATIENCE_S = 20.0
PATH = "/toy.Service/Method"


class Held:
    """A handler, and the objection before it, that stand still in one place until they may `go` on."""

    holds = False

    def __init__(self, where: str) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._where = where

    def stand(self) -> None:
        self.reached.set()
        assert self.go.wait(PATIENCE_S)

    def objection(self, _path: object, _metadata: object) -> RequestError | None:
        if self._where == "accepting":
            self.stand()
        return None

    def handle(self, call: Call, message: bytes) -> None:
        if self._where == "handling":
            self.stand()
        elif self._where == "answering":
            self.reached.set()
            threading.Thread(target=self._answer, args=(call, message)).start()
            return
        call.finish(message)

    def _answer(self, call: Call, message: bytes) -> None:
        assert self.go.wait(PATIENCE_S)
        call.finish(message)

    def flush(self) -> None:
        """Nothing is gathered."""


def lane_of(server: grpc.Server, held: Held, gate: Gate) -> fast.Lane:
    return fast.Lane(
        server,
        {PATH: held.handle},
        gate,
        Answers(),
        refuse=lambda _call, _error: None,
        objection=held.objection,
        gathering=held,
        door=Door(Outlook(), lambda: False, lambda _method, _error, _count: None),
        hurried=(),
        max_calls=10,
        clock=time.monotonic_ns,
    )


def stop_while_held(where: str) -> tuple[bool, bool, int]:
    """Whether the lane ended with its server and once it could, and the calls that were counted in and not out."""
    held, gate = Held(where), Gate()
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    lane = lane_of(server, held, gate)
    server.start()
    lane.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(PATH, None, None).future(b"ping")
        assert held.reached.wait(PATIENCE_S)
        server.stop(0).wait()
        with pytest.raises(grpc.RpcError):
            call.result(PATIENCE_S)
    fast._CLOSE_S = 0.0
    with_its_server = lane.close()
    held.go.set()
    fast._CLOSE_S = PATIENCE_S
    return with_its_server, lane.close(), gate.inside


@pytest.mark.parametrize("where", ["accepting", "handling", "answering"])
def test_a_lane_that_slept_through_its_servers_stop_ends_its_calls_and_then_itself(where: str) -> None:
    result = subprocess.run(
        [sys.executable, __file__, where], capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert (result.returncode, result.stdout.strip()) == (0, "(False, True, 0)"), result.stderr


def test_a_lane_that_never_began_has_nothing_to_end() -> None:
    assert lane_of(grpc.server(ThreadPoolExecutor(1)), Held("nowhere"), Gate()).close()


if __name__ == "__main__":
    print(stop_while_held(sys.argv[1]))
