"""The asyncio client against the blocking one: the same answers and errors for the same calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dnnclient import CallCancelledError, Client, ClientError, UnavailableError, aio

from dnncore.errors import ClosedError, DnncoreError
from tests.client.fake_server import FakeServer, image

PIXELS = np.full((2, 3, 1), 7, np.uint8)
CALLS: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda client: client.classify(image(8), top_k=3),
    "several": lambda client: client.classify([image(7), image(2)], version="1"),
    "array": lambda client: client.classify(PIXELS),
    "no image": lambda client: client.classify([]),
    "bad image": lambda client: client.classify(b"no!"),
    "no model": lambda client: client.classify(image(1), model=""),
    "unknown model": lambda client: client.model("cats"),
    "model": lambda client: client.model(version="1"),
    "live": lambda client: client.is_live(),
    "ready": lambda client: client.is_ready("digits"),
    "cancelled": lambda client: client.classify(image(1), model="abort CANCELLED"),
    "internal": lambda client: client.classify(image(1), model="abort INTERNAL"),
    "refused": lambda client: client.classify(image(1), model="abort RESOURCE_EXHAUSTED"),
    "a status without a class": lambda client: client.classify(image(1), model="abort PERMISSION_DENIED"),
}


def with_client(server: FakeServer, use: Callable[[aio.Client], Awaitable[Any]], **settings: Any) -> Any:
    async def run() -> Any:
        async with aio.Client(server.target, model="digits", retry=None, **settings) as client:
            return await use(client)

    return asyncio.run(run())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_answers_and_errors_are_those_of_the_blocking_client(server: FakeServer, call: Callable[[Any], Any]) -> None:
    with Client(server.target, model="digits", retry=None) as client:
        try:
            expected: Any = call(client)
        except DnncoreError as error:
            expected = error
    if not isinstance(expected, DnncoreError):
        assert with_client(server, call) == expected
        return
    with pytest.raises(type(expected)) as caught:
        with_client(server, call)
    assert str(caught.value) == str(expected)
    if isinstance(caught.value, ClientError) and isinstance(expected, ClientError):
        assert caught.value.code is expected.code


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_") or name == "__init__":
            assert inspect.signature(method) == inspect.signature(getattr(aio.Client, name)), name


def test_infer_returns_arrays_by_name(server: FakeServer) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3).T
    outputs = with_client(server, lambda client: client.infer({"x": rows, "y": rows[:1]}, outputs=["x"]))
    assert outputs.keys() == {"x"}
    np.testing.assert_array_equal(outputs["x"], rows)


def test_files_are_read_and_calls_run_at_once(tmp_path: Path) -> None:
    path = tmp_path / "five.png"
    path.write_bytes(image(5))

    async def use(client: aio.Client) -> list[int]:
        answers = await asyncio.gather(*(client.classify([path, image(index)]) for index in range(4)))
        return [answer[1].best.index for answer in answers]

    with FakeServer(gather=4) as server:  # answered only when four calls are under way
        assert with_client(server, use, channels=2) == [0, 1, 2, 3]
    assert len(server.peers) == 2


def test_it_waits_for_readiness_or_says_what_was_not_ready(server: FakeServer) -> None:
    async def use(client: aio.Client) -> None:
        server.draining = True
        with pytest.raises(UnavailableError, match=r"was not ready within 0\.2 s"):
            await client.wait_until_ready(timeout_s=0.2)
        asyncio.get_running_loop().call_later(0.1, setattr, server, "draining", False)
        await client.wait_until_ready(timeout_s=30)

    with_client(server, use)


def test_timeout_cancellation_and_closing_end_calls_under_way_each_in_its_way() -> None:
    async def use(client: aio.Client) -> None:
        with pytest.raises(TimeoutError):
            await client.classify(image(0), timeout_s=0.05)
        first, second = (asyncio.create_task(client.classify(image(index))) for index in (1, 2))
        await asyncio.to_thread(server.wait_for_calls, 3)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await client.close()
        with pytest.raises(CallCancelledError, match="closed during the call"):
            await second
        with pytest.raises(ClosedError, match="was closed"):
            await client.model()

    with FakeServer(gather=4) as server:
        with_client(server, use)
