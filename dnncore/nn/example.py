"""Inputs with the outputs that belong to them: by which a net is known to compute what it should, wherever it is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.executor import Executor
from dnncore.nn.graph import BATCH, Graph, Value
from dnncore.nn.model import Model
from dnncore.nn.parameters import Parameters

__all__ = ["TOLERANCES", "Difference", "Example"]

TOLERANCES = {DType.FLOAT32: 1e-4, DType.FLOAT16: 2e-2, DType.BFLOAT16: 1e-1, DType.INT8: 2e-1}
"""What outputs may differ by, relative to the largest element, by the precision that a net is run in."""

_SMALL = 1e-6
"""Outputs that are smaller than this are taken as if they were as large."""


class Difference(NamedTuple):
    """How far an output is from what it should be. Immutable.

    Args:
        name: The output's.
        largest: The largest absolute difference; infinite where one of the two elements is not finite and the other differs.
        place: Where that is.
        scale: The largest absolute value that the output should have.
        tolerance: What `largest` may be, relative to `scale`.
    """

    name: str
    largest: float
    place: tuple[int, ...]
    scale: float
    tolerance: float

    @classmethod
    def between(cls, name: str, found: np.ndarray, expected: np.ndarray, tolerance: float) -> Self:
        """Of two arrays of one shape."""
        wide, right = found.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinity less infinity
            error = np.abs(wide - right)
        same = (wide == right) | (np.isnan(wide) & np.isnan(right))
        error = np.where(same, 0, np.where(np.isfinite(error), error, np.inf))
        place = np.unravel_index(int(error.argmax()), error.shape)
        scale = np.abs(right[np.isfinite(right)]).max(initial=0)
        return cls(name, float(error[place]), tuple(map(int, place)), float(scale), tolerance)

    @property
    def is_allowed(self) -> bool:
        """Whether it is small enough."""
        return self.largest <= self.tolerance * max(self.scale, _SMALL)

    def __str__(self) -> str:
        verdict = "right" if self.is_allowed else "wrong"
        return (
            f"{self.name}: {verdict}; largest difference {self.largest:.3g} at {list(self.place)}, "
            f"allowed {self.tolerance:g} of {self.scale:.3g}"
        )


@dataclass(frozen=True, eq=False)
class Example:
    """Inputs of a net, and what it gives for them. Immutable, and so are the arrays for those who hold one.

    Args:
        inputs: All inputs of the net, by name, for some number of images.
        outputs: Some or all outputs, by name.
        tolerance: What they may differ by in float32, relative to the largest element.
    """

    inputs: Mapping[str, np.ndarray] = field(repr=False)
    outputs: Mapping[str, np.ndarray] = field(repr=False)
    tolerance: float = TOLERANCES[DType.FLOAT32]

    @classmethod
    def random(cls, model: Model, batch: int = 1, seed: int = 0) -> Self:
        """Normally distributed inputs, and what the CPU gives for them in float32 with the graph as it is; integers are 0."""
        rng = np.random.default_rng(seed)
        inputs = {}
        for value in model.graph.inputs:
            spec = value.spec(batch)
            deviates = rng.standard_normal(spec.shape) if spec.dtype.is_floating else np.zeros(spec.shape)
            inputs[value.name] = deviates.astype(spec.dtype.numpy)
        with Handle("cpu") as handle:
            return cls(inputs, _run(model, handle, inputs, batch))

    def tolerance_in(self, precision: DType) -> float:
        """What outputs may differ by when the net is run in a precision: that of the precision, or the example's own."""
        return max(self.tolerance, TOLERANCES[precision])

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for arrays in (self.inputs, self.outputs) for array in arrays.values())

    def batch(self, graph: Graph) -> int:
        """The number of images, once names, dtypes and shapes are those of a graph.

        Raises:
            BadParamError: they are not; the message names the array.
        """
        inputs = {value.name: value for value in graph.inputs}
        if self.inputs.keys() != inputs.keys():
            raise BadParamError(f"inputs {', '.join(self.inputs)} are given, the net reads {', '.join(inputs)}")
        if not self.outputs:
            raise BadParamError("no outputs are given")
        if unknown := self.outputs.keys() - set(graph.outputs):
            raise BadParamError(
                f"outputs {', '.join(sorted(unknown))} are unknown, the net gives {', '.join(graph.outputs)}"
            )
        batch = next(filter(None, (_images(inputs[name], array) for name, array in self.inputs.items())), 1)
        for name, array in (*self.inputs.items(), *self.outputs.items()):
            spec = graph.values[name].spec(batch)
            if array.shape != spec.shape or array.dtype != spec.dtype.numpy:
                raise BadParamError(
                    f"{name} is {array.dtype}{list(array.shape)}, for {batch} images the net has {spec}"
                )
        return batch

    def differences(self, model: Model, handle: Handle, tolerance: float) -> tuple[Difference, ...]:
        """What a net gives for the inputs, on a device, beside the outputs.

        Raises:
            BadParamError: this is no example of the net.
        """
        found = _run(model, handle, self.inputs, self.batch(model.graph), self.outputs)
        return tuple(
            Difference.between(name, found[name], expected, tolerance) for name, expected in self.outputs.items()
        )


def _images(value: Value, array: np.ndarray) -> int:
    """How many images an array has as an input; 0 where it does not say."""
    if BATCH not in value.shape or array.ndim != len(value.shape):
        return 0
    return int(array.shape[value.shape.index(BATCH)])


def _run(
    model: Model, handle: Handle, inputs: Mapping[str, np.ndarray], batch: int, wanted: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, batch) as executor,
    ):
        results = executor.run(inputs, None if wanted is None else tuple(wanted))
        return {name: array.copy() for name, array in results.items()}
