"""The ATen operators that are known, each with a function that adds its nodes: one module a family.

A rule is called with a `Call` and all of the operator's arguments by their names in PyTorch's declaration, the first as x: tensors
are values of the net, tensors of one known element numbers, extents that count images "N" or "4N". It gives the names of the
results, None for those that it does not compute, or raises NotSupportedError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnncore.torch.export.rules import (
    activation,
    arithmetic,
    convolution,
    normalization,
    pointwise,
    pooling,
    products,
    softmax,
    structure,
)

__all__ = ["RULES", "Rule"]

Rule = Callable[..., str | tuple[str | None, ...]]

RULES: dict[Any, Rule] = {
    operator: rule
    for family in (activation, arithmetic, convolution, normalization, pointwise, pooling, products, softmax, structure)
    for operator, rule in family.RULES.items()
}
"""By operator, an `OpOverload`. A new one is a function and a line in its family's table."""
