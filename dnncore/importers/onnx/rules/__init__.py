"""What becomes of each ONNX operator whose operands are not all known: a rule an operator, a module a family."""

from collections.abc import Mapping

from dnncore.importers.onnx.rules import (
    activation,
    binary,
    casting,
    convolution,
    einsum,
    normalization,
    parts,
    pooling,
    products,
    ranking,
    reduction,
    resizing,
    shape,
    softmax,
    unary,
)
from dnncore.importers.onnx.rules.rule import Rule

__all__ = ["RULES"]

RULES: Mapping[str, Rule] = {
    **activation.RULES,
    **binary.RULES,
    **casting.RULES,
    **convolution.RULES,
    **einsum.RULES,
    **normalization.RULES,
    **parts.RULES,
    **pooling.RULES,
    **products.RULES,
    **ranking.RULES,
    **reduction.RULES,
    **resizing.RULES,
    **shape.RULES,
    **softmax.RULES,
    **unary.RULES,
}
"""By operator. A new operator is one entry in its family's module and one in `NEWEST_VERSION`."""
