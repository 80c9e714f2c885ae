"""Models on a device of this process, over dnncore."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from dnncore import Handle, ops
from dnncore.descriptors import Layout
from dnncore.dtypes import DType
from dnncore.errors import OutOfMemoryError
from dnncore.nn import Executor, Graph, Model, Parameters, SharedMemory
from dnncore.preprocessing import Preprocessing
from dnncore.tensor import Tensor
from dnnserve.engine.host import Buffers
from dnnserve.engine.slot import Slot
from dnnserve.envelope import ModelKey

__all__ = ["NetHost", "NetInstance", "ServedModel", "batch_buckets"]

_log = logging.getLogger(__name__)


def batch_buckets(max_batch_rows: int) -> tuple[int, ...]:
    """Batch sizes that executors are bound for: powers of two, and the maximum itself."""
    return (*(1 << power for power in range((max_batch_rows - 1).bit_length())), max_batch_rows)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, and what makes its input of pixels. Immutable.

    Args:
        model: Of one input and one output.
        preprocessing: None where nobody has said it.
    """

    model: Model
    preprocessing: Preprocessing | None


class NetInstance:
    """A model on a handle: one set of weights, one executor a bucket. Owned by one thread; the handle checks.

    Args:
        handle: Of the device.
        name: What the log calls it.
        served: What is run.
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
        served: ServedModel,
        max_batch_rows: int,
        slice_images: int | None = None,
        num_slots: int = 1,
        buffers: Buffers | None = None,
    ) -> None:
        graph = served.model.graph
        (self._input,), (self._output,) = [value.name for value in graph.inputs], graph.outputs
        self._parameters = Parameters.upload(handle, graph, served.model.weights)
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
        row_shape = self._extents(graph, self._input)
        self.output_shape = self._extents(graph, self._output)
        nbytes = Slot.nbytes(self.max_batch_rows, row_shape)
        self.slots = tuple(
            Slot(_memory(handle, nbytes, buffers), self.max_batch_rows, row_shape, served.preprocessing)
            for _ in range(num_slots)
        )
        self._pixels = None
        if served.preprocessing is not None:
            self._pixels = _Pixels(handle, served.preprocessing, self.max_batch_rows)
            self._pixels.warm_up(self._executors, self._input, self.slots[0])
        self._begun: deque[tuple[int, int, bool]] = deque()
        self.computed_ns = 0

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

    def begin(self, slot: int, rows: int, pixels: bool) -> None:
        """Remember what `finish` shall run: this process has nothing else to do meanwhile."""
        self._begun.append((slot, rows, pixels))

    def finish(self) -> np.ndarray:
        """Run the smallest executor that holds the rows: probabilities [rows, K]. Rows of padding are zero."""
        number, rows, pixels = self._begun.popleft()
        executor = next(executor for executor in self._executors if executor.batch >= rows)
        slot = self.slots[number]
        batch = (slot.pixels if pixels else slot.rows)[: executor.batch]
        batch[rows:] = 0
        source = self._pixels.normalizer(batch) if pixels and self._pixels is not None else batch
        began_ns = time.monotonic_ns()
        outputs = executor.run(sources={self._input: source})[self._output][:rows]
        self.computed_ns = time.monotonic_ns() - began_ns
        return outputs


class _Pixels:
    """Pixels on the device, and what turns them into rows. Owned by one thread; the handle checks.

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
        self._pixels = handle.tensor((max_rows, *preprocessing.input_shape), DType.UINT8, Layout.NHWC)

    def warm_up(self, executors: Sequence[Executor], name: str, slot: Slot) -> None:
        """Compile what pixels need, before a client waits for it."""
        for executor in executors:
            executor.run(sources={name: self.normalizer(slot.pixels[: executor.batch])})

    def normalizer(self, pixels: np.ndarray) -> Callable[[Tensor], None]:
        """What writes the rows of pixels, uint8 [rows, H, W, C] in the net's order of channels, into an input."""

        def write(rows: Tensor) -> None:
            there = self._pixels.view(self._pixels.descriptor.with_shape((len(pixels), *self._pixels.shape[1:])))
            self._handle.device.copy_to_device(self._handle.stream, there.address, pixels)
            ops.image_normalization(self._handle, 1.0, there, self._table, 0.0, rows, mean=self._mean)

        return write


def _memory(handle: Handle, nbytes: int, buffers: Buffers | None) -> np.ndarray:
    if buffers is None:
        return handle.device.host_buffer(nbytes)
    memory = buffers(nbytes)
    handle.device.page_lock(memory)
    return memory


class NetHost:
    """A device with a handle of its own. Owned by one thread; the handle checks.

    Args:
        device: "cpu" or "cuda:N".
        models: What may be loaded.
        batch_invariant: Whether an image's answer has the same bits whatever it is batched with: each is computed alone.
        num_slots: Input buffers of each model: 2 where one is filled while the other's rows are computed.
    """

    def __init__(
        self, device: str, models: Mapping[ModelKey, ServedModel], *, batch_invariant: bool = False, num_slots: int = 1
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

    def on_loss(self, act: Callable[[], None]) -> None:
        """Nothing says so before the next batch."""

    def kill(self) -> bool:
        """Nothing ends a kernel of this process but its own end."""
        return False

    def close(self) -> None:
        """Close the handle and with it everything that was loaded."""
        self._handle.close()
