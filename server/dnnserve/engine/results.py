"""Host memory for the outputs of one batch."""

from __future__ import annotations

import math

import numpy as np

from dnncore.backend import Device
from dnnserve.signature import Signature

__all__ = ["Results"]


class Results:
    """Where the outputs of the batches of one slot go on the host. Owned by one thread.

    Args:
        device: Whose copies come here.
        rows: Of the largest batch.
        signature: What the model gives.
    """

    def __init__(self, device: Device, rows: int, signature: Signature) -> None:
        self._device = device
        self._rows = rows
        self._signature = signature
        self._whole: dict[int, np.ndarray] = {}  # made when they are first wanted: page-locked memory is scarce
        # Their first rows; kept, because a stream keeps each array that it copies to.
        self._parts: dict[tuple[int, int], np.ndarray] = {}

    def of(self, number: int, rows: int) -> np.ndarray:
        """[rows, ...] of an output."""
        if number not in self._whole:
            output = self._signature.outputs[number]
            shape = self._rows, *output.shape
            memory = self._device.host_buffer(math.prod(shape) * output.dtype.itemsize)
            self._whole[number] = memory.view(output.dtype.numpy).reshape(shape)
        if (number, rows) not in self._parts:
            self._parts[number, rows] = self._whole[number][:rows]
        return self._parts[number, rows]
