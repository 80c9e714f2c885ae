"""What batches take on a device before the first client comes: the beginning of the policy's costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dnnserve.engine.buckets import batch_buckets
from dnnserve.engine.instance import Instance

__all__ = ["time_batches"]

_RUNS = 2


def time_batches(instance: Instance, budget_ns: int, clock: Callable[[], int]) -> Mapping[int, int]:
    """Run batches of zeros of every size that devices are prepared for, the smallest first: pixels, where it takes any.

    Args:
        instance: Loaded and warm, with nothing begun.
        budget_ns: No size is begun that would end later: the policy guesses those from the others.
        clock: Monotonic nanoseconds.

    Returns:
        Nanoseconds by rows, the least of two runs where there is time for two.
    """
    timings_ns: dict[int, int] = {}
    end_ns = clock() + budget_ns
    guess_ns = 1.0
    for rows in batch_buckets(instance.max_batch_rows):
        for _ in range(_RUNS):
            begin_ns = clock()
            if begin_ns + guess_ns > end_ns:
                break
            pixels = instance.slots[0].preprocessing is not None
            for array in instance.slots[0].read(pixels=pixels):
                array[:rows] = 0
            instance.begin(0, rows, pixels, instance.signature.all_outputs)
            for output in instance.finish().values():
                output.copy()
            took_ns = clock() - begin_ns
            timings_ns[rows] = min(took_ns, timings_ns.get(rows, took_ns))
            guess_ns = timings_ns[rows]
        guess_ns *= 2  # sizes double
    return timings_ns
