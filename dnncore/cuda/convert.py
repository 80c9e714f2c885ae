"""Transforms from one element type to another."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    ELEMENT_TYPES,
    TENSOR_VIEW,
    collapse,
    generate,
    record,
    struct,
    view,
)
from dnncore.problems import AddProblem

__all__ = ["Convert"]

_THREADS = 128

_PARAMS = struct(
    *BLEND,
    ("a", ADDRESS),
    ("c", ADDRESS),
    ("size", "<i8"),
    ("a_view", TENSOR_VIEW),
    ("c_view", TENSOR_VIEW),
    ("a_type", "<i4"),
    ("c_type", "<i4"),
)

_UNIT = generate("dnncore/convert.cuh", "convert", "dnncore::convert", "ConvertParams", _PARAMS, _THREADS)


@dataclass(frozen=True, slots=True)
class Convert:
    """c = alpha * a + beta * c, from any element type to any. Immutable."""

    name: str = "convert"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: AddProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None: it supports everything that is legal."""
        return None

    def workspace_bytes(self, problem: AddProblem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for all types."""
        return (_UNIT,)

    def prepare(self, problem: AddProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        a, c = problem.a, problem.c
        steps = tuple(stride if extent != 1 else 0 for extent, stride in zip(a.shape, a.strides, strict=True))
        extents, a_strides, c_strides = collapse(c.shape, steps, c.strides)
        params = record(
            _PARAMS,
            size=c.size,
            a_view=view(extents, a_strides),
            c_view=view(extents, c_strides),
            a_type=ELEMENT_TYPES.index(a.dtype),
            c_type=ELEMENT_TYPES.index(c.dtype),
        )
        grid = (blocks_for(c.size, _THREADS), 1, 1)
        return single(device.kernel(_UNIT), grid, (_THREADS, 1, 1), params, ("a",), ("c",))
