"""A graph's constants on one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.graph import Graph
from dnncore.tensor import Tensor

__all__ = ["Parameters"]


class Parameters:
    """Constants by name, which all executors of a handle share. Owned by one thread; checked by the tensors' handle.

    Args:
        values: The tensors.
    """

    def __init__(self, values: dict[str, Tensor]) -> None:
        self.values = values

    @classmethod
    def upload(cls, handle: Handle, graph: Graph, weights: Mapping[str, np.ndarray]) -> Parameters:
        """Check weights against a graph's constants and copy them.

        Raises:
            BadParamError: a tensor is missing, unknown, or of another shape or dtype; the message names it.
        """
        check_weights(graph, weights)
        return cls({name: _uploaded(handle, graph, name, weights[name]) for name in graph.constant})

    def download(self) -> dict[str, np.ndarray]:
        """Copy the values to the host."""
        return {name: tensor.numpy() for name, tensor in self.values.items()}

    def close(self) -> None:
        """Give the memory back."""
        for tensor in self.values.values():
            tensor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def check_weights(graph: Graph, weights: Mapping[str, np.ndarray]) -> None:
    """Refuse weights that are not those of a graph's constants.

    Raises:
        BadParamError: a tensor is missing, unknown, or of another shape or dtype; the message names it.
    """
    constants = graph.constant
    if constants.keys() != weights.keys():
        missing, unknown = constants.keys() - weights.keys(), weights.keys() - constants.keys()
        raise BadParamError(f"weights lack {sorted(missing)} and have unknown {sorted(unknown)}")
    for name, constant in constants.items():
        array = weights[name]
        if array.shape != constant.shape or array.dtype != constant.dtype.numpy:
            raise BadParamError(f"weight {name!r} is {array.dtype}{list(array.shape)}, the net needs {constant.spec}")


def _uploaded(handle: Handle, graph: Graph, name: str, array: np.ndarray) -> Tensor:
    tensor = handle.tensor(graph.descriptor(name, graph.constant[name].spec))
    tensor.assign(array.reshape(tensor.shape))
    return tensor
