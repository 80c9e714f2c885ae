"""Many clients at once, over real gRPC: what a crowd is promised when a process is killed, a replica leaves, or most give up."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from dnnapi.inference import grpc_service_pb2_grpc as inference_grpc
from dnnserve.app import Server
from dnnserve.envelope import InferenceRequest

from tests.server.fakes import PATIENCE_S, Lab, make_spec, wait_until
from tests.server.serving import infer_request, scores, serving, status
from tests.server.test_front_processes import channels, fronts_of

CODE = grpc.StatusCode


class Crowd:
    """Clients that send a request when they have the answer to the last, each over the channel that it is given, and that do not
    try again what fails. Answers are compared with what they must be.
    """

    def __init__(self, channels: Sequence[grpc.Channel]) -> None:
        self.codes: list[Counter[grpc.StatusCode]] = [Counter() for _ in channels]
        self._leave = threading.Event()
        self._wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(number, channel)) for number, channel in enumerate(channels)
        ]

    @contextmanager
    def asking(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._leave.set()
            for thread in self._threads:
                thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads), "a call has not ended"
        assert not self._wrong

    def wait_for_more(self, count: int = 5) -> None:
        """Wait until everybody has had so many more answers."""
        before = [codes[CODE.OK] for codes in self.codes]
        wait_until(lambda: all(c[CODE.OK] >= b + count for c, b in zip(self.codes, before, strict=True)))

    def all_codes(self) -> set[grpc.StatusCode]:
        return set().union(*self.codes)

    def _ask(self, number: int, channel: grpc.Channel) -> None:
        stub, value = inference_grpc.GRPCInferenceServiceStub(channel), float(number)
        while not self._leave.is_set():
            try:
                answer = stub.ModelInfer(infer_request(value), timeout=PATIENCE_S, wait_for_ready=True)
            except grpc.RpcError as error:
                self.codes[number][error.code()] += 1
                continue
            if scores(answer) != [[value, 2 * value, 3 * value]] or answer.id != f"value {value}":
                self._wrong.append(f"client {number} got {answer}")
            self.codes[number][CODE.OK] += 1


def connections_of(pid: int, port: int) -> int:
    """Connections that a process has on a port of its own."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    established = {
        f"socket:[{fields[9]}]" for fields in lines if fields[1].endswith(f":{port:04X}") and fields[3] == "01"
    }
    return sum(str(file.readlink()) in established for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink())


def test_a_front_end_that_is_killed_under_load_costs_calls_on_its_connections_alone() -> None:
    lab = Lab()
    with serving(lab, front_ends=2) as (server, _), ExitStack() as closing:
        opened = [closing.enter_context(channel) for channel in channels(server.addresses.grpc, 16)]
        crowd = Crowd(opened)
        with crowd.asking():
            crowd.wait_for_more()
            lab.pause("cpu")
            wait_until(lambda: server.scheduler.in_flight == len(opened))
            victim = fronts_of(server)._fronts[0].pid
            lost = connections_of(victim, int(server.addresses.grpc.rpartition(":")[2]))
            assert 0 < lost < len(opened), "the kernel has dealt all connections to one"
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: fronts_of(server).restarts == 1)
            lab.resume()
            crowd.wait_for_more()
        assert crowd.all_codes() == {CODE.OK, CODE.UNAVAILABLE}
        assert sum(CODE.UNAVAILABLE in codes for codes in crowd.codes) == lost, "others were hurt too"
        wait_until(lambda: server.scheduler.in_flight == 0)


@contextmanager
def replicas(count: int) -> Iterator[Sequence[Server]]:
    """Servers of the same model that would stay lame ducks for ever."""
    with ExitStack() as stack:
        yield [stack.enter_context(serving(Lab(), lame_duck_seconds=600.0))[0] for _ in range(count)]


def target_of(servers: Sequence[Server]) -> str:
    return f"ipv4:{','.join(server.addresses.grpc for server in servers)}"


def leave(server: Server) -> threading.Thread:
    """What SIGTERM does."""
    server.request_stop()
    leaving = threading.Thread(target=lambda: server.wait())
    leaving.start()
    return leaving


def taken(server: Server) -> int:
    return sum(snapshot.success.count for snapshot in server.statistics.snapshots().values())


@pytest.mark.parametrize("looks", [True, False], ids=["clients-look-at-the-health", "clients-go-round"])
def test_when_one_of_two_replicas_leaves_no_call_is_lost(looks: bool) -> None:
    service_config: dict[str, object] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if looks:
        service_config["healthCheckConfig"] = {"serviceName": ""}
    options = [
        ("grpc.service_config", json.dumps(service_config)),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    with replicas(2) as (first, second), ExitStack() as closing:
        target = target_of([first, second])
        opened = [closing.enter_context(grpc.insecure_channel(target, options)) for _ in range(8)]
        crowd = Crowd(opened)
        with crowd.asking():
            wait_until(lambda: min(taken(first), taken(second)) > 20)
            leaving = leave(first)
            crowd.wait_for_more()  # as a lame duck it serves
            if looks:

                def deserted() -> bool:
                    before = taken(first)
                    crowd.wait_for_more(2)
                    return taken(first) == before

                wait_until(deserted)
            first.request_stop()
            leaving.join(PATIENCE_S)
            assert not leaving.is_alive()
            crowd.wait_for_more()
        assert crowd.all_codes() == {CODE.OK}


def test_a_crowd_on_one_model_keeps_another_models_requests_waiting_for_no_more_than_a_batch_each() -> None:
    lab = Lab()
    with serving(lab, specs=(make_spec("toy"), make_spec("other"))) as (server, client), ExitStack() as closing:
        lab.pause("cpu")
        first = client.send(1.0)
        lab.wait_running("cpu")
        crowd = [closing.enter_context(channel) for channel in channels(server.addresses.grpc, 8)]
        stubs = [inference_grpc.GRPCInferenceServiceStub(channel) for channel in crowd]
        calls = [stubs[n % 8].ModelInfer.future(infer_request(1.0), timeout=PATIENCE_S) for n in range(200)]
        wait_until(lambda: server.scheduler.in_flight == 201)
        few = [
            client.infer.ModelInfer.future(infer_request(100.0, 8, "other"), timeout=PATIENCE_S) for _ in range(3)
        ]  # full batches
        wait_until(lambda: server.scheduler.in_flight == 204)
        lab.resume()
        assert {status(call)[0] for call in (first, *calls, *few)} == {CODE.OK}
        turns = [place for place, total in enumerate(lab.first_sums) if total == 100.0]
        assert len(lab.batches) == 1 + 200 // 8 + 3
        assert all(turn <= 2 * (number + 1) for number, turn in enumerate(turns)), turns


@pytest.mark.parametrize(("front_ends", "count"), [(0, 10_000), (1, 2_000)])
def test_thousands_of_cancelled_requests_leave_nothing_behind(front_ends: int, count: int) -> None:
    lab, wave = Lab(), 1000
    with serving(lab, front_ends=front_ends, max_queue_requests=2 * wave) as (server, client):
        lab.pause("cpu")
        running = client.send(1.0)
        lab.wait_running("cpu")
        threads, files = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
        request = infer_request(2.0)
        for _ in range(count // wave):
            calls = [client.infer.ModelInfer.future(request, timeout=PATIENCE_S) for _ in range(wave)]
            wait_until(lambda: server.scheduler.in_flight == 1 + wave)
            for call in calls:
                call.cancel()
            wait_until(lambda: server.scheduler.in_flight == 1)
        assert server.scheduler.queue_depths() == {make_spec().key: 0}
        lab.resume()
        assert status(running)[0] is CODE.OK
        wait_until(lambda: server._front.inside == 0)
        counted = ("ModelInfer", "toy", "CANCELLED", "1")
        wait_until(lambda: client.metrics()["dnnserve_requests_total"].get(counted) == count)
        assert client.metrics()["dnnserve_dropped_requests_total"]["toy", "cancelled", "1"] == count
        del calls, call
        gc.collect()
        kept = sum(isinstance(each, InferenceRequest) for each in gc.get_objects())
        assert kept <= 1, "the last that was answered may be in somebody's hands"
        assert lab.batches == [("cpu", 1)]
        assert threading.active_count() <= threads + 2
        assert len(list(Path("/proc/self/fd").iterdir())) <= files + 4
