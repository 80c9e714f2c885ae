"""How much larger a Winograd convolution's rounding errors are than the direct method's: `error_factor` of the algorithms.

One axis computes y = A^T [(G g) . (B^T d)] with a term for every interpolation point. Take filter and inputs as independent
numbers of variance 1: point j's product has variance |G_j|^2 |B_j|^2 (squared norms of the rows), its roundings reach output i
multiplied with A_ij, and an exact sum of r products has variance r. So relative to the direct method's, the error of output i grows
in 2-D by

    sum over j  A_ij^2 |G_j|^2 |B_j|^2 / r

(its root per axis, two axes). The factor is that of the worst output. It is no bound on single elements: a tile's roundings are
relative to all its inputs, also to those outside an output's receptive field, so errors must be measured against the largest
magnitude of the plane. An a-priori bound has the same form with absolute values in place of squares, the product of the three
matrices' norms (B. Barabasz et al., "Error analysis and improving the accuracy of Winograd convolution for deep neural networks",
arXiv 1803.10986): 7.1 times that of the direct method for F(2x2) and 63 for F(4x4), far above what is seen. That paper also shows
that other interpolation points are better than 0, +-1, +-2.

Exact: rational arithmetic, from the points alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dnncore.descriptors.settings import HashedOnce

__all__ = ["F2", "F4", "Filtering"]

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Filtering(HashedOnce):
    """F(outputs, taps) along one axis, interpolating at `points` and at infinity. Immutable.

    Args:
        outputs: Outputs of a tile.
        taps: Of the filter.
        points: outputs + taps - 2 different numbers.
    """

    outputs: int
    taps: int
    points: tuple[Fraction, ...]

    __hash__ = HashedOnce.__hash__  # of fractions, for every look-up of kernels

    @property
    def tile_points(self) -> int:
        """Of a tile of outputs x outputs."""
        return (self.outputs + self.taps - 1) ** 2

    def _others(self, point: Fraction) -> list[Fraction]:
        return [other for other in self.points if other != point]

    def output_matrix(self) -> Matrix:
        """A^T, outputs x points: the powers of each point; of infinity, only the highest is not 0."""
        last = self.outputs - 1
        return tuple((*(p**i for p in self.points), Fraction(i == last)) for i in range(self.outputs))

    def filter_matrix(self) -> Matrix:
        """G, points x taps: the powers of each point over the Lagrange polynomial's denominator."""
        scales = [1 / math.prod((p - other for other in self._others(p)), start=Fraction(1)) for p in self.points]
        finite = (tuple(scale * p**i for i in range(self.taps)) for p, scale in zip(self.points, scales, strict=True))
        return (*finite, tuple(Fraction(i == self.taps - 1) for i in range(self.taps)))

    def input_matrix(self) -> Matrix:
        """B^T, points x inputs: coefficients, lowest first, of the polynomial whose zeros are all other points."""
        size = len(self.points) + 1
        return (*(_polynomial(self._others(p), size) for p in self.points), _polynomial(self.points, size))

    def forward_factor(self) -> float:
        """Growth of the error of outputs, in 2-D."""
        weights = _products(_squared_norms(self.filter_matrix()), _squared_norms(self.input_matrix()))
        return float(max(sum(_products(_squares(row), weights)) for row in self.output_matrix()) / self.taps)

    def filter_gradient_factor(self) -> float:
        """Growth of the error of the filter's gradient G^T [(A e) . (B^T d)], in 2-D."""
        columns = tuple(zip(*self.output_matrix(), strict=True))
        weights = _products(_squared_norms(columns), _squared_norms(self.input_matrix()))
        rows = zip(*self.filter_matrix(), strict=True)
        return float(max(sum(_products(_squares(row), weights)) for row in rows) / self.outputs)


def _polynomial(zeros: Sequence[Fraction], size: int) -> tuple[Fraction, ...]:
    """Coefficients of the monic polynomial, filled up with zeros."""
    result = [Fraction(1)]
    for zero in zeros:
        result = [below - zero * this for below, this in itertools.pairwise((Fraction(0), *result, Fraction(0)))]
    return (*result, *(Fraction(0),) * (size - len(result)))


def _squares(row: Sequence[Fraction]) -> list[Fraction]:
    return [entry * entry for entry in row]


def _squared_norms(matrix: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    return [sum(_squares(row), start=Fraction(0)) for row in matrix]


def _products(a: Sequence[Fraction], b: Sequence[Fraction]) -> list[Fraction]:
    return [x * y for x, y in zip(a, b, strict=True)]


def _symmetric(*points: Fraction) -> tuple[Fraction, ...]:
    return (Fraction(0), *(sign * point for point in points for sign in (1, -1)))


F2 = Filtering(2, 3, _symmetric(Fraction(1)))
"""dnncore::winograd::F2."""

F4 = Filtering(4, 3, _symmetric(Fraction(5, 8), Fraction(3, 2)))
"""dnncore::winograd::F4."""
