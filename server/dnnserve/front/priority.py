"""The priority that a call's headers state, which is known before its request is read.

Triton's parameter `priority` stands within the request. Under overload most requests are not read, and whose parameter says that it
goes first is refused with the others: a client that wants to be known says so here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dnnserve.errors import InvalidRequestError

__all__ = ["PRIORITY_HEADER", "stated_priority"]

PRIORITY_HEADER = "dnn-priority"
"""Of gRPC and of HTTP."""

_MOST_DIGITS = 9


def stated_priority(metadata: Iterable[Sequence[Any]]) -> int:
    """What the headers state, with the meaning of `InferenceRequest.priority`; 0: nothing.

    Raises:
        InvalidRequestError: it is no such number.
    """
    for key, value in metadata:
        if key == PRIORITY_HEADER:
            if not (isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS):
                raise InvalidRequestError(
                    f"the header {PRIORITY_HEADER} is {value[:20]!r}; send 1 for the most important, or 0 for the model's"
                )
            return int(value)
    return 0
