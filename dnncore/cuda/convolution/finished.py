"""Fused convolution by algorithms for plain ones, whose last kernel applies the epilogue to what it is about to write.

Their calls are those of the plain convolution. The parameters of each kernel that writes y begin with `BLEND_AND_EPILOGUE`; a plain
convolution leaves the epilogue out, here it is filled in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded, BoundedTwice, Selective
from dnncore.choice import least_seconds
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Call, Calls, KernelCall, Place, Slot, WhereAligned, rewired
from dnncore.cuda.convolution.depthwise import DEPTHWISE
from dnncore.cuda.convolution.depthwise_planes import DEPTHWISE_PLANES
from dnncore.cuda.convolution.fft import FFT_TILING, FFT_TILING_3XTF32
from dnncore.cuda.convolution.fused_product import epilogue_of, why_unlike
from dnncore.cuda.convolution.winograd import WINOGRAD, WINOGRAD_4X4
from dnncore.cuda.convolution.winograd_nonfused import WINOGRAD_NONFUSED, WINOGRAD_NONFUSED_2X2
from dnncore.cuda.gemm import BLEND_AND_EPILOGUE, EPILOGUE, fill_epilogue
from dnncore.cuda.params import offset_of, record, struct
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, FusedConvolutionProblem

__all__ = ["FINISHED", "FINISHED_ALONE", "FinishedConvolution"]

FINISHED: tuple[CudaAlgorithm, ...] = (
    *(DEPTHWISE, DEPTHWISE_PLANES),
    *(WINOGRAD_NONFUSED, WINOGRAD_NONFUSED_2X2, WINOGRAD, WINOGRAD_4X4),
)
"""Those whose last kernels read a residual."""

FINISHED_ALONE: tuple[CudaAlgorithm, ...] = (FFT_TILING, FFT_TILING_3XTF32)
"""Those whose last kernels do not."""

_BEGINS = offset_of(struct(*BLEND_AND_EPILOGUE), "epilogue")
_ENDS = _BEGINS + EPILOGUE.itemsize

_OF_MEMORY_RATE = 0.6573
"""At which residuals are read [assumed: as the epilogue of composed convolutions reads them]."""


@dataclass(frozen=True)
class FinishedConvolution(BoundedTwice, Selective):
    """An algorithm for plain convolutions, finished by the epilogue in its last kernel. Immutable.

    Args:
        algorithm: Whose kernels that write y take an epilogue.
        reads_residuals: Whether these kernels read z.
    """

    algorithm: CudaAlgorithm
    reads_residuals: bool = True

    @property
    def name(self) -> str:
        """That of the algorithm."""
        return self.algorithm.name

    def units(self) -> tuple[Unit, ...]:
        """The algorithm's."""
        return self.algorithm.units()

    def suits(self, kind: ConvolutionKind) -> bool:
        """Those of the algorithm."""
        return not isinstance(self.algorithm, Selective) or self.algorithm.suits(kind)

    def least_seconds(self, problem: FusedConvolutionProblem, figures: DeviceFigures) -> float:
        """What the algorithm takes at least."""
        if isinstance(self.algorithm, Bounded):
            return self.algorithm.least_seconds(problem.plain, figures)
        return least_seconds((self.algorithm,), problem.plain, figures)

    def closer_seconds(self, problem: FusedConvolutionProblem, figures: DeviceFigures) -> float:
        """Likewise, more closely where it knows better."""
        if isinstance(self.algorithm, BoundedTwice):
            return self.algorithm.closer_seconds(problem.plain, figures)
        return self.least_seconds(problem, figures)

    def offer(self, problem: FusedConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What the convolution takes alone, and reading a residual."""
        reads = problem.z is not None and problem.alpha2 != 0.0
        if reads and not self.reads_residuals:
            return "there is a residual, which its last kernel does not read"
        reason = why_unlike(problem)
        if reason is not None:
            return reason
        plain = self.algorithm.offer(problem.plain, figures)
        if isinstance(plain, str):
            return plain
        residual = problem.y.nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE) if reads else 0.0
        return replace(plain, seconds=plain.seconds + residual, prepare=partial(_calls, problem, plain))


def _calls(problem: FusedConvolutionProblem, plain: Offer) -> Calls:
    epilogue = record(EPILOGUE)
    fill_epilogue(epilogue, epilogue_of(problem))
    values = epilogue.tobytes()
    operands = {name: Place(i) for i, name in enumerate(problem.input_names) if name in ("scale", "bias", "z")}
    y = len(problem.inputs)

    def finished(call: Call) -> Call:
        if isinstance(call, WhereAligned):
            aligned = tuple(map(finished, call.aligned))
            return WhereAligned(call.alignments, aligned, lambda: tuple(map(finished, call.otherwise)))
        written = [slot.place for slot in call.slots if slot.place.operand == y] if isinstance(call, KernelCall) else []
        if not isinstance(call, KernelCall) or not written:
            return call
        # A residual lies as y does, so that of some images' y it is the same images' that are read.
        places = {**operands, "z": operands["z"].plus(written[0].offset_bytes)} if "z" in operands else operands
        slots = tuple(Slot(_BEGINS + offset_of(EPILOGUE, name), place) for name, place in places.items())
        return call._replace(params=call.params[:_BEGINS] + values + call.params[_ENDS:], slots=call.slots + slots)

    return tuple(map(finished, rewired(plain.prepare(), (Place(0), Place(1), Place(y)))))
