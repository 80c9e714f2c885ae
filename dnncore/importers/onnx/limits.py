"""How much of a file that nobody trusts is read, computed and kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dnncore.errors import BadParamError

__all__ = ["Budget", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of an import. Immutable.

    Args:
        file_bytes: Of the file, without external data; protobuf itself ends at 2 GiB.
        tensor_bytes: Of all initialisers, and again of all that is folded; the latter is at most 1 GiB and four times the
            initialisers, so that a small file does not ask for much.
        nodes: Of the graph with functions written out, and again of the net.
    """

    file_bytes: int = 2 << 30
    tensor_bytes: int = 16 << 30
    nodes: int = 100_000

    def folded_bytes(self, initializer_bytes: int) -> int:
        """What may be folded in a model with so many bytes of initialisers."""
        return min((1 << 30) + 4 * initializer_bytes, self.tensor_bytes)


class Budget:
    """Bytes that may still be allocated. Owned by one thread; not checked.

    Args:
        what: What they are for, in messages.
        nbytes: How many.
    """

    def __init__(self, what: str, nbytes: int) -> None:
        self._what = what
        self._left = nbytes

    def grant(self, nbytes: int) -> None:
        """Let so many more be allocated."""
        self._left += nbytes

    def claim(self, shape: Sequence[int], itemsize: int) -> None:
        """Take the bytes of an array before it is allocated.

        Raises:
            BadParamError: an extent is negative, or it is too large.
        """
        if any(extent < 0 for extent in shape):
            raise BadParamError(f"extents {list(shape)} must not be negative")
        nbytes = math.prod(int(extent) for extent in shape) * itemsize
        if nbytes > self._left:
            raise BadParamError(f"extents {list(shape)} take {nbytes} B, and {self._left} B are left for {self._what}")
        self._left -= nbytes
