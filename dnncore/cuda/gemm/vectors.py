"""Which products the pipelines of the tensor cores compute: those that read 16 bytes of each operand at a time. Pure.

An operand allows that along its reduction, or along its rows or columns, where every aligned run of 16 bytes along that index is
contiguous, begins at a multiple of 16 bytes if the operand does, and lies wholly inside the bounds or wholly outside.
"""

from __future__ import annotations

from functools import lru_cache

from dnncore.cuda.gemm.index_space import Phase, Product
from dnncore.cuda.gemm.tiling import Walk
from dnncore.cuda.params import FULL_PRECISION
from dnncore.dtypes import DType

__all__ = ["vector_walks"]


def vector_walks(product: Product) -> tuple[Walk, Walk] | None:
    """Along which index A and B can be read 16 bytes at a time; None where one of them cannot.

    Along the reduction where both indices allow it. Bytes are read along the reduction only: there is no transposition of them.
    """
    return None if product.dtype in FULL_PRECISION else _vector_walks(product)


@lru_cache(maxsize=8)
def _vector_walks(product: Product) -> tuple[Walk, Walk] | None:
    walks = (Walk.REDUCTION,) if product.dtype is DType.INT8 else (Walk.REDUCTION, Walk.OUTER)
    walk_a = next((walk for walk in walks if _reads_vectors_of_a(product, walk)), None)
    walk_b = next((walk for walk in walks if _reads_vectors_of_b(product, walk)), None)
    return None if walk_a is None or walk_b is None else (walk_a, walk_b)


def _added(product: Product) -> list[Phase]:
    """The phases that read their operands."""
    return [phase for phase in product.phases if phase.reduction_length]


def _reads_vectors_of_a(product: Product, walk: Walk) -> bool:
    others = [product.a_group_stride] if product.groups > 1 else []
    along_rows = walk is Walk.OUTER
    if along_rows:
        if product.a_row_stride != 1:
            return False
        others.append(product.rows)
    elif product.rows > 1:
        others.append(product.a_row_stride)
    for phase in _added(product):
        others.append(phase.a_offset)
        strides = [digit.other_stride for digit in phase.reduction]
        if not along_rows:
            if not phase.reduction or any(phase.reduction[0].steps) or strides.pop(0) != 1:
                return False
            others.append(phase.reduction[0].extent)
        others += strides
    return _are_aligned(product, others)


def _reads_vectors_of_b(product: Product, walk: Walk) -> bool:
    others = [product.b_group_stride] if product.groups > 1 else []
    for phase in _added(product):
        along, across = phase.reduction, phase.column
        if walk is Walk.OUTER:
            along, across = across, along
        if not along or along[0].b_stride != 1 or any(along[0].steps):
            return False
        others += [phase.b_offset, along[0].extent, *(digit.b_stride for digit in (*along[1:], *across))]
    return _are_aligned(product, others)


def _are_aligned(product: Product, strides: list[int]) -> bool:
    return all(stride % (16 // product.dtype.itemsize) == 0 for stride in strides)
