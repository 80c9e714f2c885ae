"""The attributes of a node, each as the type that its operator asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import AttributeProto, TensorProto

from dnncore.errors import BadParamError, NotSupportedError

__all__ = ["Attributes"]


class Attributes:
    """By name, with the defaults of whoever asks. Remembers who was asked for, so that what nobody understands is found. Owned by
    one thread; not checked.

    Args:
        attributes: As the file has them.
        read: Reads a tensor.
    """

    def __init__(self, attributes: Sequence[AttributeProto], read: Callable[[TensorProto], np.ndarray]) -> None:
        self._by_name = {attribute.name: attribute for attribute in attributes}
        self._read = read
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def _get(self, name: str, kind: int) -> AttributeProto | None:
        self._asked.add(name)
        attribute = self._by_name.get(name)
        if attribute is not None and attribute.type != kind:
            raise BadParamError(
                f"attribute {name!r} is of type {AttributeProto.AttributeType.Name(attribute.type)}, "
                f"not {AttributeProto.AttributeType.Name(kind)}"
            )
        return attribute

    def integer(self, name: str, otherwise: int) -> int:
        """A whole number."""
        found = self._get(name, AttributeProto.INT)
        return otherwise if found is None else found.i

    def real(self, name: str, otherwise: float) -> float:
        """A number, as float32 has it."""
        found = self._get(name, AttributeProto.FLOAT)
        return otherwise if found is None else found.f

    def text(self, name: str, otherwise: str) -> str:
        """A string."""
        found = self._get(name, AttributeProto.STRING)
        return otherwise if found is None else found.s.decode()

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Whole numbers; None where it is left out."""
        found = self._get(name, AttributeProto.INTS)
        return None if found is None else tuple(found.ints)

    def reals(self, name: str) -> tuple[float, ...] | None:
        """Numbers; None where it is left out."""
        found = self._get(name, AttributeProto.FLOATS)
        return None if found is None else tuple(found.floats)

    def tensor(self, name: str) -> np.ndarray | None:
        """A tensor; None where it is left out."""
        found = self._get(name, AttributeProto.TENSOR)
        return None if found is None else self._read(found.t)

    def refuse_others(self) -> None:
        """Refuse attributes that nobody asked for: their meaning would be lost.

        Raises:
            NotSupportedError: there are some; the message names them.
        """
        if others := self._by_name.keys() - self._asked:
            raise NotSupportedError(f"attribute {', '.join(map(repr, sorted(others)))} is not supported")
