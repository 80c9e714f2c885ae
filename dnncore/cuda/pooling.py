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
    FULL_PRECISION,
    TENSOR_VIEW,
    c_type,
    divisor,
    generate,
    record,
    struct,
    view,
)
from dnncore.cuda.pooling_planar import MODES, PlanarPooling
from dnncore.descriptors import MAX_NDIM, PoolingMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import PoolingBackwardProblem, PoolingForwardProblem

__all__ = ["BACKWARD", "FORWARD", "SpatialPooling"]

PoolingProblem = PoolingForwardProblem | PoolingBackwardProblem

_MAX_SPATIAL = MAX_NDIM - 2
_THREADS = 128
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("y", ADDRESS),
    ("dy", ADDRESS),
    ("output", ADDRESS),
    ("x_view", TENSOR_VIEW),
    ("y_view", TENSOR_VIEW),
    ("dy_view", TENSOR_VIEW),
    ("output_view", TENSOR_VIEW),
    ("window", "<i8", _MAX_SPATIAL),
    ("stride", DIVISOR, _MAX_SPATIAL),
    ("before", "<i8", _MAX_SPATIAL),
    ("after", "<i8", _MAX_SPATIAL),
    ("size", "<i8"),
    ("channels_last", "<i4"),
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
        """One for each mode and dtype."""
        return tuple(self._unit(mode, dtype) for mode in PoolingMode for dtype in FULL_PRECISION)

    def prepare(self, problem: PoolingProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        (output,) = problem.outputs
        pooling = problem.pooling
        params = record(
            _PARAMS,
            x_view=_view(problem.x),
            y_view=_view(problem.y),
            output_view=_view(output),
            window=_spatial(pooling.window, 1),
            stride=[divisor(stride) for stride in _spatial(pooling.stride, 1)],
            before=_spatial(tuple(before for before, _ in pooling.padding), 0),
            after=_spatial(tuple(after for _, after in pooling.padding), 0),
            size=output.size,
            channels_last=output.strides[1] < min(output.strides[2:]),
        )
        if isinstance(problem, PoolingBackwardProblem):
            params["dy_view"] = _view(problem.dy)
        kernel = device.kernel(self._unit(pooling.mode, output.dtype))
        grid = (blocks_for(output.size, _THREADS), 1, 1)
        inputs = ("x",) if isinstance(problem, PoolingForwardProblem) else ("y", "dy", "x")
        return single(kernel, grid, (_THREADS, 1, 1), params, inputs, ("output",))

    def _unit(self, mode: PoolingMode, dtype: DType) -> Unit:
        return generate(
            header="dnncore/pooling.cuh",
            entry=f"pooling_{self.direction}_{self.name}_{mode.value}_{c_type(dtype)}",
            function=f"pooling_{self.direction}<{c_type(dtype)}, dnncore::PoolingMode::{MODES[mode]}>",
            struct_name="PoolingParams",
            dtype=_PARAMS,
            threads=_THREADS,
        )


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
