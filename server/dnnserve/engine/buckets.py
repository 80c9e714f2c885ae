"""Batch sizes that a device is prepared for."""

from __future__ import annotations

__all__ = ["batch_buckets"]


def batch_buckets(max_batch_rows: int) -> tuple[int, ...]:
    """Batch sizes that executors are bound for: powers of two, and the maximum itself."""
    return (*(1 << power for power in range((max_batch_rows - 1).bit_length())), max_batch_rows)
