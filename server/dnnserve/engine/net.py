"""Models on a device of this process, over dnncore."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from dnncore import Handle
from dnncore.errors import OutOfMemoryError
from dnncore.nn import Executor, Graph, Model, Parameters, SharedMemory
from dnnserve.engine.host import Buffers
from dnnserve.envelope import ModelKey

__all__ = ["NetHost", "NetInstance", "batch_buckets"]

_log = logging.getLogger(__name__)


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
        num_slots: Input buffers.
        buffers: Where they lie; their pages are locked. None: in memory of the device's choice.

    Raises:
        OutOfMemoryError: not even a batch of one fits.
    """

    def __init__(
        self,
        handle: Handle,
        name: str,
        model: Model,
        max_batch_rows: int,
        slice_images: int | None = None,
        num_slots: int = 1,
        buffers: Buffers | None = None,
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
        shape = (self.max_batch_rows, *self._extents(graph, self._input))
        self.output_shape = self._extents(graph, self._output)
        self.slots = tuple(_slot(handle, shape, buffers) for _ in range(num_slots))
        self._begun: deque[tuple[int, int]] = deque()

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

    @staticmethod
    def _extents(graph: Graph, name: str) -> tuple[int, ...]:
        return tuple(int(extent) for extent in graph.values[name].shape[1:])

    @property
    def max_batch_rows(self) -> int:
        """Rows of the largest bucket."""
        return self._executors[-1].batch

    def begin(self, slot: int, rows: int) -> None:
        """Remember what `finish` shall run: this process has nothing else to do meanwhile."""
        self._begun.append((slot, rows))

    def finish(self) -> np.ndarray:
        """Run the smallest executor that holds the rows: probabilities [rows, K]. Rows of padding are zero."""
        slot, rows = self._begun.popleft()
        executor = next(executor for executor in self._executors if executor.batch >= rows)
        batch = self.slots[slot][: executor.batch]
        batch[rows:] = 0
        return executor.run(sources={self._input: batch})[self._output][:rows]


def _slot(handle: Handle, shape: tuple[int, ...], buffers: Buffers | None) -> np.ndarray:
    nbytes = 4 * math.prod(shape)
    if buffers is None:
        slot = handle.device.host_buffer(nbytes)
    else:
        slot = buffers(nbytes)
        handle.device.page_lock(slot)
    return slot[:nbytes].view(np.float32).reshape(shape)


class NetHost:
    """A device with a handle of its own. Owned by one thread; the handle checks.

    Args:
        device: "cpu" or "cuda:N".
        models: What may be loaded.
        batch_invariant: Whether an image's answer has the same bits whatever it is batched with: each is computed alone.
        num_slots: Input buffers of each model: 2 where one is filled while the other's rows are computed.
    """

    def __init__(
        self, device: str, models: Mapping[ModelKey, Model], *, batch_invariant: bool = False, num_slots: int = 1
    ) -> None:
        self._models = models
        self._slice_images = 1 if batch_invariant else None
        self._num_slots = num_slots
        self._handle = Handle(device)

    def load(self, model: ModelKey, max_batch_rows: int, buffers: Buffers | None = None) -> NetInstance:
        """Upload a model's weights and bind its buckets."""
        return NetInstance(
            *(self._handle, model.name, self._models[model], max_batch_rows, self._slice_images, self._num_slots),
            buffers,
        )

    def kill(self) -> bool:
        """Nothing ends a kernel of this process but its own end."""
        return False

    def close(self) -> None:
        """Close the handle and with it everything that was loaded."""
        self._handle.close()
