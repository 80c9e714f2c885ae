"""Pixels on their way to a device, where they become the rows that a net reads."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dnncore import Handle, ops
from dnncore.backend import Event
from dnncore.descriptors import Layout
from dnncore.dtypes import DType
from dnncore.nn import Executor
from dnncore.preprocessing import Preprocessing
from dnncore.tensor import Tensor
from dnnserve.engine.slot import Slot

__all__ = ["Pixels"]

_PLACES = 2
"""Those of the batch that is computed, and of the next."""


class Pixels:
    """Pixels on the device, and what turns them into rows. Owned by one thread; the handles check.

    They are brought there on a stream of their own, and lie in two places by turns: so those of a batch can come while the one
    before is computed.

    Args:
        handle: Of the device.
        preprocessing: Its arithmetic.
        max_rows: Room for so many rows.
    """

    def __init__(self, handle: Handle, preprocessing: Preprocessing, max_rows: int) -> None:
        self._handle = handle
        table, mean = preprocessing.normalization.operands()
        self._table = handle.upload(table)
        self._mean = None if mean is None else handle.upload(mean)
        shape = (max_rows, *preprocessing.input_shape)
        self._places = deque(_Place(handle.tensor(shape, DType.UINT8, Layout.NHWC), None) for _ in range(_PLACES))
        self._bringing = Handle(handle.info.name)

    @staticmethod
    def nbytes(rows: int, preprocessing: Preprocessing) -> int:
        """Bytes on the device for batches of so many rows."""
        return _PLACES * rows * math.prod(preprocessing.input_shape)

    def warm_up(self, executors: Sequence[Executor], name: str, slot: Slot) -> None:
        """Compile what pixels need, before a client waits for it."""
        for executor in executors:
            executor.run(wanted=(), sources={name: self.normalizer([slot.pixels[0][: executor.batch]])})

    def normalizer(self, pixels: Sequence[np.ndarray]) -> Callable[[Tensor], None]:
        """What writes the rows of pixels, uint8 [rows, H, W, C] in the net's order of channels, into an input.

        Args:
            pixels: One behind the other; the caller keeps them until the handle's stream has passed what was written, and no longer
                where that fails.
        """
        number = sum(map(len, pixels))

        def write(rows: Tensor) -> None:
            tensor, read = self._places.popleft()
            there = tensor.view(tensor.descriptor.with_shape((number, *tensor.shape[1:])))
            bringing = self._bringing
            try:
                if read is not None:
                    bringing.wait(read)
                bringing.device.gather_to_device(bringing.stream, there.address, pixels)
                self._handle.wait(bringing.record_event())
                ops.image_normalization(self._handle, 1.0, there, self._table, 0.0, rows, mean=self._mean)
                read = self._handle.record_event()
            except BaseException:
                self._places.append(_Place(tensor, None))  # whatever becomes of this batch, others follow
                bringing.stream.synchronize()  # no event says when what was enqueued here is over, nor what reads the place
                self._handle.stream.synchronize()
                raise
            self._places.append(_Place(tensor, read))

        return write

    def adopt(self) -> None:
        """Belong to the calling thread from now on."""
        self._bringing.adopt()

    def close(self) -> None:
        """Give the stream back."""
        self._bringing.close()


class _Place(NamedTuple):
    """Where pixels lie on the device. Immutable.

    Args:
        tensor: [max_rows, H, W, C].
        read: When those that lie there have been read; None: none do.
    """

    tensor: Tensor
    read: Event | None
