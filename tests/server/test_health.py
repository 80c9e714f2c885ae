from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from dnnserve.front.health import Health
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.server.fakes import PATIENCE_S, wait_until

REQUEST = health_pb2.HealthCheckRequest()
STATUS = health_pb2.HealthCheckResponse
NO_ROOM = [("grpc.http2.lookahead_bytes", 5), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
"""A message of 7 bytes is not sent before the client reads."""


@contextmanager
def watched(health: Health) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    health.add_watch(server, lambda _method, _code: None)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait(PATIENCE_S)
        health.close()


def test_a_watch_that_does_not_read_delays_neither_the_status_nor_other_watches() -> None:
    health = Health(("service",))
    with (
        watched(health) as address,
        grpc.insecure_channel(address, NO_ROOM) as deaf,
        grpc.insecure_channel(address) as reading,
        ThreadPoolExecutor(1) as setter,
    ):
        silent = health_pb2_grpc.HealthStub(deaf).Watch(REQUEST, timeout=2 * PATIENCE_S)
        wait_until(lambda: not health.wait_told(0.0))
        other = health_pb2_grpc.HealthStub(reading).Watch(REQUEST, timeout=PATIENCE_S)
        assert next(other).status == STATUS.NOT_SERVING
        setter.submit(health.set_serving, True).result(PATIENCE_S)
        assert next(other).status == STATUS.SERVING
        assert not health.wait_told(0.0)
        assert [next(silent).status for _ in range(2)] == [STATUS.NOT_SERVING, STATUS.SERVING]
        silent.cancel()
        assert health.wait_told(PATIENCE_S)


def test_a_watch_of_an_unknown_service_is_told_so() -> None:
    health = Health(("service",))
    with watched(health) as address, grpc.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="x"), timeout=PATIENCE_S
        )
        assert next(watch).status == STATUS.SERVICE_UNKNOWN


def test_one_watch_too_many_is_refused_until_another_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnserve.front.health._MOST_WATCHES", 2)
    health = Health(("service",))
    with watched(health) as address, grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        first, second = (stub.Watch(REQUEST, timeout=PATIENCE_S) for _ in range(2))
        assert [next(watch).status for watch in (first, second)] == [STATUS.NOT_SERVING] * 2
        with pytest.raises(grpc.RpcError) as refused:
            next(stub.Watch(REQUEST, timeout=PATIENCE_S))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused.value.details() == "2 clients watch the health already"
        first.cancel()
        wait_until(lambda: is_taken(stub))
        health.set_serving(True)
        assert next(second).status == STATUS.SERVING


def is_taken(stub: health_pb2_grpc.HealthStub) -> bool:
    watch = stub.Watch(REQUEST, timeout=PATIENCE_S)
    try:
        return bool(next(watch).status == STATUS.NOT_SERVING)
    except grpc.RpcError:
        return False
    finally:
        watch.cancel()
