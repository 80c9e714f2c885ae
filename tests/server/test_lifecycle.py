"""How a server starts, drains and ends, with both front ends."""

from __future__ import annotations

import threading

import grpc
import pytest
from dnnserve.app import Server
from dnnserve.errors import StartError
from dnnserve.web import WebServer
from grpc_health.v1 import health_pb2

from dnncore.errors import OutOfMemoryError
from tests.server.fakes import PATIENCE_S, Lab, make_spec, wait_until
from tests.server.serving import front_end, make_config, scores, serving, status

CODE = grpc.StatusCode

__all__ = ["front_end"]
pytestmark = pytest.mark.usefixtures("front_end")


@pytest.fixture
def lab() -> Lab:
    return Lab()


def drain_in_background(server: Server) -> tuple[threading.Thread, list[bool]]:
    clean: list[bool] = []
    thread = threading.Thread(target=lambda: clean.append(server.drain()))
    thread.start()
    return thread, clean


def test_draining_answers_what_is_inside_takes_nothing_new_and_ends(lab: Lab) -> None:
    with serving(lab) as (server, client):
        lab.pause("cpu")
        running = client.send(1.0)
        lab.wait_running("cpu")
        queued = client.send(2.0)
        wait_until(lambda: server.scheduler.in_flight == 2)
        thread, clean = drain_in_background(server)
        wait_until(lambda: not server.ready)
        assert client.page("/readyz")[0] == 503
        wait_until(lambda: status(client.send(3.0, timeout=0.2))[0] is CODE.UNAVAILABLE)
        lab.resume()
        assert scores(running.result(PATIENCE_S)) == [[1.0, 2.0, 3.0]]
        assert scores(queued.result(PATIENCE_S)) == [[2.0, 4.0, 6.0]]
        thread.join(PATIENCE_S)
        assert clean == [True]
        assert lab.closed == ["cpu"]


def test_an_open_health_watch_hears_of_the_drain_and_does_not_delay_the_end(lab: Lab) -> None:
    with serving(lab, drain_seconds=10 * PATIENCE_S) as (server, client):
        watch = client.health.Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        thread, clean = drain_in_background(server)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        thread.join(PATIENCE_S)
        assert clean == [True]
        with pytest.raises(grpc.RpcError):
            next(watch)


def test_a_batch_that_outlasts_the_drain_is_answered_unavailable(lab: Lab) -> None:
    with serving(lab, drain_seconds=0.1) as (server, client):
        lab.pause("cpu")
        running = client.send(1.0)
        lab.wait_running("cpu")
        thread, clean = drain_in_background(server)
        code, message = status(running)
        assert code is CODE.UNAVAILABLE
        assert "stopping" in message
        lab.resume()
        thread.join(PATIENCE_S)
        assert clean == [False]


def test_a_second_request_to_stop_ends_the_drain_at_once(lab: Lab) -> None:
    with serving(lab, drain_seconds=10 * PATIENCE_S) as (server, client):
        lab.pause("cpu")
        running = client.send(1.0)
        lab.wait_running("cpu")
        thread, clean = drain_in_background(server)
        wait_until(lambda: not server.ready)
        server.request_stop()
        assert status(running)[0] is CODE.UNAVAILABLE
        lab.resume()
        thread.join(PATIENCE_S)
        assert clean == [False]


def test_a_held_queue_is_let_go_by_the_drain(lab: Lab) -> None:
    with serving(lab, hold_until_requests=100) as (server, client):
        call = client.send(1.0)
        wait_until(lambda: server.scheduler.in_flight == 1)
        assert server.drain()
        assert scores(call.result(PATIENCE_S)) == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(("port", "flag"), [("grpc_port", "--grpc-port"), ("metrics_port", "--metrics-port")])
def test_a_port_in_use_is_named_with_its_flag_and_leaves_nothing_open(lab: Lab, port: str, flag: str) -> None:
    with serving(lab) as (server, _):
        address = server.addresses.grpc if port == "grpc_port" else server.addresses.metrics.removesuffix("/metrics")
        number = int(address.rpartition(":")[2])
        with pytest.raises(StartError, match=f"{number} cannot be had.*{flag}"):
            Server(make_config(**{port: number}), ("cpu",), (make_spec(),), lab.open_host)


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])  # RFC 5737 and 6761: nobody's
def test_an_address_that_is_not_this_machines_is_named_with_its_flag(lab: Lab, host: str) -> None:
    with pytest.raises(StartError, match=rf"port {host}:0 cannot be had: .*; choose another with --host$"):
        Server(make_config(host=host), ("cpu",), (make_spec(),), lab.open_host)


def test_a_metrics_port_that_is_lost_before_the_start_frees_the_others(lab: Lab) -> None:
    other = WebServer("127.0.0.1", 0, lambda: b"page", lambda: True)
    server = Server(make_config(metrics_port=other.port), ("cpu",), (make_spec(),), lab.open_host)
    other.start()
    try:
        with pytest.raises(StartError, match="metrics port"):
            server.start()
        with serving(lab, grpc_port=int(server.addresses.grpc.rpartition(":")[2])) as (_, client):
            assert status(client.send())[0] is CODE.OK
    finally:
        other.close()


def test_a_model_that_does_not_load_stops_the_start_and_frees_the_ports(lab: Lab) -> None:
    lab.load_error = OutOfMemoryError("no room")
    server = Server(make_config(), ("cuda:0", "cuda:1"), (make_spec(),), lab.open_host)
    port = int(server.addresses.grpc.rpartition(":")[2])
    with pytest.raises(OutOfMemoryError, match="no room"):
        server.start()
    assert sorted(lab.closed) == ["cuda:0", "cuda:1"]
    lab.load_error = None
    with serving(lab, grpc_port=port) as (_, client):
        assert status(client.send())[0] is CODE.OK


def test_a_stop_that_comes_while_models_are_loaded_ends_the_start(lab: Lab) -> None:
    lab.pause("loading")
    server = Server(make_config(), ("cpu",), (make_spec(),), lab.open_slowly)
    starts: list[bool] = []
    thread = threading.Thread(target=lambda: starts.append(server.start()))
    thread.start()
    server.request_stop()
    thread.join(PATIENCE_S)
    assert starts == [False]
    lab.resume()
    assert server.wait()
    assert lab.closed == ["cpu"]


def test_an_ipv6_address_is_written_with_brackets(lab: Lab) -> None:
    with serving(lab, host="::1") as (server, client):
        assert server.addresses.grpc.startswith("[::1]:")
        assert status(client.send())[0] is CODE.OK
        assert client.page("/readyz")[0] == 200
