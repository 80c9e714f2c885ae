"""A net's learnable tensors on one device, with their gradients once somebody trains."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.layer import ParameterSpec
from dnncore.tensor import Tensor

__all__ = ["Parameters"]


class Parameters:
    """Values, and gradients made on first use, by full name. Owned by one thread; checked by the tensors' handle.

    Args:
        values: The tensors.
    """

    def __init__(self, values: dict[str, Tensor]) -> None:
        self.values = values
        self._gradients: dict[str, Tensor] | None = None

    @classmethod
    def upload(
        cls, handle: Handle, specs: Mapping[str, ParameterSpec], weights: Mapping[str, np.ndarray]
    ) -> Parameters:
        """Check weights against specs and copy them.

        Raises:
            BadParamError: a tensor is missing, unknown, not float32 or of another shape.
        """
        if set(specs) != set(weights):
            raise BadParamError(
                f"weights lack {sorted(set(specs) - set(weights))} and have unknown {sorted(set(weights) - set(specs))}"
            )
        for name, spec in specs.items():
            array = weights[name]
            if array.shape != spec.shape or array.dtype != np.float32:
                raise BadParamError(
                    f"weight {name!r} is {array.dtype}{list(array.shape)}, the net needs float32{list(spec.shape)}"
                )
        return cls({name: handle.upload(weights[name]) for name in specs})

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Where the backward pass writes; uninitialised until it has run."""
        if self._gradients is None:
            self._gradients = {
                name: tensor.handle.tensor(tensor.shape, tensor.descriptor.dtype)
                for name, tensor in self.values.items()
            }
        return self._gradients

    def of_node(self, node: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of one node by their short names."""
        prefix = f"{node}."
        return {name.removeprefix(prefix): t for name, t in tensors.items() if name.rpartition(".")[0] == node}

    def download(self) -> dict[str, np.ndarray]:
        """Copy the values to the host."""
        return {name: tensor.numpy() for name, tensor in self.values.items()}

    def close(self) -> None:
        """Give the memory back."""
        for tensor in (*self.values.values(), *(self._gradients or {}).values()):
            tensor.close()
