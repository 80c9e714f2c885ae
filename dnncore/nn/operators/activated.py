"""What operators have in common whose last step is an activation."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.descriptors import ActivationDescriptor

__all__ = ["Activated"]


@dataclass(frozen=True)
class Activated:
    """Ends with an activation, or with none. Immutable.

    Args:
        activation: Name of a mode of `ActivationMode`; None for the identity.
        coefficient: Of the activation.
    """

    activation: str | None = None
    coefficient: float = 0.0

    def _activation(self) -> ActivationDescriptor | None:
        """None for the identity.

        Raises:
            BadParamError: there is no such mode, or the coefficient does not suit it.
        """
        return None if self.activation is None else ActivationDescriptor.make(self.activation, self.coefficient)
