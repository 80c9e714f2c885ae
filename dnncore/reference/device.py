"""The CPU as a device: memory is a NumPy byte array, a stream runs what it is given at once."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from dnncore import figures
from dnncore.backend import Address, Algorithm, Bound, DeviceInfo, Enqueue, Launch, Stream, Wired
from dnncore.dlpack import CPU, Borrowed
from dnncore.errors import BadParamError, NotSupportedError
from dnncore.figures import DeviceFigures
from dnncore.measured import MeasuredChoices
from dnncore.problems import (
    ActivationBackwardProblem,
    ActivationForwardProblem,
    AdamProblem,
    AddProblem,
    BinaryProblem,
    BottleneckProblem,
    Col2ImProblem,
    ConvolutionProblem,
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    Direction,
    DropoutProblem,
    FillProblem,
    FusedConvolutionProblem,
    Im2ColProblem,
    ImageConvolutionProblem,
    ImageNormalizationProblem,
    ImageResizeProblem,
    InvertedResidualProblem,
    MatmulProblem,
    MomentumProblem,
    PooledConvolutionProblem,
    PoolingBackwardIndicesProblem,
    PoolingBackwardProblem,
    PoolingForwardProblem,
    Problem,
    ReduceProblem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
    SumProblem,
    TopKProblem,
    UnaryProblem,
    WhereProblem,
)
from dnncore.reference import (
    activation,
    blocked_convolution,
    convolution,
    cross_entropy,
    depthwise_convolution,
    dropout,
    fused_convolution,
    im2col,
    image,
    layers,
    normalization,
    optimizer,
    pooled_convolution,
    pooling,
    softmax,
    tensor,
    top_k,
)
from dnncore.reference.graph import ReferenceGraph
from dnncore.reference.launch import ReferenceWork
from dnncore.reference.memory import ReferenceMemory
from dnncore.reference.stream import ReferenceStream

__all__ = ["ReferenceDevice", "info"]

_NO_CHOICES = MeasuredChoices()

_ALGORITHMS: dict[type, tuple[Algorithm, ...]] = {
    **normalization.ALGORITHMS,
    PooledConvolutionProblem: pooled_convolution.ALGORITHMS,
    PoolingForwardProblem: pooling.FORWARD,
    PoolingBackwardProblem: pooling.BACKWARD,
    PoolingBackwardIndicesProblem: pooling.BACKWARD_INDICES,
    ActivationForwardProblem: activation.FORWARD,
    ActivationBackwardProblem: activation.BACKWARD,
    SoftmaxForwardProblem: softmax.FORWARD,
    SoftmaxBackwardProblem: softmax.BACKWARD,
    AdamProblem: optimizer.ADAM,
    AddProblem: tensor.ADD,
    BinaryProblem: tensor.BINARY,
    BottleneckProblem: layers.ALGORITHMS,
    DropoutProblem: dropout.ALGORITHMS,
    FillProblem: tensor.FILL,
    FusedConvolutionProblem: fused_convolution.ALGORITHMS,
    ReduceProblem: tensor.REDUCE,
    SumProblem: tensor.SUM,
    TopKProblem: top_k.TOP_K,
    UnaryProblem: tensor.UNARY,
    WhereProblem: tensor.WHERE,
    Im2ColProblem: im2col.IM2COL,
    Col2ImProblem: im2col.COL2IM,
    ImageConvolutionProblem: image.CONVOLUTION,
    ImageNormalizationProblem: image.NORMALIZATION,
    ImageResizeProblem: image.RESIZE,
    InvertedResidualProblem: layers.ALGORITHMS,
    MatmulProblem: tensor.MATMUL,
    MomentumProblem: optimizer.MOMENTUM,
    CrossEntropyForwardProblem: cross_entropy.FORWARD,
    CrossEntropyBackwardProblem: cross_entropy.BACKWARD,
}


@cache
@cache
def _processor() -> str:
    """What the processor calls itself; where it does not say, its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def info() -> DeviceInfo:
    """What the CPU is."""
    return DeviceInfo(
        name="cpu",
        model=_processor(),
        total_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The array's own bytes, never those of a copy."""
    if not array.flags.c_contiguous:
        raise BadParamError(f"a host array of strides {array.strides} bytes is not contiguous; copy it first")
    return array.reshape(-1).view(np.uint8)


class ReferenceDevice:
    """The CPU as one thread sees it. Owned by one thread; its handle checks."""

    @property
    def info(self) -> DeviceInfo:
        """What it is."""
        return info()

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """What DLPack calls it."""
        return CPU

    @property
    def addresses_are_pointers(self) -> bool:
        """They are arrays."""
        return False

    @property
    def figures(self) -> DeviceFigures:
        """Those of one core, whichever CPU it is."""
        return figures.CPU

    @property
    def choices(self) -> MeasuredChoices:
        """None: each machine has another CPU."""
        return _NO_CHOICES

    def free_bytes(self) -> int:
        """What the kernel says processes could take without swapping."""
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        (line,) = (line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) << 10

    def adopt(self) -> None:
        """NumPy's arrays belong to no thread."""

    def algorithms(self, problem: Problem) -> tuple[Algorithm, ...]:
        """Algorithms for this kind of problem, most specialised first."""
        if isinstance(problem, ConvolutionProblem):
            blocked = blocked_convolution.ALGORITHMS[problem.direction]
            fast = (depthwise_convolution.FORWARD, blocked) if problem.direction is Direction.FORWARD else (blocked,)
            return (*fast, *convolution.EXACT[problem.direction])
        return _ALGORITHMS[type(problem)]

    def bind(self, work: ReferenceWork) -> Launch:
        """The launch of what an algorithm prepared."""
        return work.bind()

    def wire(
        self,
        parts: Sequence[Wired],
        stream: Stream,
        scratch_bytes: int = 0,  # noqa: ARG002 (the work itself takes no workspace)
        replayed_unless: Callable[[], bool] | None = None,  # noqa: ARG002 (nothing is launched)
    ) -> Enqueue:
        """One function that runs work in a row; the work itself takes no workspace."""
        launches = [(part.work.bind(), part) for part in parts]

        def enqueue(addresses: Sequence[Address]) -> None:
            for launch, part in launches:
                operands = [addresses[place][offset:] for place, offset in part.operands]
                launch(stream, part.alpha, part.beta, (*operands, None))

        return enqueue

    def capture(self, steps: Sequence[Bound]) -> ReferenceGraph:
        """Steps that run one after the other."""
        return ReferenceGraph(steps)

    def describe(self, work: ReferenceWork) -> list[str]:
        """One line: a launch is a function of NumPy's."""
        return [work.describe()]

    def allocate(self, nbytes: int) -> ReferenceMemory:
        """Uninitialised memory.

        Raises:
            OutOfMemoryError: there is no room.
        """
        return ReferenceMemory.allocated(nbytes)

    def allocate_ordered(self, nbytes: int, stream: Stream) -> ReferenceMemory:  # noqa: ARG002
        """As `allocate`: nothing is ever under way.

        Raises:
            OutOfMemoryError: there is no room.
        """
        return ReferenceMemory.allocated(nbytes)

    def wrap_memory(self, borrowed: Borrowed) -> ReferenceMemory:
        """See memory of another library as a block, which gives it back once nothing looks into it any more.

        Raises:
            BadParamError: its elements are not aligned.
        """
        return ReferenceMemory.wrapped(borrowed)

    def host_buffer(self, nbytes: int) -> np.ndarray:
        """Ordinary host memory, uint8 [nbytes]."""
        return np.empty(nbytes, np.uint8)

    def lock_pages(self, array: np.ndarray) -> Callable[[], None]:
        """Refuse.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(f"{array.nbytes} B cannot be page-locked for cpu, whose copies are the processor's own")

    def create_stream(self) -> ReferenceStream:
        """A stream that runs things at once."""
        return ReferenceStream()

    def wrap_stream(self, handle: int) -> ReferenceStream:
        """Refuse.

        Raises:
            BadParamError: always.
        """
        raise BadParamError(f"stream {handle:#x} is given for cpu, which has no streams; leave it out")

    def copy(self, stream: Stream, destination: np.ndarray, source: np.ndarray, nbytes: int) -> None:  # noqa: ARG002
        """Copy now."""
        destination[:nbytes] = source[:nbytes]

    def copy_to_device(self, stream: Stream, destination: np.ndarray, source: np.ndarray) -> None:  # noqa: ARG002
        """Copy now."""
        data = _bytes_of(source)
        destination[: data.size] = data

    def gather_to_device(self, stream: Stream, destination: np.ndarray, sources: Sequence[np.ndarray]) -> None:
        """Copy now."""
        for source in sources:
            self.copy_to_device(stream, destination, source)
            destination = destination[source.nbytes :]

    def copy_to_host(self, stream: Stream, destination: np.ndarray, source: np.ndarray) -> None:  # noqa: ARG002
        """Copy now."""
        data = _bytes_of(destination)
        data[...] = source[: data.size]

    def close(self) -> None:
        """Nothing is held."""

    def abandon(self) -> None:
        """Nothing is held."""
