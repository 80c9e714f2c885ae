"""Local response normalisation: squares are summed by shifting the tensor over itself, one dimension of the window at a time."""

from __future__ import annotations

import numpy as np

from dnncore.descriptors import LRNDescriptor, LRNMode
from dnncore.problems import LRNBackwardProblem, LRNForwardProblem
from dnncore.reference.launch import Array, exact_and_fast, in_parts

__all__ = ["BACKWARD", "FORWARD"]


def _sum(values: Array, lrn: LRNDescriptor, before: int, after: int) -> Array:
    """For each element the sum over those from `before` places before it to `after` behind, in each dimension of the window."""
    for axis in _axes(values.ndim, lrn):
        extent = values.shape[axis]
        total = np.zeros_like(values)
        places = np.moveaxis(values, axis, 0), np.moveaxis(total, axis, 0)
        for shift in range(max(-before, 1 - extent), min(after, extent - 1) + 1):
            here = slice(max(0, -shift), extent - max(0, shift))
            there = slice(max(0, shift), extent - max(0, -shift))
            places[1][here] += places[0][there]
        values = total
    return values


def _axes(ndim: int, lrn: LRNDescriptor) -> tuple[int, ...]:
    return (1,) if lrn.mode is LRNMode.ACROSS_CHANNELS else tuple(range(2, ndim))


def _share(ndim: int, lrn: LRNDescriptor) -> float:
    """alpha divided by the elements of an uncut window."""
    return float(lrn.alpha / lrn.n ** len(_axes(ndim, lrn)))


def _base(x: Array, lrn: LRNDescriptor) -> Array:
    return lrn.k + _share(x.ndim, lrn) * _sum(np.square(x), lrn, lrn.before, lrn.after)


def _forward(problem: LRNForwardProblem, x: Array) -> Array:
    return x * _base(x, problem.lrn) ** -problem.lrn.beta


def _backward(problem: LRNBackwardProblem, _y: Array, dy: Array, x: Array) -> Array:
    lrn = problem.lrn
    base = _base(x, lrn)
    # An element is in the windows of those from `after` places before it to `before` behind.
    around = _sum(dy * x * base ** (-lrn.beta - 1), lrn, lrn.after, lrn.before)
    return dy * base**-lrn.beta - 2 * lrn.beta * _share(x.ndim, lrn) * x * around


FORWARD = exact_and_fast("shifted_sums", _forward, in_parts(_forward, 0))
BACKWARD = exact_and_fast("shifted_sums", _backward, in_parts(_backward, 0))
