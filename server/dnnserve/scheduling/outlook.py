"""What refusals say of requests that nobody has read yet: who comes behind them fares no better.

Of two requests that wait for a model, the one with the nearer deadline goes first. So where one with a deadline d was refused,
because its answer would have come at a later moment e, one that comes now with a deadline between the two would be refused as well:
as much goes before it, or more. That is known without the request, and to read one and ask for it costs several times what a
refusal does; under overload that is most of what there is to do. Nothing follows for deadlines before d, which go ahead, nor for
those behind e, nor for requests of a more important level, as far as a call's headers state it; those of a less important one stand
farther back, and fare worse. Where a device that had nothing else to do would take too long, all nearer deadlines are out of reach,
too.

It holds for a part of the time that the refused one had left, which is what waits before it takes: batches end earlier than
expected, what waits is given up, estimates change. Then one request is asked for again. It does not hold where requests differ in
more than that: in their models, of which there must be one alone, or in priorities and time limits that only their messages have
(`distrust`). Rows are not known either. So what became of a request says nothing where others had fewer lately (`is_least`): these
may fit where that one did not, and one that asks for the impossible would keep them out of a server that has nothing to do.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnserve.scheduling.entry import DEFAULT_PRIORITY

__all__ = ["Outlook"]

_HOLDS = 4
"""A refusal holds for this part of the time that was left, within these bounds."""
_SHORTEST_HOLD_NS = 5_000_000
"""Where calls come late to the door, little is left of all of them; whoever reads each fifth in vain comes later and later."""
_LONGEST_HOLD_NS = 25_000_000
"""A device that was lost may be back before it was expected. To read one request in so long costs nothing."""

_LEAST_HOLDS_NS = 100_000_000
"""What a batch takes is corrected where it keeps requests out, but not so often."""

_DISTRUST_NS = 60_000_000_000
"""So long it counts that requests differed; also in their rows."""
_MOST_KEPT = 8
"""Refusals that count at the same time: clients use few different deadlines."""


class _Heard(NamedTuple):
    """A refusal. Immutable.

    Args:
        deadline_ns: By which the answer was wanted.
        answer_ns: When it would have come.
        until_ns: After this moment it says nothing any more.
        level: Of its priority.
    """

    deadline_ns: int
    answer_ns: int
    until_ns: int
    level: int


class Outlook:
    """Deadlines that cannot be met, as far as refusals have told. Thread-safe: what it remembers is replaced as a whole, and a
    refusal that another thread's overwrites is heard again.

    Attributes:
        restarting: Whether the last request that was refused because others wait was so because a device is being started again.
    """

    def __init__(self) -> None:
        self.restarting = False
        self._heard: tuple[_Heard, ...] = ()
        self._least_ns, self._least_until_ns = 0, 0
        self._distrusted_ns = 0
        self._fewest: tuple[int, int] = (0, 0)  # rows, and until when they count

    def see(self, now_ns: int, rows: int) -> None:
        """A request of so many rows has been read."""
        fewest, until_ns = self._fewest
        if rows <= fewest or now_ns >= until_ns:
            self._fewest = rows, now_ns + _DISTRUST_NS

    def is_least(self, rows: int) -> bool:
        """Whether no request that was seen lately had fewer rows."""
        return rows <= self._fewest[0]

    def hear(
        self,
        now_ns: int,
        deadline_ns: int,
        answer_ns: int,
        level: int = DEFAULT_PRIORITY,
        *,
        restarting: bool = False,
    ) -> None:
        """A request was refused, because others wait.

        Args:
            now_ns: The moment.
            deadline_ns: Its own.
            answer_ns: The moment behind which a deadline must be for a request in its place to be let in.
            level: Of its priority.
            restarting: Whether that is so because a device is being started again.
        """
        self.restarting = restarting
        if now_ns >= self._distrusted_ns:
            kept = [each for each in self._heard if each.until_ns > now_ns][1 - _MOST_KEPT :]
            holds_ns = min(max(_SHORTEST_HOLD_NS, (deadline_ns - now_ns) // _HOLDS), _LONGEST_HOLD_NS)
            self._heard = (*kept, _Heard(deadline_ns, answer_ns, now_ns + holds_ns, level))

    def hear_least(self, now_ns: int, least_ns: int) -> None:
        """A request was refused that had less time than one takes on a device that has nothing else to do."""
        if now_ns >= self._distrusted_ns:
            self._least_ns, self._least_until_ns = least_ns, now_ns + _LEAST_HOLDS_NS

    def distrust(self, now_ns: int) -> None:
        """A request came that does not take its turn by its call's deadline: for a minute nothing is said of others."""
        self._distrusted_ns = now_ns + _DISTRUST_NS
        self._heard, self._least_until_ns = (), 0

    def is_gloomy(self, now_ns: int) -> bool:
        """Whether the last refusal for others' sake holds."""
        heard = self._heard
        return bool(heard) and now_ns < heard[-1].until_ns

    def is_unreachable(self, now_ns: int, deadline_ns: int) -> bool:
        """Whether the answer would come too late even if nobody waited."""
        return now_ns < self._least_until_ns and deadline_ns - now_ns <= self._least_ns

    def late_ns(self, now_ns: int, deadline_ns: int, level: int = DEFAULT_PRIORITY) -> int | None:
        """How much too late the answer to a request of a level would come that is not read yet; None: it may be in time."""
        for deadline, answer, until_ns, refused in self._heard:
            if deadline <= deadline_ns < answer and now_ns < until_ns and refused <= level:
                return answer - deadline_ns
        if self.is_unreachable(now_ns, deadline_ns):
            return now_ns + self._least_ns - deadline_ns
        return None
