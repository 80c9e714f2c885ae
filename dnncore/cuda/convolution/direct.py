"""Convolution from its definition, in double precision: whatever is legal, and the reference on the device for large shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import ADDRESS, BLEND, c_type, generate, record, struct
from dnncore.descriptors import MAX_NDIM, ConvolutionMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["DIRECT", "DirectConvolution"]

_MAX_SPATIAL = MAX_NDIM - 2
_FEW_SPATIAL = 2
_THREADS = 128

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("w", ADDRESS),
    ("y", ADDRESS),
    ("x_strides", "<i8", MAX_NDIM),
    ("w_strides", "<i8", MAX_NDIM),
    ("y_strides", "<i8", MAX_NDIM),
    ("input", "<i8", _MAX_SPATIAL),
    ("filter", "<i8", _MAX_SPATIAL),
    ("output", "<i8", _MAX_SPATIAL),
    ("padding", "<i8", _MAX_SPATIAL),
    ("stride", "<i8", _MAX_SPATIAL),
    ("dilation", "<i8", _MAX_SPATIAL),
    ("batch", "<i8"),
    ("channels", "<i8"),
    ("filters", "<i8"),
    ("groups", "<i8"),
    ("w_offset", "<i8"),
    ("count", "<i8"),
)

_INPUTS = {
    Direction.FORWARD: ("x", "w"),
    Direction.BACKWARD_DATA: ("w", "y"),
    Direction.BACKWARD_FILTER: ("x", "y"),
}
_OUTPUT = {Direction.FORWARD: "y", Direction.BACKWARD_DATA: "x", Direction.BACKWARD_FILTER: "w"}


def _unit(direction: Direction, dtype: DType, spatial: int) -> Unit:
    return generate(
        header="dnncore/convolution/direct.cuh",
        entry=f"convolution_direct_{direction.value}_{c_type(dtype)}_{spatial}",
        function=f"direct::{direction.value}<{c_type(dtype)}, {spatial}>",
        struct_name="direct::Params",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def _leading(values: tuple[int, ...], missing: int, size: int) -> tuple[int, ...]:
    """Fill up with what a dimension that is not there has."""
    return (*values, *(missing,) * (size - len(values)))


def _params(problem: ConvolutionProblem) -> np.ndarray:
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    w_spatial, w_offset = w.strides[2:], 0
    if conv.mode is ConvolutionMode.CONVOLUTION:
        w_spatial = tuple(-stride for stride in w_spatial)
        w_offset = sum((extent - 1) * stride for extent, stride in zip(w.shape[2:], w.strides[2:], strict=True))

    def extents(tensor: TensorDescriptor) -> tuple[int, ...]:
        return _leading(tensor.shape[2:], 1, _MAX_SPATIAL)

    (output,) = problem.outputs
    return record(
        _PARAMS,
        x_strides=_leading(x.strides, 0, MAX_NDIM),
        w_strides=_leading((*w.strides[:2], *w_spatial), 0, MAX_NDIM),
        y_strides=_leading(y.strides, 0, MAX_NDIM),
        input=extents(x),
        filter=extents(w),
        output=extents(y),
        padding=_leading(tuple(before for before, _ in conv.padding), 0, _MAX_SPATIAL),
        stride=_leading(conv.stride, 1, _MAX_SPATIAL),
        dilation=_leading(conv.dilation, 1, _MAX_SPATIAL),
        batch=x.shape[0],
        channels=w.shape[1],
        filters=w.shape[0] // conv.groups,
        groups=conv.groups,
        w_offset=w_offset,
        count=math.prod(output.shape),
    )


@dataclass(frozen=True)
class DirectConvolution:
    """One thread an element of y or dx, one block an element of dw; no workspace. Immutable."""

    name: str = "direct"
    deterministic: bool = True
    math: str = "fp64"

    def supports(self, problem: ConvolutionProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 (the Protocol's)
        """None: it supports everything that is legal."""
        return None

    def workspace_bytes(self, problem: ConvolutionProblem) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """Every unit that `prepare` can ask for."""
        return tuple(
            _unit(direction, dtype, spatial)
            for direction in Direction
            for dtype in (DType.FLOAT32, DType.FLOAT64)
            for spatial in (_FEW_SPATIAL, _MAX_SPATIAL)
        )

    def prepare(self, problem: ConvolutionProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters."""
        params = _params(problem)
        spatial = _FEW_SPATIAL if problem.convolution.spatial_ndim <= _FEW_SPATIAL else _MAX_SPATIAL
        # An element of dw is a long sum, which a whole block adds up.
        per_block = 1 if problem.direction is Direction.BACKWARD_FILTER else _THREADS
        return single(
            device.kernel(_unit(problem.direction, problem.x.dtype, spatial)),
            (blocks_for(int(params["count"]), per_block), 1, 1),
            (_THREADS, 1, 1),
            params,
            _INPUTS[problem.direction],
            (_OUTPUT[problem.direction],),
        )


DIRECT = DirectConvolution()
