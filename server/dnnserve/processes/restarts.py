"""When what was lost is tried again: pure, without a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Restarts"]


@dataclass
class Restarts:
    """Waits that double from one loss to the next, and an end to them. Owned by one thread.

    What has worked for `calm_s` since its last start is as good as new.

    Args:
        limit: Losses in a row after which it is not tried any more; 0: it never is.
        first_s: Wait before the first new start.
        longest_s: No wait is longer.
        calm_s: Seconds in service after which losses before count no more.
    """

    limit: int = 8
    first_s: float = 0.05
    longest_s: float = 10.0
    calm_s: float = 60.0
    total: int = field(default=0, init=False)
    _in_a_row: int = field(default=0, init=False)

    def after(self, seconds_in_service: float) -> float | None:
        """Count a loss.

        Returns:
            Seconds to wait before it is tried again; None: it is not.
        """
        if seconds_in_service >= self.calm_s:
            self._in_a_row = 0
        if self._in_a_row >= self.limit:
            return None
        wait_s = min(self.first_s * 2.0**self._in_a_row, self.longest_s)
        self._in_a_row += 1
        self.total += 1
        return wait_s
