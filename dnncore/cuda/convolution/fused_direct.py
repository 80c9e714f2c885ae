"""Fused convolution from its definition, in double precision: whatever is legal, without a workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.convolution.fused_product import epilogue_of
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.gemm import EPILOGUE, fill_epilogue, fill_inputs
from dnncore.cuda.geometry import GEOMETRY, MAX_SPATIAL, geometry, spatial, taps
from dnncore.cuda.launch import Unit, blocks_for
from dnncore.cuda.params import ADDRESS, BLEND, ELEMENT_TYPES, generate, record, struct
from dnncore.cuda.stream import CudaStream
from dnncore.descriptors import TensorDescriptor
from dnncore.problems import FusedConvolutionProblem

__all__ = ["FUSED_DIRECT", "FusedDirect"]

_THREADS = 128

_STRIDES = struct(("outer", "<i8"), ("inner", "<i8"), ("spatial", "<i8", MAX_SPATIAL))
_PARAMS = struct(
    *BLEND,
    ("epilogue", EPILOGUE),
    ("x", ADDRESS),
    ("w", ADDRESS),
    ("y", ADDRESS),
    ("x_strides", _STRIDES),
    ("w_strides", _STRIDES),
    ("y_strides", _STRIDES),
    ("z_strides", _STRIDES),
    ("geometry", GEOMETRY),
    ("channels", "<i8"),
    ("filters", "<i8"),
    ("num_filters", "<i8"),
    ("w_offset", "<i8"),
    ("count", "<i8"),
    ("type", "<i4"),
    ("output_type", "<i4"),
    ("parameter_type", "<i4"),
)
_UNIT = generate(
    header="dnncore/convolution/fused_direct.cuh",
    entry="convolution_fused_direct",
    function="fused_direct::fused_direct",
    struct_name="fused_direct::Params",
    dtype=_PARAMS,
    threads=_THREADS,
)


def _strides(tensor: TensorDescriptor, places: Sequence[int] | None = None) -> np.ndarray:
    return record(
        _STRIDES,
        outer=tensor.strides[0],
        inner=tensor.strides[1],
        spatial=spatial(tensor.strides[2:] if places is None else places, 0),
    )


def _params(problem: FusedConvolutionProblem) -> np.ndarray:
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    w_offset, w_places = taps(w.shape[2:], w.strides[2:], conv)
    params = record(
        _PARAMS,
        x_strides=_strides(x),
        w_strides=_strides(w, w_places),
        y_strides=_strides(y),
        z_strides=_strides(problem.z or y),
        geometry=geometry(x.shape[2:], w.shape[2:], y.shape[2:], conv),
        channels=w.shape[1],
        filters=w.shape[0] // conv.groups,
        num_filters=w.shape[0],
        w_offset=w_offset,
        count=y.size,
        type=ELEMENT_TYPES.index(x.dtype),
        output_type=ELEMENT_TYPES.index(y.dtype),
        parameter_type=ELEMENT_TYPES.index(problem.parameter_dtype),
    )
    fill_epilogue(params["epilogue"], epilogue_of(problem))
    return params


@dataclass(frozen=True)
class FusedDirect:
    """One thread an element of y; no workspace. Immutable."""

    name: str = "direct"
    deterministic: bool = True
    math: str = "fp64"

    def supports(self, problem: FusedConvolutionProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 (the Protocol's)
        """None: it supports everything that is legal."""
        return None

    def workspace_bytes(self, problem: FusedConvolutionProblem) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """The one unit, which is for all types."""
        return (_UNIT,)

    def prepare(self, problem: FusedConvolutionProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters."""
        params, kernel = _params(problem), device.kernel(_UNIT)
        grid = (blocks_for(problem.y.size, _THREADS), 1, 1)

        def launch(
            stream: Stream,
            alpha: float,
            inputs: Sequence[Address],
            beta: float,
            outputs: Sequence[Address],
            workspace: Address | None,  # noqa: ARG001 (none was asked for)
        ) -> None:
            assert isinstance(stream, CudaStream)
            params["alpha"], params["beta"] = alpha, beta
            params["x"], params["w"], *_ = inputs
            fill_inputs(params, problem.input_names[2:], inputs[2:])
            (params["y"],) = outputs
            if problem.y.size:
                kernel.launch(stream, grid, (_THREADS, 1, 1), params)

        return launch


FUSED_DIRECT = FusedDirect()
