"""Which algorithm batch normalisation of planes takes in training: the fastest, as measured on an H200 at 6c9abd8f."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dnncore import ActivationDescriptor, BatchNormMode, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.normalization import ALGORITHMS
from dnncore.figures import A100, H200, DeviceFigures
from dnncore.problems import BatchNormBackwardProblem, BatchNormForwardProblem

NEVER = math.inf
"""For an algorithm that does not solve a problem."""

MEASURED = (  # direction, dtype, what follows, images, channels, rows and columns: microseconds of `ring`, `resident` and `parts`
    ("forward", "float16", "", (64, 64, 112), 101.6, 100.0, 102.3),
    ("forward", "float32", "", (64, 64, 112), 193.3, 165.6, 170.2),
    ("forward", "float16", "add-relu", (64, 64, 112), 135.5, 119.0, 127.8),
    ("forward", "float16", "", (128, 64, 112), 201.2, 186.2, 185.3),
    ("forward", "float16", "", (64, 64, 56), 23.3, 38.1, 39.4),
    ("forward", "float16", "", (128, 64, 56), 51.9, 58.7, 64.8),
    ("forward", "float16", "", (128, 256, 56), 155.3, 201.5, 194.0),
    ("forward", "float16", "", (32, 128, 28), 7.3, 8.3, 24.1),
    ("forward", "float32", "", (128, 128, 28), 34.3, 59.8, 60.4),
    ("forward", "float16", "", (128, 512, 28), 64.7, 210.8, NEVER),
    ("forward", "float32", "", (64, 256, 16), 13.1, 15.5, 25.8),
    ("forward", "float16", "", (64, 512, 16), 16.5, 24.0, NEVER),
    ("backward", "float16", "", (64, 64, 112), 165.3, 131.7, 178.8),
    ("backward", "float32", "", (64, 64, 112), 323.6, 248.9, 268.6),
    ("backward", "float16", "relu", (64, 64, 112), 229.0, 209.7, 254.2),
    ("backward", "float16", "add-relu", (64, 64, 112), 238.6, 180.6, 248.9),
    ("backward", "float32", "add-relu", (64, 64, 112), 472.3, 342.4, 379.1),
    ("backward", "float16", "relu", (64, 64, 56), 57.3, 67.7, 80.3),
    ("backward", "float16", "", (128, 64, 56), 87.8, 73.3, 101.3),
    ("backward", "float16", "relu", (128, 256, 56), 333.6, 385.6, 509.2),
    ("backward", "float16", "relu", (32, 128, 28), 12.3, 11.5, 35.1),
    ("backward", "float32", "relu", (128, 128, 28), 81.6, 124.0, 109.0),
    ("backward", "float16", "relu", (128, 512, 28), 141.9, 193.4, NEVER),
    ("backward", "float16", "", (64, 512, 16), 21.4, 24.3, NEVER),
)

Problem = BatchNormForwardProblem | BatchNormBackwardProblem


def problem_of(direction: str, dtype: str, what: str, shape: tuple[int, int, int]) -> Problem:
    """With running statistics, or gradients of the parameters."""
    images, channels, size = shape
    x = TensorDescriptor.packed((images, channels, size, size), dtype)
    p = TensorDescriptor.packed((1, channels, 1, 1))
    activation, z = ActivationDescriptor.make("relu") if what else None, x if what == "add-relu" else None
    if direction == "forward":
        return BatchNormForwardProblem(x, p, p, x, p, p, BatchNormMode.SPATIAL, 1e-5, 0.1, p, p, p, p, z, activation)
    plain = BatchNormBackwardProblem(x, x, p, p, p, x, p, p, BatchNormMode.SPATIAL)
    return replace(plain, y=x, dz=z, bias=None if z else p, activation=activation) if what else plain


def estimates(problem: Problem, figures: DeviceFigures = H200) -> dict[str, float]:
    """Microseconds of each algorithm that solves it."""
    offers = {one.name: one.offer(problem, figures) for one in ALGORITHMS[type(problem)]}
    return {name: offer.seconds * 1e6 for name, offer in offers.items() if isinstance(offer, Offer)}


@pytest.mark.parametrize(("direction", "dtype", "what", "shape", "ring", "resident", "parts"), MEASURED)
def test_what_is_chosen_was_the_fastest(
    direction: str, dtype: str, what: str, shape: tuple[int, int, int], ring: float, resident: float, parts: float
) -> None:
    measured = {"ring": ring, "resident": resident, "parts": parts}
    estimated = estimates(problem_of(direction, dtype, what, shape))
    chosen = min(estimated, key=lambda name: estimated[name])
    assert measured[chosen] <= 1.05 * min(measured.values())
    assert estimated["ring"] == pytest.approx(ring, rel=0.16)


def test_where_blocks_cannot_have_so_much_shared_memory_others_are_chosen() -> None:
    assert "ring" not in estimates(problem_of("forward", "float16", "", (128, 512, 28)), A100)
