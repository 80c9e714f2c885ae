"""What all of these tests begin with."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Draw the same numbers whichever tests ran before in the same process."""
    torch.manual_seed(0)
