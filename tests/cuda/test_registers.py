"""Algorithms count on as many resident blocks as there are by the registers of the gates' baseline."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from dnncore.cuda import inverted_residual
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convolution import depthwise_filter_columns, depthwise_filter_planes, depthwise_segments
from dnncore.cuda.normalization import row_gradients
from dnncore.cuda.pooling import rolling, rolling_gradients, rolling_planes
from dnncore.dtypes import DType
from dnncore.figures import H200
from tests.cuda.gates.baseline import Baseline

_Counted = tuple[CudaAlgorithm, str, int, int]
"""An algorithm, a pattern of names of kernels of its own, their threads, and the registers of each that it counts on."""


def _of_pooling() -> Iterator[_Counted]:
    for (mode, stride), registers in rolling._REGISTERS.items():
        yield rolling.RollingPooling(), f"_rolling_{mode}_.*_stride_{stride}$", rolling._THREADS, registers
    gradients, threads = rolling_gradients.RollingGradients(), rolling_gradients._THREADS
    for walked, registers in rolling_gradients._REGISTERS.items():
        yield gradients, f"_(indices|average)_[a-z0-9]*_{walked}_", threads, registers
    for (walked, extent, stride), registers in rolling_gradients._REGISTERS_OF_MAXIMA.items():
        yield gradients, f"_max_.*_{walked}_{extent}x{extent}_stride_{stride}$", threads, registers
    planes, threads = rolling_planes.RollingPlanes(), rolling_planes._THREADS
    yield planes, "_rolling_planes_", threads, rolling_planes._REGISTERS
    yield planes, "_vector_planes_", threads, rolling_planes._REGISTERS_BY_VECTORS


def _of_others() -> Iterator[_Counted]:
    for outputs, registers in inverted_residual._REGISTERS.items():
        yield inverted_residual.OneKernel(), f"x{outputs}_", inverted_residual._THREADS, registers
    yield row_gradients.RowGradients(), "_row_gradients_", row_gradients._THREADS, row_gradients._REGISTERS
    columns, threads = depthwise_filter_columns.DEPTHWISE_COLUMNS_BACKWARD_FILTER, depthwise_filter_columns._THREADS
    yield columns, "_filter_columns_", threads, depthwise_filter_columns._REGISTERS
    planes = depthwise_filter_planes.DEPTHWISE_PLANES_BACKWARD_FILTER
    for size in (5, 7):
        for dtype, name in ((DType.FLOAT16, "b?float16"), (DType.FLOAT32, "float")):
            registers = depthwise_filter_planes._registers(dtype, size)
            yield planes, f"_filter_planes_{size}x{size}_{name}$", depthwise_segments.MAX_THREADS, registers


@pytest.mark.parametrize(
    ("algorithm", "named", "threads", "counted_on"), [*_of_pooling(), *_of_others()], ids=lambda value: str(value)
)
def test_as_many_blocks_of_each_kernel_are_resident_as_are_counted_on(
    algorithm: CudaAlgorithm, named: str, threads: int, counted_on: int
) -> None:
    kernels = Baseline.read("sm_90a").kernels
    entries = [unit.entry for unit in algorithm.units() if re.search(named, unit.entry)]
    registers = max(kernels[entry]["registers"] for entry in entries)
    assert H200.resident_blocks(threads, counted_on) == H200.resident_blocks(threads, registers)
