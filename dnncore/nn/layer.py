"""What a layer is: settings, shapes, parameters, and the operations of its two passes.

Shapes here are those of one sample, without N. A layer holds no memory: the executor brings the tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.tensor import Tensor

__all__ = ["Gradient", "Layer", "ParameterSpec", "Shape"]

Shape = tuple[int, ...]
"""Extents of one sample, without N."""


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """Shape of a learnable tensor and how it starts. Immutable.

    Args:
        shape: Extents.
        fan_in: Inputs that one output sums over: the weights start normal with variance 2 / fan_in (He et al., arXiv
            1502.01852, equation 10). 0 starts at zero, as biases do.
    """

    shape: Shape
    fan_in: int


@dataclass(frozen=True, slots=True)
class Gradient:
    """Where the gradient of an input goes. Immutable.

    Args:
        tensor: Its memory.
        beta: 0 when nothing is there yet, 1 when another consumer of the same blob has written its part.
    """

    tensor: Tensor
    beta: float


class Layer(ABC):
    """A kind of node. Subclasses are frozen dataclasses of settings. Immutable."""

    num_inputs: ClassVar[int] = 1

    @abstractmethod
    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Shape of the output from those of the inputs.

        Raises:
            BadParamError: they do not fit the settings.
        """

    def parameters(self, inputs: Sequence[Shape]) -> Mapping[str, ParameterSpec]:  # noqa: ARG002 (most layers have none)
        """The learnable tensors by their short names ("weight", "bias")."""
        return {}

    @abstractmethod
    def forward(
        self, handle: Handle, inputs: Sequence[Tensor], output: Tensor, parameters: Mapping[str, Tensor]
    ) -> None:
        """Call the operations that write the output."""

    @abstractmethod
    def backward(
        self,
        handle: Handle,
        inputs: Sequence[Tensor],
        output: Tensor,
        output_gradient: Tensor,
        parameters: Mapping[str, Tensor],
        input_gradients: Sequence[Gradient | None],
        parameter_gradients: Mapping[str, Tensor],
    ) -> None:
        """Call the operations that write the gradients; None marks an input whose gradient nobody needs."""

    def check_num_inputs(self, inputs: Sequence[Shape]) -> None:
        """Refuse another number of inputs than the layer takes."""
        if len(inputs) != self.num_inputs:
            raise BadParamError(f"{type(self).__name__} takes {self.num_inputs} inputs, {len(inputs)} are given")
