"""Dropout, which is its own adjoint."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    FLOATING,
    TENSOR_VIEW,
    c_type,
    generate_together,
    record,
    struct,
    view,
)
from dnncore.dtypes import DType
from dnncore.problems import DropoutProblem

__all__ = ["ALGORITHMS", "Dropout"]

_THREADS = 128
_PACK_BYTES = 16
_COUNTER = 4
"""Elements that draw from one counter."""

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("state", ADDRESS),
    ("y", ADDRESS),
    ("size", "<i8"),
    ("threshold", "<u8"),
    ("scale", "<f8"),
    ("x_view", TENSOR_VIEW),
    ("y_view", TENSOR_VIEW),
)
_KERNELS = ("contiguous", "strided")


@dataclass(frozen=True, slots=True)
class Dropout:
    """y = x / (1 - probability) or 0. Immutable.

    Args:
        name: "contiguous", 16 bytes at a time; or "strided", which takes anything.
    """

    name: str
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: DropoutProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        if self.name == "strided" or (problem.x.is_row_major and problem.y.is_row_major):
            return None
        return "x and y are not both row-major"

    def workspace_bytes(self, problem: DropoutProblem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self._unit(dtype) for dtype in FLOATING)

    def prepare(self, problem: DropoutProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        x, y = problem.x, problem.y
        each = max(_PACK_BYTES // x.dtype.itemsize, _COUNTER) if self.name == "contiguous" else 1
        params = record(
            _PARAMS,
            size=x.size,
            threshold=problem.threshold,
            scale=problem.scale,
            x_view=view(x.shape, x.strides),
            y_view=view(y.shape, y.strides),
        )
        grid = (blocks_for(x.size, _THREADS * each), 1, 1)
        return single(device.kernel(self._unit(x.dtype)), grid, (_THREADS, 1, 1), params, ("x", "state"), ("y",))

    def _unit(self, dtype: DType) -> Unit:
        entries = {name: f"dropout_{name}_{c_type(dtype)}" for name in _KERNELS}
        functions = {entry: f"dropout_{name}<{c_type(dtype)}>" for name, entry in entries.items()}
        units = generate_together("dnncore/dropout.cuh", functions, "DropoutParams", _PARAMS, _THREADS)
        return units[entries[self.name]]


ALGORITHMS = tuple(Dropout(name) for name in _KERNELS)
