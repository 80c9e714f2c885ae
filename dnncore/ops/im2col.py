"""Gathering patches into columns (cudnnIm2Col), and its adjoint (PyTorch's fold)."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.descriptors import ConvolutionDescriptor
from dnncore.descriptors.settings import wholes
from dnncore.handle import Handle
from dnncore.problems import Col2ImProblem, Im2ColProblem
from dnncore.tensor import Tensor

__all__ = ["col2im", "im2col"]


def im2col(
    handle: Handle,
    alpha: float,
    x: Tensor,
    conv: ConvolutionDescriptor,
    filter_shape: Sequence[int],
    beta: float,
    columns: Tensor,
) -> None:
    """columns [N, C * taps, places] = what each tap of a filter meets in x [N, C, *input] at each place, 0 in the padding.

    Args:
        filter_shape: The filter's spatial extents.

    w [K, C, *filter], seen as [K, C * taps], times columns is the convolution of x with w, seen as [N, K, places].
    """
    arguments = (x.descriptor, columns.descriptor, conv, wholes(filter_shape, "filter_shape"))
    handle.execute(Im2ColProblem, arguments, alpha, (x,), beta, (columns,))


def col2im(
    handle: Handle,
    alpha: float,
    columns: Tensor,
    conv: ConvolutionDescriptor,
    filter_shape: Sequence[int],
    beta: float,
    x: Tensor,
) -> None:
    """x [N, C, *input] = the sums of columns [N, C * taps, places] over all places that im2col copies an element to.

    Args:
        filter_shape: The filter's spatial extents.
    """
    arguments = (columns.descriptor, x.descriptor, conv, wholes(filter_shape, "filter_shape"))
    handle.execute(Col2ImProblem, arguments, alpha, (columns,), beta, (x,))
