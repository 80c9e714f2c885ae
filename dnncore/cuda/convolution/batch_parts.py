"""A batch computed some images at a time, so that what lies between two steps stays in the second-level cache.

x           [ 0 | 1 | 2 | 3 ]
workspace   [ 0 ]  [ 1 ]  [ 2 ]  [ 3 ]     one after the other, in the same place
y           [ 0 |   1 |   2 |   3 ]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from dnncore.cuda.calls import Calls, Place, rewired
from dnncore.descriptors import TensorDescriptor
from dnncore.problems import Problem

__all__ = ["LITTLE_OF_L2", "Cuts", "calls_of_parts", "cut", "images"]

LITTLE_OF_L2 = 1 / 30
"""Share of the second-level cache that a part fills where hardly anybody comes by: the workspace is there for everybody."""

Cuts = Sequence[tuple[int, int]]
"""The first image of each part, and the one behind its last; two numbers of images at most."""


def cut(batch: int, nbytes: int, most_bytes: float) -> Cuts:
    """Parts of a batch.

    Args:
        batch: Number of images.
        nbytes: Of what lies between the steps, of all images.
        most_bytes: What it may take in a part; one image may take more.
    """
    num_parts = max(min(math.ceil(nbytes / most_bytes), batch), 1)
    return list(itertools.pairwise(batch * i // num_parts for i in range(num_parts + 1)))


def images(tensor: TensorDescriptor, size: int) -> TensorDescriptor:
    """So many images of a tensor."""
    return tensor.with_shape((size, *tensor.shape[1:]))


def calls_of_parts(problem: Problem, cuts: Cuts, first: Mapping[int, Calls], batched: Collection[int] = (0,)) -> Calls:
    """Those of every part.

    Args:
        problem: The whole; its one output has images.
        cuts: Its parts.
        first: Calls that compute the first images, by how many.
        batched: Which of its inputs have images, too.
    """
    operands = (*problem.inputs, problem.outputs[0])
    of_images = {*batched, len(problem.inputs)}
    steps = [one.strides[0] * one.dtype.itemsize if i in of_images else 0 for i, one in enumerate(operands)]
    found: list[Calls] = []
    for begin, end in cuts:
        places = [Place(i, begin * step) for i, step in enumerate(steps)]
        found.append(rewired(first[end - begin], places))
    return tuple(itertools.chain.from_iterable(found))
