"""A model on a device: the seam that the runner drives, and its implementation over dnncore.

A host is what one runner thread opens on its device; an instance is one model loaded there. Tests put fakes with programmable
latency and faults behind the same Protocols.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

import numpy as np

from dnncore import Handle
from dnncore.errors import OutOfMemoryError
from dnncore.nn import Executor, Graph, Model, Parameters, SharedMemory
from dnnserve.envelope import ModelKey

__all__ = ["Host", "HostFactory", "Instance", "NetHost", "NetInstance", "batch_buckets"]

_log = logging.getLogger(__name__)


class Instance(Protocol):
    """One model, loaded on one device and warm. Owned by one thread."""

    @property
    def max_batch_rows(self) -> int:
        """Rows that one batch may have here: less than asked for where the device's memory ends earlier."""
        ...

    def stage(self, blocks: Sequence[np.ndarray]) -> None:
        """Copy the blocks [n_i, C, H, W], in order, into the input buffer of the smallest executor that holds them."""
        ...

    def infer(self) -> np.ndarray:
        """Run what was staged.

        Returns:
            float32 [rows staged, K], valid until the next call.

        Raises:
            DeviceFaultError: the device is lost for good; any other error fails this batch alone.
        """
        ...


class Host(Protocol):
    """A device as one runner thread holds it. Owned by one thread."""

    def load(self, model: ModelKey, max_batch_rows: int) -> Instance:
        """Load a model and warm it up."""
        ...

    def close(self) -> None:
        """Give everything back; must be called by the thread that opened it."""
        ...


HostFactory = Callable[[str], Host]
"""Opens a device by name, in the thread that will use it."""


def batch_buckets(max_batch_rows: int) -> tuple[int, ...]:
    """Batch sizes that executors are bound for: powers of two, and the maximum itself."""
    return (*(1 << power for power in range((max_batch_rows - 1).bit_length())), max_batch_rows)


class NetInstance:
    """A model on a handle: one set of weights, one executor a bucket. Owned by one thread; the handle checks.

    Args:
        handle: Of the device.
        name: What the log calls it.
        model: What is run.
        max_batch_rows: Largest bucket wanted; buckets that do not fit into the device's memory are left out, with a warning.
        slice_images: Images that are computed at a time, as `Executor` has it.

    Raises:
        OutOfMemoryError: not even a batch of one fits.
    """

    def __init__(
        self, handle: Handle, name: str, model: Model, max_batch_rows: int, slice_images: int | None = None
    ) -> None:
        graph = model.graph
        (self._input,), (self._output,) = [value.name for value in graph.inputs], graph.outputs
        self._parameters = Parameters.upload(handle, graph, model.weights)
        buckets = batch_buckets(max_batch_rows)
        while True:
            try:
                self._executors = self._bind(handle, graph, buckets, slice_images)
                break
            except OutOfMemoryError as error:
                *smaller, bucket = buckets
                if not smaller:
                    raise
                _log.warning(
                    "model %s on %s: no room for batches of %d rows, serving up to %d: %s",
                    *(name, handle.info.name, bucket, smaller[-1], error),
                )
                buckets = tuple(smaller)
        self._staged = self._executors[0]
        self._rows = 0

    def _bind(
        self, handle: Handle, graph: Graph, buckets: Sequence[int], slice_images: int | None
    ) -> Sequence[Executor]:
        """An executor a bucket, in memory that they take turns with."""
        with ExitStack() as undo:
            memory = undo.enter_context(SharedMemory(handle))
            executors = []
            for bucket in reversed(buckets):  # the largest makes room for the others
                executor = Executor(graph, handle, self._parameters, bucket, slice_images=slice_images, memory=memory)
                executors.append(undo.enter_context(executor))
                executor.run()  # compiles, plans and touches everything once, before a client waits for it
            undo.pop_all()
        return executors[::-1]

    @property
    def max_batch_rows(self) -> int:
        """Rows of the largest bucket."""
        return self._executors[-1].batch

    def stage(self, blocks: Sequence[np.ndarray]) -> None:
        """Copy the rows straight into the page-locked buffer; rows of padding are zero."""
        self._rows = sum(map(len, blocks))
        self._staged = next(executor for executor in self._executors if executor.batch >= self._rows)
        buffer, position = self._staged.inputs[self._input], 0
        for block in blocks:
            buffer[position : position + len(block)] = block
            position += len(block)
        buffer[position:] = 0

    def infer(self) -> np.ndarray:
        """Run the staged executor: probabilities [rows, K]."""
        return self._staged.run()[self._output][: self._rows]


class NetHost:
    """A device with a handle of its own. Owned by one thread; the handle checks.

    Args:
        device: "cpu" or "cuda:N".
        models: What may be loaded.
        batch_invariant: Whether an image's answer has the same bits whatever it is batched with: each is computed alone.
    """

    def __init__(self, device: str, models: Mapping[ModelKey, Model], *, batch_invariant: bool = False) -> None:
        self._models = models
        self._slice_images = 1 if batch_invariant else None
        self._handle = Handle(device)

    def load(self, model: ModelKey, max_batch_rows: int) -> NetInstance:
        """Upload a model's weights and bind its buckets."""
        return NetInstance(self._handle, model.name, self._models[model], max_batch_rows, self._slice_images)

    def close(self) -> None:
        """Close the handle and with it everything that was loaded."""
        self._handle.close()
