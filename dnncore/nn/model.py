"""A net with what it has learnt: what importers give and packages carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dnncore.nn.graph import Graph
from dnncore.nn.parameters import check_weights

__all__ = ["Model"]


@dataclass(frozen=True)
class Model:
    """A graph and the elements of its constants. Immutable.

    Args:
        graph: The net.
        weights: Its constants by name.

    Raises:
        BadParamError: a tensor is missing, unknown, or of another shape or dtype; the message names it.
    """

    graph: Graph
    weights: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        check_weights(self.graph, self.weights)
