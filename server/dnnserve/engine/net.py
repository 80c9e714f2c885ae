"""Models on a device of this process, over dnncore."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dnncore import Handle
from dnncore.backend import Event
from dnncore.errors import BadParamError, OutOfMemoryError
from dnncore.nn import BATCH, Executor, Graph, Model, Parameters, SharedMemory, Value
from dnncore.nn.footprint import footprint
from dnncore.preprocessing import Preprocessing
from dnncore.tensor import Tensor
from dnnserve.engine.buckets import batch_buckets
from dnnserve.engine.host import Fresh
from dnnserve.engine.pipeline import LocalPipeline
from dnnserve.engine.pixels import Pixels
from dnnserve.engine.results import Results
from dnnserve.engine.slot import Apart, Slot, joined
from dnnserve.envelope import ModelKey
from dnnserve.signature import Signature, TensorSpec

__all__ = ["NetHost", "NetInstance", "ServedModel", "Terms", "Turns", "signature_of"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, and what makes its input of pixels. Immutable.

    Args:
        model: Its inputs and outputs begin with the batch.
        preprocessing: Of its only input; None where nobody has said it.
        digest: Of all that says, with the device, what its batches take; empty: nobody has made it, and nothing is kept of them.
    """

    model: Model
    preprocessing: Preprocessing | None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """How models are loaded on a device. Immutable.

    Args:
        batch_invariant: Whether an image's answer has the same bits whatever it is batched with: each is computed alone.
        num_slots: Input buffers of each model: more than one where rows are brought into the next while others' are computed.
        memory_fraction: What models may take of the device's memory, together with whoever else uses the device.
    """

    batch_invariant: bool = False
    num_slots: int = 1
    memory_fraction: float = 1.0

    @property
    def slice_images(self) -> int | None:
        """Images that are computed at a time, as `Executor` has it."""
        return 1 if self.batch_invariant else None


@dataclass(slots=True)
class Turns:
    """How the models of a device take turns. Mutable: who begins batches writes the first, who finishes them the second.

    Args:
        end: Of the batch that was begun last.
        ended_ns: When the batch ended that was finished last.
    """

    end: Event | None = None
    ended_ns: int = 0


class _Begun(NamedTuple):
    """A batch that the device has. Immutable.

    Args:
        since_ns: When it was given the batch.
        end: Of the batch.
        outputs: [rows, ...] of those that are wanted, by number; there when it has ended.
    """

    since_ns: int
    end: Event
    outputs: Mapping[int, np.ndarray]


class NetInstance:
    """A model on a handle of its own: one set of weights, one executor a bucket. Owned by one thread; the handle checks.

    A batch is enqueued when it is begun: while the device computes one, the pixels of the next are brought to it. On the CPU it is
    computed then. Batches of several models are computed in the order in which they are begun, because what each takes is learned.

    Args:
        handle: Of the device; closed with the instance.
        name: What the log calls it.
        served: What is run.
        max_batch_rows: Largest bucket wanted.
        terms: How it is loaded.
        whole: Whether all buckets must fit; else those that do not fit into the device's memory are left out, with a warning.
        checkpoint: Called between steps that take long; raises where the load is not wanted any more.

    Attributes:
        turns: Those of its device, once it takes part in them.

    Raises:
        OutOfMemoryError: not even a batch of one fits, or not all where all must.
    """

    def __init__(
        self,
        handle: Handle,
        name: str,
        served: ServedModel,
        max_batch_rows: int,
        terms: Terms = Terms(),
        *,
        whole: bool = False,
        checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        self._handle = handle
        self._name = name
        self._terms = terms
        self._checkpoint = checkpoint
        graph = served.model.graph
        self.signature = signature = signature_of(graph)
        buckets = batch_buckets(max_batch_rows)
        while (shortage := self._shortage(served, buckets[-1])) is not None:
            buckets = self._fewer(buckets, shortage, whole=whole)
        self._parameters = Parameters.upload(handle, graph, served.model.weights)
        while True:
            try:
                self._executors = self._bind(handle, graph, buckets, terms.slice_images)
                break
            except OutOfMemoryError as error:
                buckets = self._fewer(buckets, error, whole=whole)
        nbytes = Slot.nbytes(self.max_batch_rows, signature)
        self.slots = tuple(
            Slot(handle.device.host_buffer(nbytes), self.max_batch_rows, signature, served.preprocessing)
            for _ in range(terms.num_slots)
        )
        self._pixels: Pixels | None = None
        if served.preprocessing is not None:
            with ExitStack() as undo:
                self._pixels = undo.enter_context(closing(Pixels(handle, served.preprocessing, self.max_batch_rows)))
                self._pixels.warm_up(self._executors, signature.inputs[0].name, self.slots[0])
                undo.pop_all()
        self._results = [Results(handle.device, self.max_batch_rows, signature) for _ in self.slots]
        self._begun: deque[_Begun] = deque()
        self._last_end: Event | None = None
        self.turns = Turns()
        self.computed_ns = 0

    def _bind(
        self, handle: Handle, graph: Graph, buckets: Sequence[int], slice_images: int | None
    ) -> Sequence[Executor]:
        """An executor a bucket, in memory that they take turns with."""
        with ExitStack() as undo:
            memory = undo.enter_context(SharedMemory(handle))
            executors = []
            for bucket in reversed(buckets):  # the largest makes room for the others
                self._checkpoint()
                executor = Executor(graph, handle, self._parameters, bucket, slice_images=slice_images, memory=memory)
                executors.append(undo.enter_context(executor))
                executor.run(wanted=())  # compiles and plans everything, before a client waits for it
            undo.pop_all()
        return executors[::-1]

    def _shortage(self, served: ServedModel, rows: int) -> OutOfMemoryError | None:
        """What is missing for batches of so many rows, found out before anything is taken; None: there is room."""
        wanted = footprint(served.model.graph, self._handle, rows, self._terms.slice_images)
        pixels = 0 if served.preprocessing is None else Pixels.nbytes(rows, served.preprocessing)
        free, total = self._handle.device.free_bytes(), self._handle.info.total_memory_bytes
        kept = int((1 - self._terms.memory_fraction) * total)
        if wanted.nbytes + pixels <= free - kept:
            return None
        return OutOfMemoryError(
            f"model {self._name} needs {_mib(wanted.nbytes + pixels)} on {self._handle.info.name} for batches of {rows} rows "
            f"({_mib(wanted.constants_bytes)} of them weights), and may take {_mib(max(0, free - kept))}: "
            f"{_mib(free)} of {_mib(total)} are free, and {_mib(kept)} are kept (--device-memory-fraction)"
        )

    def _fewer(self, buckets: Sequence[int], error: OutOfMemoryError, *, whole: bool) -> tuple[int, ...]:
        """The buckets without the largest; raises the error where that must not be."""
        *smaller, bucket = buckets
        if whole or not smaller:
            raise error
        _log.warning(
            "model %s on %s: no room for batches of %d rows, serving up to %d: %s",
            *(self._name, self._handle.info.name, bucket, smaller[-1], error),
        )
        return tuple(smaller)

    def adopt(self) -> None:
        """Belong to the calling thread from now on."""
        self._handle.adopt()
        if self._pixels is not None:
            self._pixels.adopt()
        self._checkpoint = lambda: None

    def close(self) -> None:
        """Give everything back."""
        try:
            if self._pixels is not None:
                self._pixels.close()
        finally:
            self._handle.close()

    @property
    def max_batch_rows(self) -> int:
        """Rows of the largest bucket."""
        return self._executors[-1].batch

    def begin(
        self, slot: int, rows: int, pixels: bool, wanted: Sequence[int], apart: Sequence[Sequence[Apart]] = ()
    ) -> None:
        """Enqueue the smallest executor that holds the rows. Rows of padding are zero."""
        try:
            self._enqueue(slot, rows, pixels, wanted, apart)
        except BaseException:
            self._handle.stream.synchronize()  # what was enqueued of it reads rows that others get next
            raise

    def _enqueue(
        self, slot: int, rows: int, pixels: bool, wanted: Sequence[int], apart: Sequence[Sequence[Apart]]
    ) -> None:
        began_ns = time.monotonic_ns()
        executor = next(executor for executor in self._executors if executor.batch >= rows)
        sources: dict[str, Callable[[Tensor], None]] = {}
        for index, array in enumerate(self.slots[slot].read(pixels=pixels)):
            array[rows : executor.batch] = 0
            parts = joined(array[: executor.batch], apart[index] if apart else ())
            bring = self._pixels.normalizer(parts) if pixels and self._pixels is not None else self._bringer(parts)
            sources[self.signature.inputs[index].name] = bring
        results = {number: self._results[slot].of(number, executor.batch) for number in wanted}
        into = {self.signature.outputs[number].name: array for number, array in results.items()}
        if self.turns.end is not None and self.turns.end is not self._last_end:
            self._handle.wait(self.turns.end)  # of another model: its own are in the order of its stream
        executor.launch(wanted=[*into], sources=sources, into=into)
        outputs = {number: array[:rows] for number, array in results.items()}
        self.turns.end = self._last_end = end = self._handle.record_event()
        self._begun.append(_Begun(began_ns, end, outputs))

    def finish(self) -> Mapping[int, np.ndarray]:
        """Wait for the oldest batch; from any thread, one at a time."""
        begun = self._begun.popleft()
        begun.end.synchronize()
        now_ns = time.monotonic_ns()
        self.computed_ns = now_ns - max(begun.since_ns, self.turns.ended_ns)
        self.turns.ended_ns = now_ns
        return begun.outputs

    def _bringer(self, parts: Sequence[np.ndarray]) -> Callable[[Tensor], None]:
        """What copies the rows of an input, which lie one behind the other, into its tensor."""

        def write(rows: Tensor) -> None:
            self._handle.device.gather_to_device(self._handle.stream, rows.address, parts)

        return write


class NetHost:
    """A device of this process, with a handle for each model. Owned by one thread; the handles check.

    A model that is loaded beside others is made in a thread of its own, and then adopted.

    Args:
        device: "cpu" or "cuda:N".
        models: What may be loaded; others may be added to it later.
        terms: How models are loaded.
    """

    def __init__(self, device: str, models: Mapping[ModelKey, ServedModel], *, terms: Terms = Terms()) -> None:
        self._device = device
        self._models = models
        self._terms = terms
        self._ending = threading.Event()
        self._loading: dict[ModelKey, Future[Fresh]] = {}
        self._instances: dict[ModelKey, NetInstance] = {}
        self._turns = Turns()
        Handle(device).close()  # says at once what is wrong with the device, and begins its context

    def load(self, model: ModelKey, max_batch_rows: int) -> LocalPipeline:
        """Upload a model's weights and bind its buckets."""
        instance = self._instances[model] = self._make(model, max_batch_rows, whole=False)
        instance.turns = self._turns
        return LocalPipeline(instance)

    def begin_load(self, model: ModelKey, max_batch_rows: int, warm_up_ns: int) -> None:
        """Do so in another thread, and time its batches there."""
        future = self._loading[model] = Future()

        def make() -> None:
            instance: NetInstance | None = None
            try:
                instance = self._make(model, max_batch_rows, whole=True)
                pipeline = LocalPipeline(instance)
                future.set_result(Fresh(pipeline, pipeline.time(warm_up_ns)))
            except BaseException as error:  # noqa: BLE001 - handed over to `loaded`
                if instance is not None:
                    instance.close()
                future.set_exception(error)

        # No daemon: the interpreter must not end it in the middle of a call of the driver's.
        threading.Thread(target=make, name=f"dnnserve-load-{model}", daemon=False).start()

    def loaded(self, model: ModelKey) -> Fresh | None:
        """The model, once it is there, which belongs to the calling thread then."""
        future = self._loading[model]
        if not future.done():
            return None
        del self._loading[model]
        fresh = future.result()
        self._adopt(model, fresh)
        return fresh

    def unload(self, model: ModelKey) -> None:
        """Close the model's handle and with it everything that was made for it."""
        self._instances.pop(model).close()

    def watch(self, on_end: Callable[[], None], on_loss: Callable[[], None]) -> None:
        """Who waits for a batch computes it, and nothing tells of a loss before the next one."""

    def look(self) -> None:
        """It is this process, which looks."""

    def kill(self) -> bool:
        """Nothing ends a kernel of this process but its own end."""
        return False

    def close(self) -> None:
        """Unload all models, also those that are being loaded."""
        self._ending.set()
        for model, future in self._loading.items():
            if future.exception() is None:  # waits
                self._adopt(model, future.result())
        self._loading.clear()
        with ExitStack() as closed:  # one that fails keeps no other from being closed
            for instance in self._instances.values():
                closed.callback(instance.close)
        self._instances.clear()

    def _adopt(self, model: ModelKey, fresh: Fresh) -> None:
        assert isinstance(fresh.pipeline, LocalPipeline)
        instance = fresh.pipeline.instance
        assert isinstance(instance, NetInstance)
        instance.adopt()
        instance.turns = self._turns
        self._instances[model] = instance

    def _make(self, model: ModelKey, max_batch_rows: int, *, whole: bool) -> NetInstance:
        handle = Handle(self._device)
        try:
            served = self._models[model]
            return NetInstance(
                *(handle, str(model), served, max_batch_rows, self._terms),
                whole=whole,
                checkpoint=self._check_wanted,
            )
        except BaseException:
            handle.close()
            raise

    def _check_wanted(self) -> None:
        if self._ending.is_set():
            raise CancelledError


def signature_of(graph: Graph) -> Signature:
    """What a net reads and gives.

    Raises:
        BadParamError: a tensor does not begin with the batch, or has other extents that are no numbers.
    """
    outputs = (graph.values[name] for name in graph.outputs)
    return Signature(tuple(map(_row_of, graph.inputs)), tuple(map(_row_of, outputs)))


def _row_of(value: Value) -> TensorSpec:
    row = tuple(extent for extent in value.shape[1:] if isinstance(extent, int))
    if value.shape[:1] != (BATCH,) or len(row) != len(value.shape) - 1:
        raise BadParamError(f"{value} is no batch of rows of one size: it must be [{BATCH}, ...], with numbers behind")
    return TensorSpec(value.name, value.dtype, row)


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"
