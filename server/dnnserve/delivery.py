"""How completions reach those who asked: recorded first (statistics, metrics), so that whoever has an answer finds it counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dnnserve.envelope import Completion, CompletionSink

__all__ = ["Delivery", "Recorder"]

Recorder = Callable[[Sequence[Completion]], None]
"""Called with every completion, before it is delivered, outside any lock of the scheduler; must not raise."""


class Delivery:
    """Records completions and gives them to their sinks. Immutable.

    Args:
        recorders: Called in this order with every completion.
    """

    def __init__(self, recorders: Iterable[Recorder]) -> None:
        self._recorders = tuple(recorders)

    def __call__(self, completions: Sequence[Completion]) -> None:
        """Deliver completions, those of one sink in one list."""
        if not completions:
            return
        for record in self._recorders:
            record(completions)
        by_sink: dict[CompletionSink, list[Completion]] = {}
        for completion in completions:
            by_sink.setdefault(completion.request.sink, []).append(completion)
        for sink, mine in by_sink.items():
            sink(mine)
