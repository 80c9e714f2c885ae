"""What the stores of forward kernels of wgmma do to sums (`convolution/wgmma_output.cuh`): which epilogues, which fields. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dnncore.cuda.calls import FieldPath, Place, in_order
from dnncore.cuda.convolution.fused_product import epilogue_of
from dnncore.cuda.gemm import Epilogue, fields_of, fill_epilogue
from dnncore.cuda.tensor_map import TensorMap
from dnncore.descriptors import ActivationMode, TensorDescriptor
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem

__all__ = ["finish", "residual_map", "why_not_finished"]

_ACTIVATIONS = (ActivationMode.RELU, ActivationMode.CLIPPED_RELU, ActivationMode.LEAKY_RELU)


def why_not_finished(
    problem: ConvolutionProblem | FusedConvolutionProblem, why_not_read: Callable[[str, TensorDescriptor], str | None]
) -> str | None:
    """None where the stores know what follows the convolution, else the reason.

    Args:
        problem: The convolution, with what follows it or without.
        why_not_read: Of a residual's name and descriptor, None where the kernel can read it, else the reason.
    """
    if isinstance(problem, ConvolutionProblem):
        return None
    activation = problem.activation
    if activation is not None and activation.mode not in _ACTIVATIONS:
        return f"its stores know {', '.join(mode.value for mode in _ACTIVATIONS)}, not {activation.mode.value}"
    return None if problem.z is None else why_not_read("z", problem.z)


def finish(params: np.ndarray, problem: ConvolutionProblem | FusedConvolutionProblem) -> dict[FieldPath, Place]:
    """Fill in what follows the convolution, all but addresses: the fields that take these.

    The residual's field takes its address too, which says that it is there.
    """
    if isinstance(problem, ConvolutionProblem):
        fill_epilogue(params["epilogue"], Epilogue(alpha1=1.0, alpha2=0.0, activation=None))
        return {}
    fill_epilogue(params["epilogue"], epilogue_of(problem))
    return in_order(None, None, *fields_of(problem.input_names[2:]))


def residual_map(
    problem: ConvolutionProblem | FusedConvolutionProblem, map_of: Callable[[TensorDescriptor], TensorMap]
) -> dict[FieldPath, tuple[Place, TensorMap]]:
    """The field that takes the map of a residual, where there is one."""
    if isinstance(problem, ConvolutionProblem) or problem.z is None:
        return {}
    return {"z": (Place(problem.input_names.index("z")), map_of(problem.z))}
