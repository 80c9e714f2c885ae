"""A net bound to a handle: its values in one arena, and one captured program that computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from dnncore.arena import Arena
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError, ClosedError
from dnncore.handle import Handle
from dnncore.nn.graph import Graph
from dnncore.nn.parameters import Parameters
from dnncore.nn.placement import Place, place
from dnncore.program import CapturedProgram
from dnncore.tensor import Tensor

__all__ = ["Executor"]


class Executor:
    """A graph bound to a handle, for batches of one size. Owned by one thread; checked by the handle.

    Making one finds places for all values, chooses every algorithm and captures the operations: a run is one launch.

    Args:
        graph: What to run; with gradients it trains (`dnncore.nn.gradient`).
        handle: Where.
        parameters: Its constants on that handle; several executors may share them.
        batch: N, 1 or more.

    Raises:
        OutOfMemoryError: the device has no room; what was allocated until then has been given back.

    Attributes:
        inputs: Host arrays by name, page-locked on CUDA: write rows straight into them, then call `run`.
        arena_bytes: Device memory of all values together, constants and workspace aside.
        workspace_bytes: Scratch memory beside it.
    """

    def __init__(self, graph: Graph, handle: Handle, parameters: Parameters, batch: int) -> None:
        if batch < 1:
            raise BadParamError(f"batch {batch} must be 1 or more")
        self.graph = graph
        self.batch = batch
        self._handle = handle
        self._parameters = parameters
        placement = place(graph, batch)
        self.arena_bytes = placement.nbytes
        self._arena: Arena = handle.arena({_BLOCK: TensorDescriptor.packed((placement.nbytes,), "int8")})
        self._program: CapturedProgram | None = None
        try:
            self._tensors = {name: self._tensor(one, placement.offsets) for name, one in placement.places.items()}
            self.inputs = {value.name: self._host_array(value.name) for value in graph.inputs}
            self._results: dict[str, np.ndarray] = {}  # page-locked, made when somebody wants them
            with handle.record() as program:
                for node in graph.nodes:
                    if node.name not in placement.idle:
                        inputs = [None if name is None else self._tensors[name] for name in node.inputs]
                        node.operator.lower(handle, inputs, [self._tensors[name] for name in node.outputs])
            self.workspace_bytes = program.workspace_bytes
            self._program = program.capture()
        except BaseException:
            self.close()  # a caller that tries a smaller batch next needs the room
            raise

    def _tensor(self, place: Place, offsets: Mapping[str, int]) -> Tensor:
        if place.storage in self._parameters.values:
            constant = self._parameters.values[place.storage]
            return constant.view(place.descriptor, place.offset_bytes // constant.dtype.itemsize)
        memory = self._arena[_BLOCK].memory
        offset = offsets[place.storage] + place.offset_bytes
        return Tensor(self._handle, place.descriptor, memory, offset, owned=False)

    def _host_array(self, name: str) -> np.ndarray:
        descriptor = self._tensors[name].descriptor
        raw = self._handle.device.host_buffer(descriptor.nbytes)
        shape = descriptor.shape if self.graph.values[name].shape else ()  # which on the device is (1,)
        array: np.ndarray = raw.view(descriptor.dtype.numpy).reshape(shape)
        array[...] = 0
        return array

    def tensor(self, name: str) -> Tensor:
        """An input, an output or a constant on the device. What lies between them has been overwritten once a run is over.

        Raises:
            BadParamError: there is none of that name.
        """
        if name not in self.inputs and name not in self.graph.outputs and name not in self.graph.constant:
            raise BadParamError(f"net {self.graph.name!r} has no input, output or constant {name!r}")
        return self._tensors[name]

    def enqueue(self) -> None:
        """Enqueue one pass over what the input tensors hold now: one launch."""
        self._open().run()

    def _open(self) -> CapturedProgram:
        self._handle.check_owner()
        if self._program is None:
            raise ClosedError(f"the executor of net {self.graph.name!r} was closed")
        return self._program

    def run(
        self, feeds: Mapping[str, np.ndarray] | None = None, wanted: Sequence[str] | None = None
    ) -> Mapping[str, np.ndarray]:
        """Copy the inputs to the device, run, and wait for the outputs.

        Args:
            feeds: Arrays by name, copied into `inputs` first; what is not among them is taken as it is there.
            wanted: Names of the outputs that are copied to the host; None for all.

        Returns:
            The outputs by name; overwritten by the next run.

        Raises:
            BadParamError: an array is of another shape or dtype, or has the name of no input.
            ClosedError: this executor was closed.
        """
        program = self._open()
        for name, array in (feeds or {}).items():
            self._feed(name, array)
        device, stream = self._handle.device, self._handle.stream
        for name, buffer in self.inputs.items():
            device.copy_to_device(stream, self._tensors[name].address, buffer)
        program.run()
        results = {name: self._result(name) for name in (self.graph.outputs if wanted is None else wanted)}
        for name, result in results.items():
            device.copy_to_host(stream, result, self._tensors[name].address)
        stream.synchronize()
        return results

    def _result(self, name: str) -> np.ndarray:
        if name not in self._results:
            self._results[name] = self._host_array(name)
        return self._results[name]

    def _feed(self, name: str, array: np.ndarray) -> None:
        if name not in self.inputs:
            raise BadParamError(f"net {self.graph.name!r} has no input {name!r}; it has {', '.join(self.inputs)}")
        buffer = self.inputs[name]
        if array.shape != buffer.shape or array.dtype != buffer.dtype:
            raise BadParamError(
                f"{name} is {array.dtype}{list(array.shape)}, this executor takes {buffer.dtype}{list(buffer.shape)}"
            )
        buffer[...] = array

    def close(self) -> None:
        """Give activations and program back; a second call does nothing."""
        if self._program is not None:
            self._program.close()
            self._program = None
        self._arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


_BLOCK = "values"
