"""Devices of a test, and the runners over them, which end with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.fakes import Lab
from tests.server.runner.fleet import Fleet


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def fleets() -> Iterator[list[Fleet]]:
    fleets: list[Fleet] = []
    yield fleets
    for fleet in fleets:
        fleet.close()
