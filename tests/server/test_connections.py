"""How many connections there may be: shares of the descriptors, and servers that have few of these."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import grpc
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from dnnserve.connections import of_server, share_out
from dnnserve.errors import StartError

from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.packages import make_package
from tests.server.serving import make_config, scores, serving, status
from tests.server.test_command_line import started

CODE = grpc.StatusCode

LIVE = "/inference.GRPCInferenceService/ServerLive"


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.mark.parametrize("descriptors", [64, 100, 128, 256, 1024, 4096, 65_536, 1 << 20])
@pytest.mark.parametrize("http_port", [None, 0])
@pytest.mark.parametrize("max_connections", [0, 1, 7, 100, 10_000])
def test_all_bounds_together_leave_what_else_needs_descriptors(
    descriptors: int, http_port: int | None, max_connections: int
) -> None:
    config = make_config(http_port=http_port, max_connections=max_connections)
    shares = share_out(config, descriptors, 32, calls=True, pages=True)
    assert shares.grpc + shares.http + shares.metrics <= descriptors - 32
    assert min(shares.grpc, shares.metrics) >= 1
    assert (shares.http >= 1) == (http_port is not None)
    if max_connections:
        wanted = (max_connections, max_connections if http_port is not None else 0)
        assert (shares.needed is None) == ((shares.grpc, shares.http) == wanted)
        enough = share_out(config, shares.needed or descriptors, 32, calls=True, pages=True)
        assert (enough.grpc, enough.http, enough.needed) == (*wanted, None)
    else:
        assert shares.grpc + shares.http + shares.metrics >= min(descriptors - 32, 8192)
        assert shares.needed is None


def test_where_calls_come_to_other_processes_the_metrics_port_has_what_is_left() -> None:
    shares = [share_out(make_config(), descriptors, 50, calls=False, pages=True) for descriptors in (60, 128, 1024)]
    assert [(each.grpc, each.http, each.metrics) for each in shares] == [(0, 0, 10), (0, 0, 78), (0, 0, 256)]


def test_regions_of_shared_memory_are_kept_descriptors_for() -> None:
    config = make_config(shared_memory=True, max_shared_memory_regions=500)
    assert share_out(config, 1024, 24, calls=True, pages=False).grpc == 500


@pytest.mark.parametrize(
    ("settings", "engines", "models", "kept"),
    [
        ({}, 0, 10, 32),  # in threads models have no files
        ({}, 1, 10, 32 + 8 + 10 * 7),
        ({}, 2, 10, 32 + 16 + 10 * 13),
        ({"front_ends": 3}, 2, 10, 32 + 40 + 10),
        ({"front_ends": 3, "model": None, "model_repository": Path("x"), "repository_mode": "poll"}, 2, 10, 72 + 26),
        ({"front_ends": 3, "model": None, "model_repository": Path("x"), "repository_mode": "poll"}, 2, 20, 72 + 40),
    ],
)
def test_models_of_engine_processes_are_kept_descriptors_for(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], engines: int, models: int, kept: int
) -> None:
    monkeypatch.setattr("dnnserve.connections._descriptors", lambda: kept + 8)
    of_server(make_config(**settings), engines, 0, models)
    monkeypatch.setattr("dnnserve.connections._descriptors", lambda: kept + 7)
    with pytest.raises(StartError, match=f"and {kept} are kept"):
        of_server(make_config(**settings), engines, 0, models)


def test_too_few_descriptors_are_said_at_the_start_with_how_many_there_must_be() -> None:
    with pytest.raises(StartError, match=r"39 files and connections may be open, and 32 are kept.*to 40 or more"):
        share_out(make_config(), 39, 32, calls=True, pages=True)


def test_what_is_closed_again_is_counted_and_logged_once_for_many(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    with serving(lab, http_port=0, max_connections=1) as (_, client):
        host, port = client.http_address.split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as held:
            held.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert held.recv(1)  # it has been taken in
            for _ in range(5):
                with socket.create_connection((host, int(port)), PATIENCE_S) as refused:
                    assert refused.recv(1) == b""
        assert client.metrics()["dnnserve_refused_connections_total"] == {("http",): 5, ("metrics",): 0}
    (line,) = [text for text in caplog.messages if "closed again" in text]
    assert line == "connections of the HTTP port that were closed again: 1, because 1 are open, as many as may"


def test_front_ends_in_processes_tell_what_they_closed_again(lab: Lab) -> None:
    with serving(lab, http_port=0, max_connections=1, front_ends=1) as (_, client):
        host, port = client.http_address.split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as held:
            held.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert held.recv(1)
            for _ in range(3):
                with socket.create_connection((host, int(port)), PATIENCE_S) as refused:
                    assert refused.recv(1) == b""
        wait_until(lambda: client.metrics()["dnnserve_refused_connections_total"]["http",] == 3)


@contextmanager
def idle(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    host, port = address.split(":")
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S)) for _ in range(count)]


HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # RFC 9113, 3.4: with a SETTINGS frame
GOAWAY = bytes([7, 0, 0, 0, 0, 0])  # a frame's type, flags and stream


def heard_until_closed(address: str, said: bytes) -> bytes:
    """What a server says before it closes the connection of a client that says this and no more."""
    host, port = address.split(":")
    heard = []
    with socket.create_connection((host, int(port)), PATIENCE_S) as client:
        client.sendall(said)
        while data := client.recv(1 << 16):
            heard.append(data)
    return b"".join(heard)


def test_a_connection_without_calls_is_closed_and_one_whose_call_lasts_is_not(lab: Lab) -> None:
    with serving(lab, max_connection_idle_seconds=0.2) as (server, client):
        lab.pause("cpu")
        running = client.send(3.0)
        lab.wait_running("cpu")
        heard = heard_until_closed(server.addresses.grpc, HELLO)
        assert GOAWAY in heard
        assert heard.endswith(b"connection idle")
        assert not running.done()
        lab.resume()
        assert scores(running.result(PATIENCE_S)) == [[3.0, 6.0, 9.0]]


def test_a_connection_of_age_is_closed_after_its_calls_and_its_client_connects_anew(lab: Lab) -> None:
    with serving(lab, max_connection_age_seconds=0.2, drain_seconds=0.5) as (server, client):
        heard = heard_until_closed(server.addresses.grpc, HELLO)  # it does not answer the ping either
        assert GOAWAY in heard
        assert heard.endswith(b"max connection age")
        states: list[grpc.ChannelConnectivity] = []
        client.channel.subscribe(states.append)

        def has_reconnected() -> bool:
            assert status(client.send())[0] is CODE.OK
            return states.count(grpc.ChannelConnectivity.READY) >= 3

        wait_until(has_reconnected)


@pytest.mark.parametrize("said", [b"", HELLO[:10], HELLO[:-9]], ids=["nothing", "half a word", "no settings"])
def test_who_does_not_introduce_itself_is_closed(lab: Lab, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr("dnnserve.front.server._HANDSHAKE_S", 0.2)
    with serving(lab) as (server, client):
        assert b"before handshake timeout" in heard_until_closed(server.addresses.grpc, said)
        assert status(client.send())[0] is CODE.OK


@contextmanager
def connected(address: str) -> Iterator[grpc.UnaryUnaryMultiCallable[bytes, bytes]]:
    """ServerLive over a connection of its own."""
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel.unary_unary(LIVE, None, None)


def answers(address: str) -> bool:
    with connected(address) as live:
        return status(lambda: live(b"", timeout=PATIENCE_S))[0] is CODE.OK


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def switches(pid: int) -> int:
    """How often its threads have gone to sleep or were put to."""
    counts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(number) for text in counts for number in re.findall(r"ctxt_switches:\s*(\d+)", text))


def test_with_64_descriptors_80_idle_connections_cost_no_processor_and_a_client_that_is_there_is_answered(
    tmp_path: Path,
) -> None:
    make_package().save(tmp_path / "digits")
    arguments = "--model", tmp_path / "digits", "--devices", "cpu", "--http-port", "0"
    with started(tmp_path / "ready", *arguments, shell="ulimit -n 64") as (process, ready):
        address, page = str(ready["grpc"]), str(ready["metrics"])
        with connected(address) as live, connected(address) as late:
            live(b"", timeout=PATIENCE_S)
            with idle(address, 80):
                live(b"", timeout=PATIENCE_S)
                assert status(lambda: late(b"", timeout=PATIENCE_S))[0] is CODE.UNAVAILABLE
                used_s, slept, began = processor_seconds(process.pid), switches(process.pid), time.monotonic()
                while (elapsed_s := time.monotonic() - began) < 2.0:
                    live(b"", timeout=PATIENCE_S)
                    time.sleep(0.1)  # a client now and then; else it has nothing to do
                assert processor_seconds(process.pid) - used_s < elapsed_s / 4  # one that spins takes a core or two
                assert switches(process.pid) - slept < 1000 * elapsed_s
                with urlopen(page, timeout=PATIENCE_S) as answer:
                    assert answer.status == 200
                assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 64
            wait_until(lambda: answers(address))
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    assert "connections that may be open in this process: gRPC 24, HTTP 4, metrics 4" in log
    assert "File descriptor limit" not in log
    assert "no connection can be taken" not in log


def test_idle_connections_to_the_metrics_port_take_none_from_grpc(tmp_path: Path) -> None:
    make_package().save(tmp_path / "digits")
    arguments = "--model", tmp_path / "digits", "--devices", "cpu", "--max-connections", "200"
    with started(tmp_path / "ready", *arguments, shell="ulimit -n 128") as (process, ready):
        address, page = str(ready["grpc"]), urlsplit(str(ready["metrics"])).netloc
        with idle(page, 120), idle(address, 80):
            assert answers(address)
        wait_until(lambda: answers(address))
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    assert "fewer connections than --max-connections asks for may be open in this process: gRPC 84, metrics 12" in log
    assert "it may have 128 files open and needs 261" in log
    assert "connections of the metrics port that were closed again: 1, because 12 are open, as many as may" in log


def full_batch(model: str) -> inference.ModelInferRequest:
    """Four images."""
    request = inference.ModelInferRequest(model_name=model, raw_input_contents=[bytes(4 * 64 * 4)])
    request.inputs.add(name="data", datatype="FP32", shape=(4, 1, 8, 8))
    return request


def test_connections_leave_what_many_models_need_on_their_way_to_an_engine(tmp_path: Path) -> None:
    names = [f"digits{number}" for number in range(8)]
    for name in names:
        make_package(name).save(tmp_path / "models" / name / "1")
    arguments = (
        "--model-repository",
        tmp_path / "models",
        "--devices",
        "cpu",
        "--engines",
        "process",
        "--max-batch",
        "4",
    )
    requests = [full_batch(name) for name in names for _ in range(50)]
    with started(tmp_path / "ready", *arguments, shell="ulimit -n 128") as (process, ready):
        address, page = str(ready["grpc"]), urlsplit(str(ready["metrics"])).netloc
        with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            infer = GRPCInferenceServiceStub(channel).ModelInfer
            infer(requests[0], timeout=PATIENCE_S)
            with idle(address, 128), idle(page, 64):
                calls = [infer.future(request, timeout=PATIENCE_S) for request in requests]
                assert [status(call) for call in calls if status(call)[0] is not CODE.OK] == []
            assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 128
