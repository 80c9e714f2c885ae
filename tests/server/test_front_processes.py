"""Front ends in processes of their own, over real gRPC on loopback."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.channel import messages
from dnnserve.errors import StartError
from dnnserve.front.process import FrontProcess
from dnnserve.front.processes import FrontProcesses

from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.serving import Client, connected_anew, infer_request, make_config, scores, serving, status
from tests.server.test_rest import INFER, ask, json_request

FRONTS = 2
CROWD = 3000  # several times what a link takes


def fronts_of(server: object) -> FrontProcesses:
    front: FrontProcesses = server._front  # type: ignore[attr-defined]
    return front


def channels(address: str, count: int) -> Sequence[grpc.Channel]:
    """Connections of their own: the kernel deals them out."""
    option = ("grpc.use_local_subchannel_pool", 1)
    return [grpc.insecure_channel(address, [option, ("number", number)]) for number in range(count)]


def test_calls_of_many_connections_are_answered_counted_and_seen_in_the_statistics() -> None:
    with serving(Lab(), front_ends=FRONTS, http_port=0) as (server, client):
        opened = channels(server.addresses.grpc, 8)
        clients = [Client(server, channel) for channel in opened]
        for value, each in enumerate(clients):
            assert scores(each.send(float(value)).result(PATIENCE_S)) == [[value, 2.0 * value, 3.0 * value]]
        assert client.health_of() == "SERVING"
        assert client.infer.ServerReady(inference.ServerReadyRequest(), timeout=PATIENCE_S).ready
        counted = ("ModelInfer", "toy", "OK", "1")
        wait_until(lambda: client.metrics().get("dnnserve_requests_total", {}).get(counted) == 8.0)
        statistics = client.infer.ModelStatistics(inference.ModelStatisticsRequest(), timeout=PATIENCE_S)
        assert statistics.model_stats[0].inference_count == 8
        for value in range(4):  # over HTTP too, each on a connection of its own
            (output,) = ask(client, INFER, json_request(float(value))).json["outputs"]
            assert output["data"] == [value, 2.0 * value, 3.0 * value]
        bad = infer_request()
        bad.inputs[0].shape[1] = 5
        assert status(client.infer.ModelInfer.future(bad))[0] is grpc.StatusCode.INVALID_ARGUMENT
        for channel in opened:
            channel.close()


def shared_files() -> int:
    """Descriptors of memory that processes share."""
    return sum("memfd:" in str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


def test_a_killed_front_end_is_started_again_and_what_it_asked_for_is_given_up() -> None:
    lab = Lab()
    with serving(lab, front_ends=1) as (server, client):
        before = shared_files()
        lab.pause("cpu")
        lost = client.send(1.0)
        lab.wait_running("cpu")
        waiting = client.send(2.0)
        wait_until(lambda: server.scheduler.in_flight == 2)
        (front,) = fronts_of(server)._fronts
        os.kill(front.pid, signal.SIGKILL)
        assert status(lost)[0] is grpc.StatusCode.UNAVAILABLE
        assert status(waiting)[0] is grpc.StatusCode.UNAVAILABLE
        wait_until(lambda: server.scheduler.in_flight == 0)
        lab.resume()
        with connected_anew(server) as again:
            answer = again.infer.ModelInfer(infer_request(3.0), timeout=PATIENCE_S, wait_for_ready=True)
        assert scores(answer) == [[3.0, 6.0, 9.0]]
        assert fronts_of(server).restarts == 1
        wait_until(lambda: shared_files() == before)
        assert front._child.link.closed


def test_a_front_end_that_stands_still_holds_nobody_up_and_is_replaced() -> None:
    with serving(Lab(), front_ends=FRONTS) as (server, _):
        fronts = fronts_of(server)
        still, other = fronts._fronts
        os.kill(still.pid, signal.SIGSTOP)

        def tell() -> None:
            for _ in range(CROWD):
                fronts.announce(True)

        try:
            telling = threading.Thread(target=tell, daemon=True)
            telling.start()
            telling.join(PATIENCE_S)
            assert not telling.is_alive()
            opened = channels(server.addresses.grpc, 16)
            calls = [
                Client(server, each).infer.ModelInfer.future(infer_request(), timeout=PATIENCE_S, wait_for_ready=True)
                for each in opened
            ]
            wait_until(lambda: any(call.done() for call in calls))
            while fronts._fronts[0] is still:
                fronts.look()
                wait_until(lambda: other.signs.unanswered == 0)
            for call in calls:
                assert scores(call.result(PATIENCE_S)) == [[1.0, 2.0, 3.0]]
            assert fronts._fronts[1] is other
            for channel in opened:
                channel.close()
        finally:
            still._child.kill()


def test_whatever_keeps_a_front_end_from_its_start_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start, failed = FrontProcess.start, list[FrontProcess]()

    def fail_once(front: FrontProcess, models: messages.Models) -> None:
        if not failed:
            failed.append(front)
            raise RuntimeError("nobody has thought of this")
        start(front, models)

    with serving(Lab(), front_ends=1) as (server, _):
        monkeypatch.setattr(FrontProcess, "start", fail_once)
        os.kill(fronts_of(server)._fronts[0].pid, signal.SIGKILL)
        wait_until(lambda: fronts_of(server).restarts == 2)
        with connected_anew(server) as client:
            answer = client.infer.ModelInfer(infer_request(3.0), timeout=PATIENCE_S, wait_for_ready=True)
        assert scores(answer) == [[3.0, 6.0, 9.0]]
        assert failed[0].ended


def test_a_front_end_that_is_started_again_logs_from_the_level_that_holds_now(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serving(Lab(), front_ends=1) as (server, _):
        fronts = fronts_of(server)
        fronts.set_log_level("debug")
        os.kill(fronts._fronts[0].pid, signal.SIGKILL)
        wait_until(lambda: fronts.restarts == 1)
        with connected_anew(server) as client:
            client.infer.ModelInfer(infer_request(3.0), timeout=PATIENCE_S, wait_for_ready=True)
        logged = ""

        def access_is_logged() -> bool:
            nonlocal logged
            logged += capfd.readouterr().err
            return "DEBUG dnnserve.access" in logged

        wait_until(access_is_logged)


def test_another_server_does_not_get_a_port_that_is_shared() -> None:
    with serving(Lab(), front_ends=1) as (server, _):
        port = int(server.addresses.grpc.rpartition(":")[2])
        with pytest.raises(StartError, match="in use"), serving(Lab(), front_ends=1, grpc_port=port):
            pass
        with pytest.raises(StartError, match="in use"), serving(Lab(), grpc_port=port):
            pass


def test_draining_answers_what_is_inside() -> None:
    lab = Lab()
    with serving(lab, front_ends=FRONTS) as (server, client):
        lab.pause("cpu")
        running = client.send(1.0)
        lab.wait_running("cpu")
        server.request_stop()
        lab.resume()
        assert server.wait()
        assert scores(running.result(PATIENCE_S)) == [[1.0, 2.0, 3.0]]


def test_what_cannot_start_says_why() -> None:
    config = make_config(front_ends=1, host="192.0.2.1")  # an address that is not ours
    with pytest.raises(StartError, match="cannot be had"):
        FrontProcesses(config, None, None, None, None, None)  # type: ignore[arg-type]


def test_a_successor_that_starts_while_the_server_stops_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_started, successors = FrontProcess.wait_started, list[FrontProcess]()
    with serving(Lab(), front_ends=1) as (server, _):
        fronts = fronts_of(server)

        def start_late(front: FrontProcess) -> str:
            kind = wait_started(front)
            successors.append(front)
            wait_until(lambda: fronts._stopping)
            return kind

        monkeypatch.setattr(FrontProcess, "wait_started", start_late)
        os.kill(fronts._fronts[0].pid, signal.SIGKILL)
        wait_until(lambda: bool(successors))
    (successor,) = successors
    assert successor.ended
