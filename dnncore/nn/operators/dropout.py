"""Dropout, as nets are run: nothing is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.nn.operators.structure import Identity

__all__ = ["Dropout"]


@dataclass(frozen=True)
class Dropout(Identity):
    """x itself; while a net is trained, elements would be dropped and the others scaled up.

    Args:
        probability: That an element is dropped.
    """

    kind: ClassVar[str] = "dropout"

    probability: float = 0.5
