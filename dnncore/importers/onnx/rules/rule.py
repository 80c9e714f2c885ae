"""What a rule is: it makes nodes of the net out of a node of the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.values import Imported

__all__ = ["Rule"]

Rule = Callable[[Call], Sequence[Imported]]
"""Adds nodes through the call and returns what the results stand for: at least those that are wanted.

Raises:
    NotSupportedError: the node means something that the net has no operator for.
    BadParamError: the node makes no sense.
"""
