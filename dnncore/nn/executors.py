"""A net bound to a handle for whatever numbers of images come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from dnncore.handle import Handle
from dnncore.nn.executor import Executor
from dnncore.nn.graph import BATCH, Graph
from dnncore.nn.parameters import Parameters

__all__ = ["Executors"]


class Executors:
    """One for each number of images that comes. Owned by one thread; checked by the handle.

    Args:
        graph: What to run; its inputs count images.
        handle: Where.
        parameters: Its constants there.
    """

    def __init__(self, graph: Graph, handle: Handle, parameters: Parameters) -> None:
        self._graph, self._handle, self._parameters = graph, handle, parameters
        self._of_size: dict[int, Executor] = {}
        self._counted = next((value for value in graph.inputs if BATCH in value.shape), None)

    def images(self, feeds: Mapping[str, np.ndarray]) -> int:
        """How many there are."""
        value = self._counted
        return 1 if value is None else int(feeds[value.name].shape[value.shape.index(BATCH)])

    def run(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """See `Executor.run`; results are overwritten by the next run of as many images."""
        size = self.images(feeds)
        if size not in self._of_size:
            self._of_size[size] = Executor(self._graph, self._handle, self._parameters, size)
        return self._of_size[size].run(feeds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for executor in self._of_size.values():
            executor.close()
