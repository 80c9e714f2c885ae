"""How large the values of a net become, on inputs of the kind that it will see: what int8 needs to know of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.executors import Executors
from dnncore.nn.graph import Graph
from dnncore.nn.model import Model
from dnncore.nn.operators import Convolution, InnerProduct
from dnncore.nn.parameters import Parameters

__all__ = ["LARGEST", "METHODS", "Calibration", "calibrate"]

LARGEST = 127
"""What the largest magnitude of a value becomes; -128 is left out, so that a number and its negative are both there."""

METHODS = ("mse", "max")
"""How a range is chosen: for the least mean squared error, or to hold the largest magnitude that was seen."""

_BINS = 2048
"""Of a histogram of magnitudes; between half of them and all are in use."""

_CANDIDATES = np.linspace(0.2, 1.0, 161)
"""Ranges that are tried, relative to the largest magnitude."""


@dataclass(frozen=True)
class Calibration:
    """The magnitudes that int8 holds of each value; what is larger saturates. Immutable.

    Args:
        ranges: By the value's name, in the graph that `dnncore.nn.passes.for_inference` makes in float32.
        method: One of `METHODS`.
        images: How many were looked at.

    Raises:
        BadParamError: a range is not finite or negative, or the method is unknown.
    """

    ranges: Mapping[str, float]
    method: str
    images: int

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise BadParamError(f"calibration method {self.method!r} is unknown; use one of {', '.join(METHODS)}")
        for name, range_ in self.ranges.items():
            if not (math.isfinite(range_) and range_ >= 0):
                raise BadParamError(f"calibration: the range {range_} of {name!r} is no number of 0 or more")

    def scale(self, names: Iterable[str]) -> float:
        """What 1 stands for in values that share a scale; those that were never more than 0 have any.

        Raises:
            BadParamError: it knows none of them.
        """
        names = sorted(names)
        known = [self.ranges[name] for name in names if name in self.ranges]
        if not known:
            raise BadParamError(f"the calibration does not know {', '.join(names)}: calibrate the net that is run")
        return (max(known) or 1.0) / LARGEST

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"method": self.method, "images": self.images, "ranges": dict(self.ranges)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` gave.

        Raises:
            BadParamError: see the class.
            KeyError, TypeError, ValueError: something is missing or of another kind.
        """
        ranges = {str(name): float(range_) for name, range_ in values["ranges"].items()}
        return cls(ranges, str(values["method"]), int(values["images"]))


def calibrate(
    model: Model, batches: Iterable[Mapping[str, np.ndarray]], handle: Handle, method: str = METHODS[0]
) -> Calibration:
    """Run a net in float32, and look at everything that convolutions and inner products read and write.

    Args:
        model: As `dnncore.nn.passes.for_inference` gives it in float32.
        batches: Its inputs, by name: a few hundred images of the kind that it will see.
        handle: Where it is run.
        method: One of `METHODS`.

    Raises:
        BadParamError: there are no batches, they do not fit, or a value is not finite.
    """
    watched = _watched(model.graph)
    histograms = {name: _Histogram() for name in watched}
    graph = replace(model.graph, outputs=tuple(dict.fromkeys((*model.graph.outputs, *watched))), layouts={})
    images = 0
    with (
        Parameters.upload(handle, graph, model.weights) as parameters,
        Executors(graph, handle, parameters) as executors,
    ):
        for feeds in batches:
            found = executors.run(feeds)
            images += executors.images(feeds)
            for name, histogram in histograms.items():
                histogram.add(name, feeds[name] if name in feeds else found[name])
    if not images:
        raise BadParamError("there is nothing to calibrate with: no inputs")
    ranges = {name: histogram.range(method) for name, histogram in histograms.items()}
    return Calibration(ranges, method, images)


def _watched(graph: Graph) -> tuple[str, ...]:
    """Real values that a layer with weights reads or writes."""
    layers = [node for node in graph.nodes if isinstance(node.operator, Convolution | InnerProduct)]
    names = dict.fromkeys(name for node in layers for name in (*node.reads, *node.outputs))
    return tuple(name for name in names if name not in graph.constant and graph.values[name].dtype.is_floating)


class _Histogram:
    """How often magnitudes were seen, zeros left out, which int8 holds exactly. Owned by one thread."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS)
        self._limit = 0.0  # a power of two
        self._largest = 0.0

    def add(self, name: str, values: np.ndarray) -> None:
        magnitudes = np.abs(values[values != 0]).astype(np.float64)
        largest = magnitudes.max(initial=0)
        if not math.isfinite(largest):
            raise BadParamError(f"value {name!r} has elements that are not finite: the net cannot be calibrated")
        self._largest = max(self._largest, largest)
        if largest > self._limit:
            self._widen(2.0 ** math.ceil(math.log2(largest)))
        if self._limit:
            self._counts += np.histogram(magnitudes, _BINS, (0, self._limit))[0]

    def range(self, method: str) -> float:
        """The largest magnitude that should be held."""
        if method == "max" or not self._largest:
            return self._largest
        middles = (np.arange(_BINS) + 0.5) * (self._limit / _BINS)
        seen = self._counts > 0
        ranges = self._largest * _CANDIDATES
        steps = ranges[:, None] / LARGEST
        held = np.minimum(np.rint(middles[seen] / steps), LARGEST) * steps
        errors = np.square(held - middles[seen]) @ self._counts[seen]
        return float(ranges[errors.argmin()])

    def _widen(self, limit: float) -> None:
        """Let it hold magnitudes up to another power of two."""
        if self._limit:
            together = min(int(limit / self._limit), _BINS)
            self._counts = np.concatenate(
                [self._counts.reshape(-1, together).sum(1), np.zeros(_BINS - _BINS // together)]
            )
        self._limit = limit
