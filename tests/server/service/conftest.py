"""A server of three models with a fake device, over real gRPC; over both front ends where a module says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dnnserve.app import Server

from tests.server.fakes import Lab, make_spec
from tests.server.serving import Client, front_end, serving

__all__ = ["front_end"]


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def served(lab: Lab) -> Iterator[tuple[Server, Client]]:
    specs = (make_spec(), make_spec(version=3), make_spec("other", 2))
    with serving(lab, specs=specs, max_message_mib=1) as both:
        yield both


@pytest.fixture
def client(served: tuple[Server, Client]) -> Client:
    return served[1]
