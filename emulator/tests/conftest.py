"""Where the emulator cannot be built, its tests say so and do not run."""

from __future__ import annotations

import pytest

from emulator import toolkit


@pytest.fixture(scope="session", autouse=True)
def buildable() -> None:
    if reason := toolkit.why_not():
        pytest.skip(reason)
