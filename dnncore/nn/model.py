"""A graph with the elements of its constants: what importers make, passes rewrite and packages hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dnncore.nn.graph import Graph
from dnncore.nn.parameters import check_weights

__all__ = ["Model"]


@dataclass(frozen=True, eq=False)
class Model:
    """A net and its weights. Immutable, and so are the arrays for those who hold one.

    Args:
        graph: Its structure.
        weights: The elements of its constants, by name.

    Raises:
        BadParamError: a tensor is missing, unknown, or of another shape or dtype; the message names it.
    """

    graph: Graph
    weights: Mapping[str, np.ndarray] = field(repr=False)

    def __post_init__(self) -> None:
        check_weights(self.graph, self.weights)
