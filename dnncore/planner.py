"""The plans of a handle: each chosen once, and found again by its problem or by what an operation was called with."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from dnncore.backend import Algorithm, Device, Offer
from dnncore.measured import MeasuredChoices
from dnncore.plan import AlgorithmPerformance, Plan, Preference, choose, make_plan, rank
from dnncore.problems import Problem

__all__ = ["MOST_PLANS", "Planner"]

MOST_PLANS = 1024
"""Plans that are kept: a problem holds factors and probabilities, which may be new ones at every call."""


_MOST_CHOICES = 64
"""Choices that are kept for plans that may follow: those of an operation that may be computed in several ways."""


class Planner:
    """Plans of one device for one thread. Owned by the thread of its handle.

    Args:
        device: What they are for.
        preference: What algorithms may take.
        fastest: Times the algorithms for a problem and names the fastest, None where there is nothing to choose.
        choices: What was measured: what they are chosen by, before estimates.

    Attributes:
        autotune: Whether `fastest` chooses, or what was measured and estimates do.
        plans: Those kept, by problem, preference and the algorithm asked for; the last used is last.
        seen: What floors above have made of plans by the preference of now, by what they were called with. It goes when the
            preference does.
    """

    def __init__(
        self,
        device: Device,
        preference: Preference,
        fastest: Callable[[Problem, Preference], str | None],
        choices: MeasuredChoices,
    ) -> None:
        self._device = device
        self._preference = preference
        self._fastest = fastest
        self._choices = choices
        self.autotune = False
        self.plans: OrderedDict[tuple[Problem, Preference, str | None], Plan] = OrderedDict()
        self.seen: dict[Hashable, Any] = {}
        self._called: dict[Hashable, Plan] = {}
        self._chosen: dict[tuple[Problem, Preference], tuple[Algorithm, Offer] | None] = {}

    @property
    def preference(self) -> Preference:
        """What algorithms may take, unless a call says otherwise."""
        return self._preference

    @preference.setter
    def preference(self, preference: Preference) -> None:
        self._preference = preference
        self._called.clear()  # what is in them was chosen by the preference before
        self.seen.clear()

    @contextmanager
    def preferring(self, preference: Preference) -> Iterator[None]:
        """Choose by another preference in this block; what was chosen before it is found again behind it."""
        before = self._preference, self._called, self.seen
        self._preference, self._called, self.seen = preference, {}, {}
        try:
            yield
        finally:
            self._preference, self._called, self.seen = before

    def plan(self, problem: Problem, preference: Preference | None = None, algorithm: str | None = None) -> Plan:
        """The plan for a problem.

        Raises:
            NotSupportedError: no algorithm fits the preference; the message lists each and why.
        """
        key = (problem, preference or self._preference, algorithm)
        plan = self.plans.get(key)
        if plan is not None:
            self.plans.move_to_end(key)
            return plan
        if algorithm is None and self.autotune:
            algorithm = self._fastest(problem, key[1])
        chosen = self._chosen.pop((problem, key[1]), None) if algorithm is None else None
        plan = self.plans[key] = make_plan(problem, self._device, key[1], algorithm, chosen, self._choices)
        if len(self.plans) > MOST_PLANS:
            self.plans.popitem(last=False)
        return plan

    def estimated_seconds(self, problem: Problem) -> float:
        """What the plan would take, measured or by estimate; infinite where there is none. `plan` does not choose again."""
        key = (problem, self._preference)
        plan = self.plans.get((*key, None))
        if plan is not None and not self.autotune:
            return plan.offer.seconds
        if key not in self._chosen:
            if len(self._chosen) >= _MOST_CHOICES:
                del self._chosen[next(iter(self._chosen))]
            self._chosen[key] = choose(problem, self._device, self._preference, choices=self._choices)
        chosen = self._chosen[key]
        return math.inf if chosen is None else chosen[1].seconds

    def called(self, kind: Callable[..., Problem], arguments: tuple[Hashable, ...], algorithm: str | None) -> Plan:
        """The plan for `kind(*arguments)`, which is made, and checked, when it is called for the first time.

        Raises:
            BadParamError: the arguments make no problem.
            NotSupportedError: as `plan`.
        """
        key = (kind, arguments, algorithm)
        try:
            plan = self._called.get(key)
        except TypeError:  # what cannot be hashed is no argument; the problem says so in its own words
            return self.plan(kind(*arguments), algorithm=algorithm)
        if plan is None:
            plan = self.plan(kind(*arguments), algorithm=algorithm)
            _remember(self._called, key, plan)
        return plan

    def remember(self, key: Hashable, made: Any) -> None:
        """Have `seen` hold what was made of plans, as one of the last 1,024."""
        _remember(self.seen, key, made)

    def rank(self, problem: Problem, preference: Preference | None = None) -> list[AlgorithmPerformance]:
        """Every algorithm for a problem, without running one; see `plan.rank`."""
        return rank(problem, self._device, preference or self._preference, self._choices)

    def clear(self) -> None:
        """Forget every plan."""
        self.plans.clear()
        self._called.clear()
        self.seen.clear()
        self._chosen.clear()


def _remember(found: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    found[key] = value
    if len(found) > MOST_PLANS:
        del found[next(iter(found))]
