"""One block of memory with a place for each of several tensors: addresses that programs may rely on, and that move together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dnncore.backend import Address
from dnncore.descriptors import TensorDescriptor
from dnncore.tensor import Tensor

if TYPE_CHECKING:
    from dnncore.handle import Handle

__all__ = ["Arena"]

_ALIGNMENT_BYTES = 256
"""What every tensor begins at a multiple of, as allocations of their own do."""


class Arena:
    """Tensors in one block, each at a place that stays. Owned by one thread; its handle checks. Made by `Handle.arena`.

    Args:
        handle: Where.
        descriptors: What there is to be, by name.

    Attributes:
        tensors: The tensors, by name; valid until the arena is closed.
    """

    def __init__(self, handle: Handle, descriptors: Mapping[str, TensorDescriptor]) -> None:
        self.handle = handle
        self.read_only = False
        self._descriptors = dict(descriptors)
        places: dict[str, int] = {}
        end = 0
        for name, descriptor in self._descriptors.items():
            places[name] = end
            end += -(-descriptor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.nbytes = end
        self._block = handle.tensor((end,), "int8")
        memory = self._block.memory
        self.tensors = {
            name: Tensor(handle, descriptor, memory, places[name], owned=False)
            for name, descriptor in self._descriptors.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def pointer(self) -> int:
        """Where the block begins, as a number."""
        return self._block.pointer

    @property
    def address(self) -> Address:
        """Where the block begins, for a backend's launches."""
        return self._block.address

    def another(self) -> Arena:
        """Another block of the same layout: what a second capture of a program moves to, to run beside the first."""
        return Arena(self.handle, self._descriptors)

    def close(self) -> None:
        """Wait for the work that may use it, then give the block back; a second call does nothing."""
        self._block.close()  # which refuses a foreign thread, and then nothing has changed
        for tensor in self.tensors.values():
            tensor.close()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Arena({len(self.tensors)} tensors in {self.nbytes} B on {self.handle.info.name})"
