"""Requests that were submitted and have no completion yet: each gets exactly one, because it leaves the ledger with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dnnserve.envelope import Answer, Completion, InferenceRequest, ModelKey
from dnnserve.errors import RequestError
from dnnserve.scheduling.entry import Entry

__all__ = ["Ledger"]


class Ledger:
    """Requests by their tickets, queued or running. Owned by one thread; not checked: the scheduler's lock sees to it."""

    def __init__(self) -> None:
        self._pending: dict[int, InferenceRequest] = {}
        self._repeated: set[int] = set()  # tickets of `_pending` that have had their second chance
        self._repeats: dict[ModelKey, int] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def requests(self) -> Sequence[InferenceRequest]:
        """All there are."""
        return list(self._pending.values())

    @property
    def repeats(self) -> Mapping[ModelKey, int]:
        """Requests that were repeated, by model."""
        return dict(self._repeats)

    def add_model(self, model: ModelKey) -> None:
        """Count a model's repeats from now on."""
        self._repeats[model] = 0

    def remove_model(self, model: ModelKey) -> None:
        """Forget how many of a model's were repeated."""
        del self._repeats[model]

    def enter(self, request: InferenceRequest) -> None:
        """A request was queued."""
        self._pending[request.ticket] = request

    def of(self, entries: Iterable[Entry]) -> tuple[InferenceRequest, ...]:
        """The requests of these entries, which have no completion yet."""
        return tuple([self._pending[entry.ticket] for entry in entries])

    def strike(self, ticket: int) -> InferenceRequest | None:
        """Take a request out; None: it has its completion already."""
        self._repeated.discard(ticket)
        return self._pending.pop(ticket, None)

    def fail(
        self, entries: Iterable[Entry], error: Callable[[InferenceRequest], RequestError], now_ns: int
    ) -> list[Completion]:
        """Complete the requests of these entries with an error each."""
        requests = self.of(entries)
        for request in requests:
            self.strike(request.ticket)
        return [Completion(request, error(request), now_ns) for request in requests]

    def settle(
        self, requests: Sequence[InferenceRequest], outcomes: Sequence[Answer | RequestError], now_ns: int
    ) -> list[Completion]:
        """Complete a batch; those of it that have their completion already (cancelled) keep that."""
        pending = self._pending
        completions = [
            Completion(request, outcome, now_ns)
            for request, outcome in zip(requests, outcomes, strict=True)
            if pending.pop(request.ticket, None) is not None
        ]
        if self._repeated:
            self._repeated.difference_update(request.ticket for request in requests)
        return completions

    def repeat(self, requests: Sequence[InferenceRequest]) -> set[int]:
        """Give those of a batch their second chance that have no completion yet and had none before; their tickets."""
        again = {r.ticket for r in requests if r.ticket in self._pending and r.ticket not in self._repeated}
        self._repeated |= again
        for request in requests:
            if request.ticket in again:
                self._repeats[request.model] += 1
        return again

    def fail_all(self, error: Callable[[], RequestError], now_ns: int) -> list[Completion]:
        """Complete all there are with an error each."""
        completions = [Completion(request, error(), now_ns) for request in self._pending.values()]
        self._pending.clear()
        self._repeated.clear()
        return completions
