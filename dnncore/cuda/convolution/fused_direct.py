"""Fused convolution from its definition, in double precision: whatever is legal, without a workspace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.convolution.fused_product import epilogue_of
from dnncore.cuda.gemm import EPILOGUE, fields_of, fill_epilogue
from dnncore.cuda.geometry import GEOMETRY, MAX_SPATIAL, geometry, spatial, taps
from dnncore.cuda.params import ADDRESS, BLEND, ELEMENT_TYPES, generate, record, struct
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import FusedConvolutionProblem, ImageConvolutionProblem

__all__ = ["FUSED_DIRECT", "FusedDirect"]

_THREADS = 128

# Of the estimate [not measured, and cautious: it comes behind any plain convolution and its epilogue]: the shares of the
# multiply-adds in double precision and of the memory's rate that are left beside 64-bit addresses in six dimensions and reads of
# single elements whose type is looked up; the cycles that a thread waits for each tap's place and for each product's operands; and
# what a launch takes beside all that.
_OF_PRODUCTS = 0.003
_OF_MEMORY_RATE = 0.1
_TAP_CYCLES, _PRODUCT_CYCLES = 1500, 600
_LAUNCHES = 20

_STRIDES = struct(("outer", "<i8"), ("inner", "<i8"), ("spatial", "<i8", MAX_SPATIAL))
_PARAMS = struct(
    *BLEND,
    ("epilogue", EPILOGUE),
    ("x", ADDRESS),
    ("w", ADDRESS),
    ("y", ADDRESS),
    ("table", ADDRESS),
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
    ("x_type", "<i4"),
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


def _params(problem: FusedConvolutionProblem, x: TensorDescriptor) -> np.ndarray:
    """All but addresses; x is what is read, which may be images that become what is convolved."""
    w, y, conv = problem.w, problem.y, problem.convolution
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
        type=ELEMENT_TYPES.index(problem.x.dtype),
        x_type=ELEMENT_TYPES.index(x.dtype),
        output_type=ELEMENT_TYPES.index(y.dtype),
        parameter_type=ELEMENT_TYPES.index(problem.parameter_dtype),
    )
    fill_epilogue(params["epilogue"], epilogue_of(problem))
    return params


@dataclass(frozen=True)
class FusedDirect:
    """One thread per element of y, also of images that become what is convolved; no workspace. Immutable."""

    name: str = "direct"

    def units(self) -> tuple[Unit, ...]:
        """The one unit, which is for all types."""
        return (_UNIT,)

    def offer(self, problem: FusedConvolutionProblem | ImageConvolutionProblem, figures: DeviceFigures) -> Offer:
        """What it takes; it computes everything that is legal."""
        return Offer(_seconds(problem, figures), partial(_calls, problem, figures), math="fp64")


def _seconds(problem: FusedConvolutionProblem | ImageConvolutionProblem, figures: DeviceFigures) -> float:
    """Time of all products, or of the tensors, on a busy device; or of what one thread adds up where threads are few."""
    num_taps, channels = math.prod(problem.w.shape[2:]), problem.w.shape[1]
    busy = problem.y.size * num_taps * channels / (figures.products_per_second(Maths.FP64) * _OF_PRODUCTS)
    nbytes = sum(tensor.nbytes for tensor in (*problem.inputs, *problem.outputs))
    memory = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE)
    cycles = num_taps * (_TAP_CYCLES + channels * _PRODUCT_CYCLES)
    return _LAUNCHES * figures.launch_seconds + max(busy, memory, cycles / figures.clock_hz)


def _calls(problem: FusedConvolutionProblem | ImageConvolutionProblem, figures: DeviceFigures) -> Calls:
    fused = problem.fused if isinstance(problem, ImageConvolutionProblem) else problem
    further = problem.input_names[len(fused.input_names) :]  # the table of pixels
    fields = in_order("x", "w", *fields_of(fused.input_names[2:]), *further, "y")
    params = _params(fused, problem.x)
    return kernel_call(_UNIT, blocks_for(figures, problem.y.size, _THREADS), _THREADS, params, fields)


FUSED_DIRECT = FusedDirect()
