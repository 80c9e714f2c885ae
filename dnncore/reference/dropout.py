"""Dropout by Philox4x32-10, all counters at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dnncore.problems import DropoutProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["ALGORITHMS"]

_Words = npt.NDArray[np.uint64]
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10


def _philox(counters: list[_Words], key: list[np.uint64]) -> list[_Words]:
    """Four 32-bit words a counter, each in 64 bits."""
    a, b, c, d = counters
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> _HALF) ^ b ^ key[0], second & _MASK, (first >> _HALF) ^ d ^ key[1], first & _MASK
        key = [(word + step) & _MASK for word, step in zip(key, _WEYL, strict=True)]
    return [a, b, c, d]


def _dropout(problem: DropoutProblem, x: Array, state: npt.NDArray[np.int32]) -> Array:
    words = state.astype(np.int64).astype(np.uint64) & _MASK
    blocks = np.arange(-(-x.size // 4), dtype=np.uint64)
    offset = [np.full_like(blocks, word) for word in words[2:]]
    random = np.stack(_philox([blocks & _MASK, blocks >> _HALF, *offset], list(words[:2])), 1).ravel()[: x.size]
    kept = random.reshape(x.shape) >= np.uint64(problem.threshold)
    return np.where(kept, x * problem.scale, 0.0)


ALGORITHMS = (ReferenceAlgorithm("philox", _dropout),)
