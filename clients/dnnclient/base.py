"""What the blocking client and that of asyncio share: settings, the default model, channels in turn, and who may still call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from dnnclient.calls import METHODS, Call
from dnnclient.channels import Methods, bearer, ranked
from dnnclient.errors import InvalidArgumentError
from dnnclient.retries import Attempts, RetryBudget, RetryPolicy
from dnncore.errors import BadParamError, ClosedError

__all__ = ["DEFAULT_RETRY", "POLL_S", "Connections", "open_several"]

_Channel = TypeVar("_Channel", grpc.Channel, grpc.aio.Channel)

DEFAULT_RETRY = RetryPolicy()
"""Of clients that are given none."""

POLL_S = 0.05
"""How often a client that waits for a server asks."""


def open_several(open_one: Callable[[], _Channel], channels: int) -> list[_Channel]:
    """Open so many channels.

    Raises:
        BadParamError: there would be none.
    """
    if channels < 1:
        raise BadParamError(f"channels is {channels}; use 1 or more")
    return [open_one() for _ in range(channels)]


class Connections:
    """The open channels to one server and what is common to all calls over them. Thread-safe.

    Args:
        target: Named in messages.
        channels: Open, at least one.
        model: Of calls that name none.
        timeout_s: Of calls that give none.
        retry: None: a call is sent once.
        token: Shown with each call.
        priority: Of calls that give none.
    """

    def __init__(
        self,
        target: str,
        channels: Sequence[grpc.Channel | grpc.aio.Channel],
        *,
        model: str,
        timeout_s: float,
        retry: RetryPolicy | None,
        token: str | None,
        priority: int,
    ) -> None:
        self.closed = False
        self._target = target
        self._model = model
        self._timeout_s = timeout_s
        self._retry = retry
        self._budget = None if retry is None else RetryBudget(retry)
        self._metadata = bearer(token)
        self._priority = priority
        ranked(priority)  # what is wrong with it is said here, and not by the first call
        self._methods = Methods(channels, METHODS)

    def model_name(self, name: str | None) -> str:
        """The model that a call names, or the default.

        Raises:
            InvalidArgumentError: there is neither.
        """
        name = self._model if name is None else name
        if not name:
            raise InvalidArgumentError("no model is named; give model=... here or to Client(...)")
        return name

    def priority(self, priority: int | None) -> int:
        """What a call gives, or the default."""
        return self._priority if priority is None else priority

    def attempts(self, call: Call[Any], timeout_s: float | None) -> Attempts:
        """Begin a call."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return Attempts(self._retry if call.retried else None, self._budget, timeout_s)

    def send(self, call: Call[Any], attempts: Attempts) -> Any:
        """Send a call once: over blocking channels its response, over those of asyncio what to await.

        Raises:
            ClosedError: the client was closed.
        """
        if self.closed:
            raise ClosedError(f"this client of {self._target} was closed; make a new one")
        return self._methods.next(call.method)(
            call.request, timeout=attempts.remaining_s, metadata=self._metadata + call.metadata
        )
