"""What a launch reads and writes, as PyTorch sees it and as ours does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.measurement import Measurement
from dnncore import Handle, Tensor, TensorDescriptor

__all__ = ["Operand", "OperandSet", "is_beside_torch"]


def is_beside_torch(handle: Handle) -> bool:
    """Whether PyTorch computes on the handle's device too: not on the CPU, and not on the emulated driver."""
    return handle.info.compute_capability is not None and torch.cuda.is_available()


class Operand:
    """Memory for a descriptor. Owned by one thread.

    On a GPU that PyTorch is on, both see the same memory, PyTorch's. Elsewhere, in dry runs, PyTorch's is on the host, and `push`
    and `pull` copy all of it.
    """

    def __init__(self, handle: Handle, descriptor: TensorDescriptor) -> None:
        dtype = getattr(torch, descriptor.dtype.value)
        self._handle, self._descriptor = handle, descriptor
        self._own: Tensor | None = None
        if is_beside_torch(handle):
            self.values = torch.empty_strided(descriptor.shape, descriptor.strides, dtype=dtype, device="cuda")
            self.address: object = self.values.data_ptr()
        else:
            self._bytes = np.zeros(descriptor.nbytes, np.uint8)
            flat = torch.from_numpy(self._bytes).view(dtype)
            self.values = flat.as_strided(descriptor.shape, descriptor.strides)
            self._own = handle.tensor(descriptor)
            self.address = self._own.address

    @property
    def nbytes(self) -> int:
        """From the first element to the last."""
        return self._descriptor.nbytes

    def tensor(self) -> Tensor:
        """As ours; only of row-major ones, since PyTorch hands out other strides than the descriptor's where an extent is 1."""
        return self._handle.from_dlpack(self.values) if self._own is None else self._own

    def push(self) -> None:
        """Let ours have what PyTorch wrote."""
        if self._own is not None:
            self._handle.device.copy_to_device(self._handle.stream, self.address, self._bytes)
            self._handle.synchronize()

    def pull(self) -> torch.Tensor:
        """Wait for what was enqueued; what ours wrote, as PyTorch's."""
        self._handle.synchronize()
        if self._own is not None:
            self._handle.device.copy_to_host(self._handle.stream, self._bytes, self.address)
            self._handle.synchronize()
        return self.values

    def poison(self) -> None:
        """NaN, or for integers a number that nothing here gives."""
        self.values.fill_(float("nan") if self._descriptor.dtype.is_floating else torch.iinfo(self.values.dtype).min)
        self.push()

    def close(self) -> None:
        """Give the memory back."""
        if self._own is not None:
            self._own.close()


class OperandSet:
    """The operands of one call of a measurement, its inputs drawn anew. Owned by one thread.

    Args:
        handle: Ours.
        measurement: What is called.
        generator: Of PyTorch's, on the device where it computes, or on the CPU.
    """

    def __init__(self, handle: Handle, measurement: Measurement, generator: torch.Generator) -> None:
        self.inputs = [Operand(handle, descriptor) for descriptor in measurement.inputs]
        self.outputs = [Operand(handle, descriptor) for descriptor in measurement.outputs]
        for operand in self.inputs:
            _draw(operand.values, generator)
        measurement.prepare(self.input_values)
        if measurement.changes_outputs:
            for operand in self.outputs:
                _draw(operand.values, generator)
        for operand in (*self.inputs, *self.outputs):
            operand.push()

    @property
    def operands(self) -> Sequence[Operand]:
        """The inputs, then the outputs."""
        return (*self.inputs, *self.outputs)

    @property
    def input_values(self) -> list[torch.Tensor]:
        """The inputs as PyTorch sees them."""
        return [operand.values for operand in self.inputs]

    def refill(self, generator: torch.Generator, *, changes: bool) -> list[torch.Tensor]:
        """Let no output hold what a launch would write: they are drawn anew where it changes them, else poisoned.

        Returns:
            Copies of what was drawn.
        """
        for operand in self.outputs:
            if changes:
                _draw(operand.values, generator)
                operand.push()
            else:
                operand.poison()
        return [operand.values.clone() for operand in self.outputs] if changes else []

    def close(self) -> None:
        """Give the memory back."""
        for operand in self.operands:
            operand.close()


def _draw(values: torch.Tensor, generator: torch.Generator) -> None:
    """Normally distributed elements; bytes where they are integers of 8 bits, and zeros where these may be indices."""
    if values.dtype.is_floating_point:
        values.normal_(generator=generator)
    elif values.dtype in (torch.int8, torch.uint8):
        limits = torch.iinfo(values.dtype)
        values.random_(limits.min, limits.max + 1, generator=generator)
    else:
        values.zero_()
