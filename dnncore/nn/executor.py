"""A net bound to a handle: its values in one block, and one captured program that computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from dnncore import ops
from dnncore.backend import TICKET_BYTES, Device, Stream
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError, ClosedError
from dnncore.handle import Handle
from dnncore.nn.graph import Graph
from dnncore.nn.parameters import Parameters
from dnncore.nn.placement import Place
from dnncore.nn.schedule import lower, schedule
from dnncore.nn.shared_memory import SharedMemory
from dnncore.nn.slices import images_of_a_slice, lay_out
from dnncore.program import CapturedProgram, Program, Step
from dnncore.tensor import Tensor

__all__ = ["Executor"]


class Executor:
    """A graph bound to a handle, for batches of one size. Owned by one thread; checked by the handle.

    Making one chooses how every node is computed, finds places for all values and captures the operations: a run is one launch.
    Its runs are in the order of one stream, as they use the same memory. Several executors of one net, each on a stream of its own,
    run side by side with one set of parameters.

    Args:
        graph: What to run; with gradients it trains (`dnncore.nn.gradient`).
        handle: Where.
        parameters: Its constants on that handle; several executors may share them.
        batch: N, 1 or more.
        slice_images: Images that are computed at a time, of which the batch is a multiple; None for all at once. Each slice is
            computed as if it were alone, by the same launches: with 1, an image's results have the same bits in any company.
        memory: Where values and scratch lie, shared with other executors of the handle; None for memory of its own.
        limit_bytes: What values and scratch memory of a slice may take together, as far as algorithms allow; None for what
            `schedule` chooses.
        stream: Where it runs, one of the handle's device (`handle.device.create_stream()`); None for that of `memory`, or else the
            handle's own. Beside the handle's stream, whoever changes a parameter or uses `tensor` there orders the two by events:
            `executor.stream.wait(handle.record_event())`, `handle.wait(executor.stream.record_event())`.

    Raises:
        BadParamError: there are no images, the batch is no multiple of the slice, or the graph cannot be run in slices; there are a
            memory and a stream, though a memory has one; or the graph updates constants, which other streams may read.
        OutOfMemoryError: the device has no room; what was allocated until then has been given back.

    Attributes:
        inputs: Host arrays by name, page-locked on CUDA, made when they are first asked for and zero then: write rows straight into
            them, then call `run`.
        schedule: How the nodes are computed.
        arena_bytes: Device memory of all values and of the scratch memory of their operations, constants aside.
    """

    def __init__(
        self,
        graph: Graph,
        handle: Handle,
        parameters: Parameters,
        batch: int,
        *,
        slice_images: int | None = None,
        memory: SharedMemory | None = None,
        limit_bytes: int | None = None,
        stream: Stream | None = None,
    ) -> None:
        if memory is not None and stream is not None:
            raise BadParamError("executors that share memory run on its stream; give `SharedMemory` the stream")
        self._shared = memory is not None
        self._memory = memory if memory is not None else SharedMemory(handle, stream)
        if self._memory.is_beside and graph.updates:
            raise BadParamError(
                f"net {graph.name!r} updates {', '.join(graph.updates)}, which executors on other streams may read; it runs on the "
                "handle's stream"
            )
        self.graph = graph
        self.batch = batch
        self._handle = handle
        self._parameters = parameters
        images = images_of_a_slice(batch, slice_images)
        self.schedule = schedule(graph, handle, images, limit_bytes)
        self._layout = layout = lay_out(graph, batch, self.schedule.placement, images)
        self.arena_bytes = layout.nbytes
        self._block = self._memory.block(layout.nbytes)
        self._program: CapturedProgram | None = None
        try:
            self._slice = {name: self._tensor(place) for name, place in layout.slice.places.items()}
            self._tensors = self._slice | {name: self._tensor(place) for name, place in layout.whole.items()}
            self.inputs = self._host_arrays([value.name for value in graph.inputs])
            self._results = self._host_arrays(graph.outputs)
            # Scratch memory is at the beginning of the values, right behind the tickets.
            self._program = self._record().capture(workspace=self._block)
        except BaseException:
            self.close()  # a caller that tries a smaller batch next needs the room
            raise

    def _tensor(self, place: Place) -> Tensor:
        if place.storage in self._parameters.values:
            constant = self._parameters.values[place.storage]
            return constant.view(place.descriptor, place.offset_bytes // constant.dtype.itemsize)
        offset = TICKET_BYTES + self._layout.offsets[place.storage] + place.offset_bytes
        return self._block.view(place.descriptor, offset)

    def _record(self) -> Program:
        """The calls of all nodes, for each slice between copies of its inputs and of its outputs."""
        with self._handle.record() as program:
            for computation in self.schedule.computations:
                if computation.plans:
                    first = len(program.steps)
                    lower(self._handle, computation, self._slice)
                    # Those that memory was laid out for, though the handle may have forgotten them and chosen anew.
                    chosen = zip(program.steps[first:], computation.plans, strict=True)
                    program.steps[first:] = [replace(step, plan=plan) for step, plan in chosen]
        if not self._layout.whole:
            return program
        steps, inputs, outputs = program.steps, [value.name for value in self.graph.inputs], self.graph.outputs
        program.steps = []
        for number in range(self._layout.slices):
            program.steps += [
                *self._copies(inputs, number, back=False),
                *steps,
                *self._copies(outputs, number, back=True),
            ]
        return program

    def _copies(self, names: Sequence[str], number: int, *, back: bool) -> Sequence[Step]:
        """Between a slice's own places and its part of the whole."""
        with self._handle.record() as copies:
            for name in names:
                own = self._slice[name]
                part = self._tensors[name].view(own.descriptor, number * own.descriptor.size)
                source, target = (own, part) if back else (part, own)
                ops.transform(self._handle, 1.0, source, 0.0, target)
        return copies.steps

    def _host_arrays(self, names: Sequence[str]) -> _HostArrays:
        descriptors = {name: self._tensors[name].descriptor for name in names}
        # What has no dimensions has the shape (1,) on the device.
        shapes = {name: one.shape if self.graph.values[name].shape else () for name, one in descriptors.items()}
        return _HostArrays(self._handle.device, descriptors, shapes)

    @property
    def stream(self) -> Stream:
        """Where it runs."""
        return self._memory.stream

    def tensor(self, name: str) -> Tensor:
        """An input, an output or a constant on the device. What lies between them has been overwritten once a run is over.

        Raises:
            BadParamError: there is none of that name, or it lies in memory that other executors write.
        """
        if name not in self.inputs and name not in self.graph.outputs and name not in self.graph.constant:
            raise BadParamError(f"net {self.graph.name!r} has no input, output or constant {name!r}")
        if name not in self.graph.constant:
            self._check_own(name)
        return self._tensors[name]

    def enqueue(self) -> None:
        """Enqueue one pass over what the input tensors hold now: one launch.

        Raises:
            BadParamError: they lie in memory that other executors write.
            ClosedError: this executor was closed.
        """
        self._check_own("what the inputs hold")
        self._open().run(self.stream)

    def _check_own(self, what: str) -> None:
        if self._shared:
            raise BadParamError(
                f"{what} of net {self.graph.name!r} lies in memory that executors share, so only `run` uses it; make the "
                "executor without `memory`"
            )

    def _open(self) -> CapturedProgram:
        self._handle.check_owner()
        if self._program is None:
            raise ClosedError(f"the executor of net {self.graph.name!r} was closed")
        return self._program

    def run(
        self,
        feeds: Mapping[str, np.ndarray] | None = None,
        wanted: Sequence[str] | None = None,
        *,
        sources: Mapping[str, np.ndarray | Callable[[Tensor], None]] | None = None,
    ) -> Mapping[str, np.ndarray]:
        """Copy the inputs to the device, run, and wait for the outputs.

        Args:
            feeds: As `launch` has them; so the rest.
            wanted: See there.
            sources: See there.

        Returns:
            The outputs by name; overwritten by the next run.

        Raises:
            BadParamError: as `launch`; so any other error.
        """
        results = self.launch(feeds, wanted, sources=sources)
        self.stream.synchronize()
        return results

    def launch(
        self,
        feeds: Mapping[str, np.ndarray] | None = None,
        wanted: Sequence[str] | None = None,
        *,
        sources: Mapping[str, np.ndarray | Callable[[Tensor], None]] | None = None,
        into: Mapping[str, np.ndarray] | None = None,
    ) -> Mapping[str, np.ndarray]:
        """Enqueue the copies of the inputs, a run, and the copies of its outputs, on the executor's stream.

        Args:
            feeds: Arrays by name, copied into `inputs` first; what is not among them is taken as it is there. Runs that are under
                way still may read `inputs`: wait for them, or give each `sources` of its own.
            wanted: Names of the outputs that are copied to the host; None for all.
            sources: What an input comes from in place of `inputs`, by name: an array that goes to the device from where it is,
                such as one of `Device.host_buffer`; or what is called with the input's tensor and enqueues on the handle whatever
                writes it, in between two runs whatever the stream.
            into: Arrays that outputs are copied to, by name, in place of the executor's own: of `Device.host_buffer`, as others
                may not be written before the run is over. Several runs may be under way at a time where each has its own.

        Returns:
            The outputs by name, which are there once the stream has passed what it holds now; overwritten by the next run.

        Raises:
            BadParamError: an array is of another shape or dtype, or has the name of no input; a source is not contiguous.
            ClosedError: this executor was closed.
        """
        program = self._open()
        for name, array in (feeds or {}).items():
            self._check_feed(name, array)
            self.inputs[name][...] = array
        for name, source in (sources or {}).items():
            self._check_feed(name, source)
        for name, array in (into or {}).items():
            self._check_result(name, array)
        device, stream = self._handle.device, self.stream
        writers: list[tuple[Callable[[Tensor], None], Tensor]] = []
        for name in self.inputs:
            source = self.inputs[name] if sources is None or name not in sources else sources[name]
            if isinstance(source, np.ndarray):
                device.copy_to_device(stream, self._tensors[name].address, source)
            else:
                writers.append((source, self._tensors[name]))
        self._write(writers)
        program.run(stream)
        given = into or {}
        results = {
            name: given[name] if name in given else self._results[name]
            for name in (self.graph.outputs if wanted is None else wanted)
        }
        for name, result in results.items():
            device.copy_to_host(stream, result, self._tensors[name].address)
        return results

    def _write(self, writers: Sequence[tuple[Callable[[Tensor], None], Tensor]]) -> None:
        """Let the handle's stream write inputs, after the run before and before the next one."""
        is_beside = bool(writers) and self._memory.is_beside
        if is_beside:
            self._handle.wait(self.stream.record_event())
        for write, tensor in writers:
            write(tensor)
        if is_beside:
            self.stream.wait(self._handle.record_event())

    def _check_result(self, name: str, array: np.ndarray) -> None:
        if name not in self._results:
            raise BadParamError(f"net {self.graph.name!r} has no output {name!r}; it has {', '.join(self._results)}")
        dtype, shape = self._results.form(name)
        if array.shape != shape or array.dtype != dtype:
            raise BadParamError(
                f"output {name} is {dtype}{list(shape)}, it cannot go to {array.dtype}{list(array.shape)}"
            )

    def _check_feed(self, name: str, array: np.ndarray | Callable[[Tensor], None]) -> None:
        if name not in self.inputs:
            raise BadParamError(f"net {self.graph.name!r} has no input {name!r}; it has {', '.join(self.inputs)}")
        if not isinstance(array, np.ndarray):
            return
        dtype, shape = self.inputs.form(name)
        if array.shape != shape or array.dtype != dtype:
            raise BadParamError(f"{name} is {array.dtype}{list(array.shape)}, this executor takes {dtype}{list(shape)}")

    def close(self) -> None:
        """Give activations and program back; a second call does nothing."""
        if self._program is not None:
            self._program.close()
            self._program = None
        if not self._shared:
            self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _HostArrays(Mapping[str, np.ndarray]):
    """Arrays by name, each made, of zeros, when it is first asked for: page-locked memory is scarce. Owned by one thread."""

    def __init__(
        self, device: Device, descriptors: Mapping[str, TensorDescriptor], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._device = device
        self._descriptors = descriptors
        self._shapes = shapes
        self._made: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._made:
            descriptor = self._descriptors[name]
            array = self._device.host_buffer(descriptor.nbytes).view(descriptor.dtype.numpy).reshape(self._shapes[name])
            array[...] = 0
            self._made[name] = array
        return self._made[name]

    def form(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Element type and shape of one, which need not be made for that."""
        return self._descriptors[name].dtype.numpy, self._shapes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._descriptors

    def __iter__(self) -> Iterator[str]:
        return iter(self._descriptors)

    def __len__(self) -> int:
        return len(self._descriptors)
