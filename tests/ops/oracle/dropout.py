"""Dropout, with Philox4x32-10 in Python's integers: one counter at a time, as the paper's algorithm reads."""

from __future__ import annotations

import numpy as np

from dnncore.problems import DropoutProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs, from_numpy

__all__ = ["philox"]

_MASK = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words of a counter."""
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = (
            (second >> 32) ^ counter[1] ^ key[0],
            second & _MASK,
            (first >> 32) ^ counter[3] ^ key[1],
            first & _MASK,
        )
        key = ((key[0] + 0x9E3779B9) & _MASK, (key[1] + 0xBB67AE85) & _MASK)
    return counter


@draw_inputs.register
def _(problem: DropoutProblem, rng: np.random.Generator) -> list[np.ndarray]:
    return [draw(problem.x, rng), rng.integers(-(2**31), 2**31, 4).astype(np.int32)]


@answers.register
def _(problem: DropoutProblem, x: Tensor, state: Tensor) -> Terms:
    words = [int(word) & _MASK for word in state]
    kept = []
    for i in range(-(-x.numel() // 4)):
        counter = (i & _MASK, i >> 32, words[2], words[3])
        kept += [word / 2**32 >= problem.probability for word in philox(counter, (words[0], words[1]))]
    mask = from_numpy(np.array(kept[: x.numel()], np.float64)).reshape(x.shape)
    scale = 0 if problem.probability == 1 else 1 / (1 - problem.probability)
    value = x * mask * scale
    return value, value.abs(), 1
