"""What a device can do, in numbers, as a frozen value: what algorithms are ranked by. The only place with a device's numbers.

No GPU is needed to know them, so the ranking for an H200 is computed, and tested, on any machine. Rates are what the hardware's
units could do; how much of that an algorithm reaches is its own business, and stands beside it as a fraction.

Sources: NVIDIA H100 Tensor Core GPU Architecture (white paper, 2022), A100 likewise (2020); the CUDA C++ Programming Guide's table
of compute capabilities; memory rates of copies as measured on an H200, elsewhere the same share of the datasheet's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dnncore.descriptors.settings import HashedOnce
from dnncore.dtypes import DType

__all__ = ["A100", "CPU", "GPUS", "H100", "H200", "DeviceFigures", "Maths"]


class Maths(Enum):
    """Units that multiply and add: what they take, and so how fast they are."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    INT8 = "int8"

    __hash__ = object.__hash__  # as of `DType`

    @classmethod
    def of(cls, dtype: DType) -> Maths:
        """The units for products of a dtype in full precision: tensor cores for 16 bits and int8, bfloat16 counted as fp16."""
        return _MATHS[dtype]


_MATHS = {
    DType.FLOAT64: Maths.FP64,
    DType.FLOAT32: Maths.FP32,
    DType.FLOAT16: Maths.FP16,
    DType.BFLOAT16: Maths.FP16,
    DType.INT8: Maths.INT8,
    DType.UINT8: Maths.INT8,
    DType.INT32: Maths.FP32,
    DType.BOOL: Maths.FP32,
}


@dataclass(frozen=True, slots=True)
class DeviceFigures(HashedOnce):
    """One model of device. Immutable.

    Args:
        architecture: What its kernels are compiled for, as nvcc names it: "sm_90a", or "compute_80" where its driver compiles PTX;
            "cpu".
        multiprocessors: How many there are.
        threads_per_multiprocessor: Most that one has at a time.
        registers_per_multiprocessor: Of 32 bits, which these share.
        clock_hz: At which they run under load.
        products_per_clock: Multiply-adds of a multiprocessor per clock, by the units that do them; dense, without sparsity.
        shared_bytes: Most shared memory that a block can have.
        l2_bytes: Level-2 cache.
        bytes_per_second: Memory rate of a large copy, reads and writes together.
        launch_seconds: From one kernel of a stream to the next.
    """

    architecture: str
    multiprocessors: int
    threads_per_multiprocessor: int
    registers_per_multiprocessor: int
    clock_hz: float
    products_per_clock: tuple[tuple[Maths, int], ...]
    shared_bytes: int
    l2_bytes: int
    bytes_per_second: float
    launch_seconds: float

    __hash__ = HashedOnce.__hash__

    def products_per_second(self, maths: Maths) -> float:
        """Multiply-adds per second of the whole device; 0 where it has no such units."""
        for kind, per_clock in self.products_per_clock:
            if kind is maths:
                return per_clock * self.multiprocessors * self.clock_hz
        return 0

    def resident_blocks(self, threads: int, registers: int) -> int:
        """Blocks that a multiprocessor has at a time, as far as threads and registers go; shared memory may let it have fewer.

        Args:
            threads: Of a block.
            registers: Of a thread, as the compiler says.
        """
        whole_warps = -(-threads // _WARP) * _WARP
        of_thread = -(-registers // _REGISTERS_TOGETHER) * _REGISTERS_TOGETHER
        of_threads = self.threads_per_multiprocessor // whole_warps
        return min(of_threads, self.registers_per_multiprocessor // (of_thread * whole_warps))

    @property
    def starts_early(self) -> bool:
        """Whether a kernel may begin while the one before it still runs (programmatic dependent launch): from sm_90 on.

        Not where PTX for compute_80 runs, whatever the device: nothing in it waits for the kernel before (ptx/early_launch.cuh).
        """
        return self.architecture.startswith("sm_") and int(self.architecture[3:].rstrip("af")) >= _FIRST_TO_START_EARLY


_FIRST_TO_START_EARLY = 90

_WARP, _REGISTERS_TOGETHER = 32, 8
"""Threads that a multiprocessor makes room for at a time, and registers of each, on every GPU that kernels are made for."""

_HOPPER = ((Maths.FP64, 64), (Maths.FP32, 128), (Maths.TF32, 1024), (Maths.FP16, 2048), (Maths.INT8, 4096))
_AMPERE = ((Maths.FP64, 32), (Maths.FP32, 64), (Maths.TF32, 512), (Maths.FP16, 1024), (Maths.INT8, 2048))


H200 = DeviceFigures("sm_90a", 132, 2048, 65536, 1.98e9, _HOPPER, 227 << 10, 60 << 20, 4.26e12, 4e-6)
"""NVIDIA H200; the device that fractions are fitted on."""

H100 = DeviceFigures("sm_90a", 132, 2048, 65536, 1.98e9, _HOPPER, 227 << 10, 50 << 20, 2.97e12, 4e-6)
"""NVIDIA H100 with HBM3 (SXM): an H200 with slower memory."""

A100 = DeviceFigures("sm_80", 108, 2048, 65536, 1.41e9, _AMPERE, 163 << 10, 40 << 20, 1.81e12, 4e-6)
"""NVIDIA A100, 80 GB."""

GPUS = {"h200": H200, "h100": H100, "a100": A100}
"""Those known, by the names that commands take."""

CPU = DeviceFigures("cpu", 1, 1, 0, 3e9, ((Maths.FP64, 8), (Maths.FP32, 16)), 32 << 10, 1 << 20, 1e10, 1e-6)
"""One core: NumPy's loops; what the reference backend's algorithms are ranked by."""
