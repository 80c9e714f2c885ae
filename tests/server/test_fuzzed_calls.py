"""A little of `fuzz_calls`: each call ends once, and fairly."""

from __future__ import annotations

import pytest

from tests.server.fuzz_calls import KINDS, fuzz


@pytest.mark.filterwarnings("ignore:overflow encountered")  # by the fake device, which multiplies what it is sent
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_message_says_its_call_ends_once_and_nobody_else_notices(kind: str) -> None:
    ends = fuzz(kind, 2000, seed=1)
    assert ends["OK"] > 20, ends
    assert ends["INVALID_ARGUMENT"] > 200, ends
