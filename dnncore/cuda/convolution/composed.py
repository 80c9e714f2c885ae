"""Fused convolution in two steps: any algorithm's convolution into the workspace, then its epilogue as a kernel of its own.

For what has no tiled kernel, or a better one: depthwise convolutions, a residual that is laid out otherwise than y. The sums
are stored in x's dtype (of int8: float32), so with 16 bits they are rounded once more than by the other algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.convolution import ConvolutionAlgorithm, ranked, seconds
from dnncore.cuda.convolution.fused_product import epilogue_of
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.gemm import EPILOGUE, fill_epilogue, fill_inputs
from dnncore.cuda.launch import Unit, blocks_for
from dnncore.cuda.memory import aligned
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FLOATING,
    TENSOR_VIEW,
    c_type,
    collapse,
    divisor,
    generate,
    record,
    struct,
    view,
)
from dnncore.cuda.stream import CudaStream
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem

__all__ = ["ComposedConvolution"]

_THREADS = 128
_PACK_BYTES = 16

# Of `seconds`: what the epilogue's pass over the sums and y reaches on an H200, and its launch.
_BYTES_PER_SECOND = 2.8e12
_LAUNCH_SECONDS = 5e-6

_OPERANDS = 4
_PARAMS = struct(
    *BLEND,
    ("epilogue", EPILOGUE),
    ("sums", ADDRESS),
    ("y", ADDRESS),
    ("rows", "<i8"),
    ("row_packs", DIVISOR),
    ("views", TENSOR_VIEW, (_OPERANDS,)),
)


def _unit(sums: DType, y: DType) -> Unit:
    types = (c_type(sums),) if sums is y else (c_type(sums), c_type(y))
    return generate(
        header="dnncore/convolution/fused_epilogue.cuh",
        entry=f"convolution_fused_epilogue_{'_'.join(types)}",
        function=f"fused_epilogue::fused_epilogue<{c_type(sums)}, {c_type(y)}>",
        struct_name="fused_epilogue::Params",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def _sums(problem: FusedConvolutionProblem) -> TensorDescriptor:
    """The convolution's result in the workspace: without gaps, its dimensions in the order of y's."""
    dtype, shape = problem.x.dtype if problem.x.dtype.is_floating else DType.FLOAT32, problem.y.shape
    order = sorted(range(len(shape)), key=lambda axis: (problem.y.strides[axis], -axis))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step *= max(shape[axis], 1)
    return TensorDescriptor(dtype, shape, tuple(strides))


def _plain(problem: FusedConvolutionProblem) -> ConvolutionProblem:
    return replace(problem.plain, y=_sums(problem))


def _params(problem: FusedConvolutionProblem) -> np.ndarray:
    sums, y = _sums(problem), problem.y
    channel = (0, 1, *(0,) * problem.convolution.spatial_ndim)
    extents, *strides = collapse(y.shape, sums.strides, channel, (problem.z or y).strides, y.strides)
    params = record(
        _PARAMS,
        rows=math.prod(extents[:-1]),
        row_packs=divisor(-(-extents[-1] // (_PACK_BYTES // sums.dtype.itemsize))),
    )
    for i, step in enumerate(strides):
        params["views"][i] = view(extents, step)
    fill_epilogue(params["epilogue"], epilogue_of(problem))
    return params


@dataclass(frozen=True)
class ComposedConvolution:
    """A convolution by the fastest algorithm that supports it, then the epilogue. Immutable."""

    name: str = "composed"
    deterministic: bool = True
    math: str = "dtype"

    def _fastest(self, problem: FusedConvolutionProblem, device: Any) -> ConvolutionAlgorithm:
        plain = _plain(problem)
        return next(algorithm for algorithm in ranked(plain) if algorithm.supports(plain, device) is None)

    def supports(self, problem: FusedConvolutionProblem, device: Any) -> str | None:  # noqa: ARG002 (the Protocol's)
        """None: it supports everything that is legal."""
        return None

    def workspace_bytes(self, problem: FusedConvolutionProblem) -> int:
        """Bytes of the sums, and behind them what the convolution takes."""
        return aligned(_sums(problem).nbytes) + self._fastest(problem, None).workspace_bytes(_plain(problem))

    def seconds(self, problem: FusedConvolutionProblem) -> float:
        """Estimated time on an H200; infinite where there is no estimate for the convolution."""
        nbytes = sum(tensor.nbytes for tensor in (_sums(problem), problem.y, problem.z) if tensor is not None)
        convolution = seconds(self._fastest(problem, None), _plain(problem))
        return convolution + _LAUNCH_SECONDS + nbytes / _BYTES_PER_SECOND

    def units(self) -> tuple[Unit, ...]:
        """Those of the epilogue; the others are the convolution's own."""
        return (*(_unit(dtype, dtype) for dtype in FLOATING), _unit(DType.FLOAT32, DType.INT8))

    def prepare(self, problem: FusedConvolutionProblem, device: CudaDevice) -> Launch:
        """Prepare both steps."""
        plain = self._fastest(problem, device)
        takes_workspace = plain.workspace_bytes(_plain(problem)) > 0
        convolve = plain.prepare(_plain(problem), device)
        sums, params = _sums(problem), _params(problem)
        finish = device.kernel(_unit(sums.dtype, problem.y.dtype))
        grid = (blocks_for(int(params["rows"]) * int(params["row_packs"]["value"]), _THREADS), 1, 1)

        def launch(
            stream: Stream,
            alpha: float,
            inputs: Sequence[Address],
            beta: float,
            outputs: Sequence[Address],
            workspace: Address | None,
        ) -> None:
            assert isinstance(stream, CudaStream)
            if not problem.y.size:
                return
            assert workspace is not None
            rest = workspace + aligned(sums.nbytes) if takes_workspace else None
            convolve(stream, 1.0, inputs[:2], 0.0, (workspace,), rest)
            params["alpha"], params["beta"], params["sums"] = alpha, beta, workspace
            fill_inputs(params, problem.input_names[2:], inputs[2:])
            (params["y"],) = outputs
            finish.launch(stream, grid, (_THREADS, 1, 1), params)

        return launch
