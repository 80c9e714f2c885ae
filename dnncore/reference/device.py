"""The CPU as a device: memory is a NumPy byte array, a stream runs what it is given at once."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from dnncore.backend import Algorithm, DeviceInfo, Stream
from dnncore.errors import BadParamError, ClosedError, OutOfMemoryError
from dnncore.problems import (
    ActivationBackwardProblem,
    ActivationForwardProblem,
    AddProblem,
    ConvolutionProblem,
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    MatmulProblem,
    PoolingBackwardProblem,
    PoolingForwardProblem,
    Problem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
    SumProblem,
)
from dnncore.reference import activation, convolution, cross_entropy, pooling, softmax, tensor

__all__ = ["ReferenceDevice", "ReferenceMemory", "ReferenceStream", "info"]

_ALIGNMENT = 256

_ALGORITHMS: dict[type, tuple[Algorithm, ...]] = {
    PoolingForwardProblem: pooling.FORWARD,
    PoolingBackwardProblem: pooling.BACKWARD,
    ActivationForwardProblem: activation.FORWARD,
    ActivationBackwardProblem: activation.BACKWARD,
    SoftmaxForwardProblem: softmax.FORWARD,
    SoftmaxBackwardProblem: softmax.BACKWARD,
    AddProblem: tensor.ADD,
    SumProblem: tensor.SUM,
    MatmulProblem: tensor.MATMUL,
    CrossEntropyForwardProblem: cross_entropy.FORWARD,
    CrossEntropyBackwardProblem: cross_entropy.BACKWARD,
}


@cache
def info() -> DeviceInfo:
    """What the CPU is."""
    return DeviceInfo(
        name="cpu",
        model=platform.processor() or platform.machine(),
        total_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


@dataclass
class ReferenceMemory:
    """A byte array. Owned by one thread."""

    nbytes: int
    _bytes: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            raw = np.empty(self.nbytes + _ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"cpu has no room for {self.nbytes} B; use a smaller batch, or close what is not needed"
            ) from error
        start = -raw.ctypes.data % _ALIGNMENT
        self._bytes = raw[start : start + self.nbytes]

    def at(self, offset_bytes: int) -> np.ndarray:
        """The bytes from an offset on."""
        if self._bytes is None:
            raise ClosedError("the memory was closed")
        return self._bytes[offset_bytes:]

    def close(self) -> None:
        """Give the memory back."""
        self._bytes = None


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The array's own bytes, never those of a copy."""
    if not array.flags.c_contiguous:
        raise BadParamError(f"a host array of strides {array.strides} bytes is not contiguous; copy it first")
    return array.reshape(-1).view(np.uint8)


class ReferenceStream:
    """Work runs when it is enqueued, so there is nothing to wait for. Owned by one thread."""

    def synchronize(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Return at once."""


class ReferenceDevice:
    """The CPU as one thread sees it. Owned by one thread; its handle checks."""

    @property
    def info(self) -> DeviceInfo:
        """What it is."""
        return info()

    def algorithms(self, problem: Problem) -> tuple[Algorithm, ...]:
        """Algorithms for this kind of problem, most specialised first."""
        if isinstance(problem, ConvolutionProblem):
            return convolution.algorithms(problem.direction)
        return _ALGORITHMS[type(problem)]

    def allocate(self, nbytes: int) -> ReferenceMemory:
        """Uninitialised memory."""
        return ReferenceMemory(nbytes)

    def host_buffer(self, nbytes: int) -> np.ndarray:
        """Ordinary host memory, uint8 [nbytes]."""
        return np.empty(nbytes, np.uint8)

    def create_stream(self) -> ReferenceStream:
        """A stream that runs things at once."""
        return ReferenceStream()

    def copy_to_device(self, stream: Stream, destination: np.ndarray, source: np.ndarray) -> None:  # noqa: ARG002
        """Copy now."""
        data = _bytes_of(source)
        destination[: data.size] = data

    def copy_to_host(self, stream: Stream, destination: np.ndarray, source: np.ndarray) -> None:  # noqa: ARG002
        """Copy now."""
        data = _bytes_of(destination)
        data[...] = source[: data.size]

    def close(self) -> None:
        """Nothing is held."""
