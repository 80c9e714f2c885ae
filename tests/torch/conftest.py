"""What all of these tests begin with."""

from __future__ import annotations

import pytest
import torch

from dnncore.torch import bridge


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Draw the same numbers whichever tests ran before in the same process."""
    torch.manual_seed(0)


@pytest.fixture
def nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this thread have planned nothing yet; what the test plans is forgotten with it."""
    monkeypatch.setattr(bridge._thread, "seen", {})
    monkeypatch.setattr(bridge._thread, "recent", {})
