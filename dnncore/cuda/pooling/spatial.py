"""Maximum and average pooling, forward and backward; here over any number of dimensions, a thread an element of the output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    TENSOR_VIEW,
    c_type,
    divisor,
    generate,
    record,
    struct,
    view,
)
from dnncore.cuda.pooling_planar import PlanarPooling
from dnncore.cuda.pooling_problem import DTYPES, MODES, Geometry, PoolingProblem, mode_of, operands_of
from dnncore.descriptors import MAX_NDIM, TensorDescriptor
from dnncore.dtypes import DType

__all__ = ["BACKWARD", "FORWARD", "SpatialPooling"]

_MAX_SPATIAL = MAX_NDIM - 2
_THREADS = 128
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("y", ADDRESS),
    ("dy", ADDRESS),
    ("output", ADDRESS),
    ("indices", ADDRESS),
    ("x_view", TENSOR_VIEW),
    ("dy_view", TENSOR_VIEW),
    ("output_view", TENSOR_VIEW),
    ("indices_view", TENSOR_VIEW),
    ("x_extent", "<i8", _MAX_SPATIAL),
    ("y_extent", "<i8", _MAX_SPATIAL),
    ("window", "<i8", _MAX_SPATIAL),
    ("stride", DIVISOR, _MAX_SPATIAL),
    ("before", "<i8", _MAX_SPATIAL),
    ("counted_low", "<i8", _MAX_SPATIAL),
    ("counted_high", "<i8", _MAX_SPATIAL),
    ("size", "<i8"),
    ("mode", "<i4"),
    ("channels_last", "<i4"),
    ("propagates_nan", "<i4"),
)


@dataclass(frozen=True, slots=True)
class SpatialPooling:
    """One direction of pooling over up to six spatial dimensions. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "spatial"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: PoolingProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """It supports everything."""
        return None

    def workspace_bytes(self, problem: PoolingProblem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self._unit(dtype) for dtype in DTYPES[self.direction])

    def prepare(self, problem: PoolingProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        output = problem.outputs[0]
        pooling, geometry = problem.pooling, Geometry.of(problem)
        params = record(
            _PARAMS,
            output_view=_view(output),
            x_extent=_spatial(geometry.x, 1),
            y_extent=_spatial(geometry.y, 1),
            window=_spatial(pooling.window, 1),
            stride=[divisor(stride) for stride in _spatial(pooling.stride, 1)],
            before=_spatial(tuple(before for before, _ in pooling.padding), 0),
            counted_low=_spatial(geometry.counted_low, 0),
            counted_high=_spatial(geometry.counted_high, 1),
            size=output.size,
            mode=tuple(MODES).index(mode_of(problem)),
            channels_last=output.strides[1] < min(output.strides[2:]),
            propagates_nan=pooling.propagate_nan,
        )
        operands = operands_of(problem)
        for name, tensor in operands.views.items():
            params[f"{name}_view"] = _view(tensor)
        kernel = device.kernel(self._unit(output.dtype))
        grid = (blocks_for(output.size, _THREADS), 1, 1)
        return single(kernel, grid, (_THREADS, 1, 1), params, operands.inputs, operands.outputs)

    def _unit(self, dtype: DType) -> Unit:
        entry = f"pooling_{self.direction}_{self.name}_{c_type(dtype)}"
        function = f"pooling_spatial_{self.direction}<{c_type(dtype)}>"
        return generate("dnncore/pooling.cuh", entry, function, "PoolingParams", _PARAMS, _THREADS)


def _view(tensor: TensorDescriptor) -> np.ndarray:
    missing = _MAX_SPATIAL + 2 - tensor.ndim
    return view(
        (*tensor.shape[:2], *(1,) * missing, *tensor.shape[2:]),
        (*tensor.strides[:2], *(0,) * missing, *tensor.strides[2:]),
    )


def _spatial(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Values a spatial dimension, filled up in front like the views."""
    return (*(fill,) * (_MAX_SPATIAL - len(values)), *values)


FORWARD = (PlanarPooling("forward"), SpatialPooling("forward"))
BACKWARD = (PlanarPooling("backward"), SpatialPooling("backward"))
