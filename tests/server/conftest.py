"""Shared memory of clients, and a server that may use it."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory

import pytest

from tests.server.client_memory import shared
from tests.server.fakes import Lab
from tests.server.serving import Client, serving


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with shared() as memory:
        yield memory


@pytest.fixture
def shared_client() -> Iterator[Client]:
    with serving(Lab(), shared_memory=True, http_port=0, max_shared_memory_regions=2, max_shared_memory_mib=1) as (
        _,
        client,
    ):
        yield client
