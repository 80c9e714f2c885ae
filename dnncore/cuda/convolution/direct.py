"""Convolution from its definition, in double precision: whatever is legal, and the reference on the device for large shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.geometry import GEOMETRY, MAX_SPATIAL, geometry, spatial, taps
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import ADDRESS, BLEND, ELEMENT_TYPES, FLOATING, c_type, generate, record, struct
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["DIRECT", "DirectConvolution"]


_FEW_SPATIAL = 2
_THREADS = 128

_STRIDES = struct(("outer", "<i8"), ("inner", "<i8"), ("spatial", "<i8", MAX_SPATIAL))
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("w", ADDRESS),
    ("y", ADDRESS),
    ("x_strides", _STRIDES),
    ("w_strides", _STRIDES),
    ("y_strides", _STRIDES),
    ("geometry", GEOMETRY),
    ("batch", "<i8"),
    ("channels", "<i8"),
    ("filters", "<i8"),
    ("groups", "<i8"),
    ("w_offset", "<i8"),
    ("count", "<i8"),
    ("type", "<i4"),
    ("output_type", "<i4"),
)

_INPUTS = {
    Direction.FORWARD: ("x", "w"),
    Direction.BACKWARD_DATA: ("w", "y"),
    Direction.BACKWARD_FILTER: ("x", "y"),
}
_OUTPUT = {Direction.FORWARD: "y", Direction.BACKWARD_DATA: "x", Direction.BACKWARD_FILTER: "w"}


def _unit(direction: Direction, dtype: DType | None) -> Unit:
    """The kernel for up to two spatial dimensions of a dtype; None: for any number and any dtype."""
    elements, few = ("Untyped", MAX_SPATIAL) if dtype is None else (f"Typed<{c_type(dtype)}>", _FEW_SPATIAL)
    return generate(
        header="dnncore/convolution/direct.cuh",
        entry=f"convolution_direct_{direction.value}_{'any' if dtype is None else c_type(dtype)}",
        function=f"direct::{direction.value}<direct::{elements}, {few}>",
        struct_name="direct::Params",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def _strides(strides: Sequence[int]) -> np.ndarray:
    outer, inner, *places = strides
    return record(_STRIDES, outer=outer, inner=inner, spatial=spatial(places, 0))


def _params(problem: ConvolutionProblem) -> np.ndarray:
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    (output,) = problem.outputs
    w_offset, w_spatial = taps(w.shape[2:], w.strides[2:], conv)
    return record(
        _PARAMS,
        x_strides=_strides(x.strides),
        w_strides=_strides((*w.strides[:2], *w_spatial)),
        y_strides=_strides(y.strides),
        geometry=geometry(x.shape[2:], w.shape[2:], y.shape[2:], conv),
        batch=x.shape[0],
        channels=w.shape[1],
        filters=w.shape[0] // conv.groups,
        groups=conv.groups,
        w_offset=w_offset,
        count=output.size,
        type=ELEMENT_TYPES.index(x.dtype),
        output_type=ELEMENT_TYPES.index(output.dtype),
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
        by_dtype = [_unit(direction, dtype) for direction in Direction for dtype in FLOATING]
        return (*by_dtype, _unit(Direction.FORWARD, DType.INT8), *(_unit(direction, None) for direction in Direction))

    def prepare(self, problem: ConvolutionProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters."""
        params = _params(problem)
        dtype = problem.x.dtype if problem.convolution.spatial_ndim <= _FEW_SPATIAL else None
        # An element of dw is a long sum, which a whole block adds up.
        per_block = 1 if problem.direction is Direction.BACKWARD_FILTER else _THREADS
        return single(
            device.kernel(_unit(problem.direction, dtype)),
            (blocks_for(int(params["count"]), per_block), 1, 1),
            (_THREADS, 1, 1),
            params,
            _INPUTS[problem.direction],
            (_OUTPUT[problem.direction],),
        )


DIRECT = DirectConvolution()
