"""When a call that failed is sent again, and after how long: a policy as a value, and the account that bounds it.

Nothing here waits or sends. gRPC has a retry policy of its own (`retryPolicy` in the service config), which is not used. It never
sends again what is larger than its buffer (256 KiB, less than two images of 224 x 224). It stays on the connection that failed,
where another may lead to a front end that has room. And where the next attempt would come after the deadline, the caller waits for
that, and sees DEADLINE_EXCEEDED in place of the server's reason.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from dnncore.errors import BadParamError

__all__ = ["Attempts", "RetryBudget", "RetryPolicy", "pushback_s"]

_PUSHBACK = "grpc-retry-pushback-ms"
_PUSHBACK_SPREAD = 0.1  # of the time that the server names: or all that were refused together would come back together


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is sent again, how often and after how long. Immutable.

    Inference changes nothing on the server, so that a call may be sent twice. An overloaded server may name the time to come back
    (`grpc-retry-pushback-ms`); else the longest wait grows from attempt to attempt, and between half of it and all of it is waited.
    A wait that would reach the call's deadline is not begun: the call ends at once, with the status that the server gave.

    Args:
        max_attempts: Most attempts of a call, the first included.
        initial_backoff_s: Longest wait before the second attempt.
        max_backoff_s: Longest wait before any. What the server names may be longer.
        multiplier: From one wait to the next.
        codes: Statuses after which a call is sent again.
        budget: Attempts beside the first that a client may make at once, all its calls together ...
        budget_ratio: ... and how many it earns back with each call: what a server in trouble gets on top of its load.

    Raises:
        BadParamError: a number is out of range.

    Source: gRPC proposal A6, for the meaning of the pushback.
    """

    max_attempts: int = 4
    initial_backoff_s: float = 0.05
    max_backoff_s: float = 2.0
    multiplier: float = 2.0
    codes: frozenset[grpc.StatusCode] = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})
    budget: float = 100.0
    budget_ratio: float = 0.2

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise BadParamError(f"max_attempts is {self.max_attempts}; use 1 or more, or no policy")
        if not 0 < self.initial_backoff_s <= self.max_backoff_s < float("inf") or not self.multiplier >= 1:
            raise BadParamError(
                f"waits from {self.initial_backoff_s} s to {self.max_backoff_s} s, {self.multiplier} times longer each, are none"
            )
        if not self.budget >= 0 or not 0 <= self.budget_ratio <= 1:
            raise BadParamError(f"a budget of {self.budget}, {self.budget_ratio} a call, is none")

    def wait_s(
        self, attempt: int, code: grpc.StatusCode, pushback_s: float | None, remaining_s: float, draw: float
    ) -> float | None:
        """How long to wait before the next attempt; None: there shall be none.

        Args:
            attempt: The one that failed, from 1.
            code: Its status.
            pushback_s: The wait that the server named; negative: it wants no other attempt. None: it said nothing.
            remaining_s: Time that the call has left.
            draw: Random, in [0, 1).
        """
        if code not in self.codes or attempt >= self.max_attempts:
            return None
        if pushback_s is None:
            longest_s = min(self.max_backoff_s, self.initial_backoff_s * self.multiplier ** (attempt - 1))
            wait_s = longest_s * (1 + draw) / 2
        elif pushback_s < 0:
            return None
        else:
            wait_s = pushback_s * (1 + _PUSHBACK_SPREAD * draw)
        return wait_s if wait_s < remaining_s else None


class RetryBudget:
    """The further attempts that a client has left. Thread-safe: `_lock` guards `_left`.

    Args:
        policy: Says how many there are, and how they come back.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._left = policy.budget

    def earn(self) -> None:
        """Count a call."""
        with self._lock:
            self._left = min(self._policy.budget, self._left + self._policy.budget_ratio)

    def spend(self) -> bool:
        """Take a further attempt; False: there is none."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Attempts:
    """The attempts of one call. Owned by one thread; not checked: its caller's.

    Args:
        policy: None: there is one attempt.
        budget: Of the client.
        timeout_s: Of the call, all attempts together.
        clock: Monotonic seconds.
        draw: Gives random numbers in [0, 1).
    """

    def __init__(
        self,
        policy: RetryPolicy | None,
        budget: RetryBudget | None,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._budget = budget
        self._clock = clock
        self._draw = draw
        self._end_s = clock() + timeout_s
        self._failed = 0
        if budget is not None:
            budget.earn()

    @property
    def remaining_s(self) -> float:
        """Time that the call has left; negative when it is over."""
        return self._end_s - self._clock()

    def wait_s(self, error: grpc.RpcError) -> float | None:
        """How long to wait before the next attempt, now that one ended with this error; None: the call has failed."""
        self._failed += 1
        if self._policy is None or self._budget is None:
            return None
        pushback = pushback_s(error.trailing_metadata() or ())
        wait_s = self._policy.wait_s(self._failed, error.code(), pushback, self.remaining_s, self._draw())
        return wait_s if wait_s is not None and self._budget.spend() else None


def pushback_s(metadata: Iterable[Any]) -> float | None:
    """The wait that a server names in its trailing metadata; None: it names none.

    Negative, also for what is no number: the call shall not be sent again.
    """
    for key, value in metadata:
        if key == _PUSHBACK:
            try:
                return int(value) / 1e3
            except ValueError:
                return -1.0
    return None
