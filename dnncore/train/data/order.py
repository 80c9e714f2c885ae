"""Seeded orders that stay the same for ever."""

from __future__ import annotations

import numpy as np

__all__ = ["permutation", "raw_numbers"]


def permutation(count: int, *entropy: int) -> np.ndarray:
    """An order of 0..count-1 that is a pure function of the arguments: int64 [count].

    It is made from a bit generator's raw output, which NumPy guarantees between versions; Generator.permutation is not guaranteed
    (NEP 19), and a resumed run or a recomputed split must not depend on the NumPy that is installed.
    """
    return np.asarray(np.argsort(raw_numbers(count, *entropy), kind="stable"), np.int64)


def raw_numbers(count: int, *entropy: int) -> np.ndarray:
    """Random numbers of 64 bits that are a pure function of the arguments: uint64 [count]."""
    return np.asarray(np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(count), np.uint64)
