from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from dnnclient import Client

from tests.client.fake_server import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target, model="digits") as connected:
        yield connected


@pytest.fixture
def nobody() -> Iterator[str]:
    """A target where nothing listens: the port is bound, so nobody else can take it, and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
