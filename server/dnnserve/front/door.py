"""The door: which calls are turned away before their requests are read, what they are told, and the count of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import grpc

from dnnserve.errors import (
    DeadlineExpiredError,
    InvalidRequestError,
    OverloadedError,
    RequestError,
    RestartingError,
    UnreachableError,
)
from dnnserve.front.call import Arrived, Trailer
from dnnserve.front.priority import stated_priority
from dnnserve.front.status import PUSHBACK
from dnnserve.scheduling.entry import level_of
from dnnserve.scheduling.outlook import Outlook

__all__ = ["Door", "TurnedAway", "Verdict"]

_EXPIRED = DeadlineExpiredError(
    "the deadline passed before the request was read: allow more time, or send less at once"
)
_LATE = OverloadedError("the answer would come too late, because others wait: retry later, or ask another replica")
_RESTARTING = RestartingError("the answer would come too late, because what runs the model is being started again")
_UNREACHABLE = UnreachableError(
    "less time is left than the model takes for a request that waits for no other: allow more time"
)
_MOST_TOGETHER = 256
_READS = 8
"""Calls, of which the one that waited least says how much the thread that reads is behind: others wait for their bytes."""
_LAG_HOLDS_NS = 10_000_000
"""After the last of them. Then one is read whatever is left to it."""
_PROMPT_NS = 1_000_000
_SHORTEST_WAIT_NS = 2_000_000
_WAITS = 4
"""A call waits to be read for no longer than this part of what is left to it."""

TurnedAway = Callable[[str, RequestError, int], None]
"""Told of calls that were turned away alike: their method, why, and how many."""


class Verdict(NamedTuple):
    """What a call is told that is turned away. Immutable; a tuple, because under overload one is made for most calls.

    Args:
        code: Number of the status.
        text: Its message.
        trailers: Trailing metadata.
    """

    code: int
    text: bytes
    trailers: tuple[Trailer, ...]


_EXPIRED_VERDICT = Verdict(grpc.StatusCode.DEADLINE_EXCEEDED.value[0], str(_EXPIRED).encode(), ())
_UNREACHABLE_VERDICT = Verdict(grpc.StatusCode.DEADLINE_EXCEEDED.value[0], str(_UNREACHABLE).encode(), ())
_LATE_CODE: int = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


class Door:
    """Turns calls away of which enough is known without their requests. Owned by the lane's thread, but for `judges` and
    `usual_priority`.

    To refuse a call whose request has been read costs the lane as much as to take it to a device, and where calls come faster than
    they can be read, those that are read have waited for so long that they are refused. So a call is refused as it comes whose
    deadline has passed, or cannot be met by what the last refusals say.

    Args:
        outlook: What they say.
        tells: Whether somebody is told of each call by itself; then all are read.
        on_turned_away: Told of those that were turned away, a few times a millisecond at most.

    Attributes:
        judges: Whether the outlook is asked: there is one model that a request may be for.
        usual_priority: Of requests that state none, as `ModelSpec` has it.
        holds: Whether calls have been turned away of which nobody was told.
    """

    def __init__(self, outlook: Outlook, tells: Callable[[], bool], on_turned_away: TurnedAway) -> None:
        self.judges = False
        self.usual_priority = 0
        self.holds = False
        self._outlook = outlook
        self._tells = tells
        self._on_turned_away = on_turned_away
        self._away: dict[tuple[str, RequestError], int] = {}
        self._lags_ns: deque[int] = deque(maxlen=_READS)
        self._lag_ns = self._lag_until_ns = self._rested_ns = 0

    def rested(self, now_ns: int) -> None:
        """Until now the thread that reads had nothing to do: what comes from now on cannot have waited for it before."""
        self._rested_ns = now_ns

    def read(self, came_ns: int, now_ns: int) -> None:
        """The request of a call has come, and is read now."""
        lags_ns = self._lags_ns
        rested_ns = self._rested_ns
        lags_ns.append(now_ns - (came_ns if came_ns > rested_ns else rested_ns))
        self._lag_ns = min(lags_ns)
        self._lag_until_ns = now_ns + _LAG_HOLDS_NS

    def lags(self, now_ns: int) -> bool:
        """Whether calls have waited for the thread that reads their requests."""
        return self._lag_ns > _PROMPT_NS and now_ns < self._lag_until_ns

    def is_urgent(self, metadata: Iterable[Sequence[Any]]) -> bool:
        """Whether a call's headers state that it is more important than the usual."""
        return self._level(metadata) < level_of(self.usual_priority)

    def verdict(
        self, method: str, now_ns: int, deadline_ns: int | None, metadata: Iterable[Sequence[Any]] = ()
    ) -> Verdict | None:
        """What a call of a method is told that comes now with these headers; None: its request is read."""
        if deadline_ns is None:
            return None
        read_ns = now_ns + self._lag_ns if now_ns < self._lag_until_ns else now_ns
        left_ns = deadline_ns - read_ns
        if left_ns <= 0:
            return self._expired(method)
        if not self.judges:
            return None
        if self._outlook.is_unreachable(now_ns, deadline_ns):
            return _UNREACHABLE_VERDICT if self._count(method, _UNREACHABLE) else None
        late_ns = self._outlook.late_ns(read_ns, deadline_ns, self._level(metadata))
        if late_ns is None:
            return None
        return self._late(method, left_ns, late_ns, _RESTARTING if self._outlook.restarting else _LATE)

    def waits_until_ns(self, came_ns: int, deadline_ns: int) -> int:
        """The moment from which `gives_up` says so of a call that waits."""
        return min(deadline_ns, came_ns + max(_SHORTEST_WAIT_NS, -((came_ns - deadline_ns) // (_WAITS + 1))))

    def gives_up(self, call: Arrived, now_ns: int) -> Verdict | None:
        """What a call is told that has waited too long; None: it may wait.

        Newer ones have more time left and go first, so it would go on waiting; it is told while it has time to go elsewhere.
        """
        came_ns, deadline_ns = call.arrival_ns, call.deadline_ns
        assert deadline_ns is not None, "calls without deadlines do not wait"
        waited_ns, left_ns = now_ns - came_ns, deadline_ns - now_ns
        if left_ns <= 0:
            return self._expired(call.method)
        if waited_ns < _SHORTEST_WAIT_NS or waited_ns < left_ns // _WAITS:
            return None
        return self._late(call.method, left_ns, waited_ns, _LATE)

    def _level(self, metadata: Iterable[Sequence[Any]]) -> int:
        try:
            return level_of(stated_priority(metadata) or self.usual_priority)
        except InvalidRequestError:
            return 0  # before all levels: it is read, and told so

    def _expired(self, method: str) -> Verdict | None:
        return _EXPIRED_VERDICT if self._count(method, _EXPIRED) else None

    def _late(self, method: str, left_ns: int, late_ns: int, error: OverloadedError) -> Verdict | None:
        if not self._count(method, error):
            return None
        late_ms = late_ns // 1_000_000 or 1
        because = "others wait" if error is _LATE else "what runs the model is being started again"
        text = (
            f"the answer would take longer than the {left_ns / 1e6:.1f} ms that are left, because {because}: "
            f"retry after {late_ms} ms, or ask another replica"
        )
        return Verdict(_LATE_CODE, text.encode(), ((PUSHBACK, str(late_ms)),))

    def _count(self, method: str, error: RequestError) -> bool:
        """Whether a call is turned away, which is counted."""
        if self._tells():
            return False
        key = method, error
        self._away[key] = count = self._away.get(key, 0) + 1
        self.holds = True
        if count == _MOST_TOGETHER:
            self.flush()
        return True

    def flush(self) -> None:
        """Tell of those that were turned away."""
        away, self._away, self.holds = self._away, {}, False
        for (method, error), count in away.items():
            self._on_turned_away(method, error, count)
