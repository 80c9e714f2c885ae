"""A net bound to a handle: activations, gradients, and the recorded programs that run it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.layer import Gradient
from dnncore.nn.parameters import Parameters
from dnncore.program import Program
from dnncore.tensor import Tensor

if TYPE_CHECKING:
    from dnncore.nn.net import Net

__all__ = ["Executor", "Phase"]


class Phase(Enum):
    """What a binding is for: TEST runs forward only, TRAIN keeps what the backward pass needs and has gradients."""

    TEST = "test"
    TRAIN = "train"


class Executor:
    """Runs a net on batches of one size. Owned by one thread; checked by the handle. Made by `Net.bind`.

    Args:
        net: What to run.
        handle: Where.
        parameters: Its learnable tensors on that handle; several executors may share them.
        batch: N, 1 or more.
        phase: Whether gradients are wanted.

    Attributes:
        input_buffer: Host array [N, *input_shape], page-locked on CUDA: write rows straight into it, then call `run`.
    """

    def __init__(self, net: Net, handle: Handle, parameters: Parameters, batch: int, phase: Phase) -> None:
        if batch < 1:
            raise BadParamError(f"batch {batch} must be 1 or more")
        self.net = net
        self.batch = batch
        self._handle = handle
        self._blobs: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._backward: Program | None = None
        try:
            for name, shape in net.blob_shapes().items():
                self._blobs[name] = handle.tensor((batch, *shape))
            self.input_buffer = self._host_array(self._blobs[net.input_name].descriptor)
            self._output_buffer = self._host_array(self.output.descriptor)
            with handle.record() as self._forward:
                for node in net.nodes:
                    inputs = [self._blobs[name] for name in node.inputs]
                    node.layer.forward(
                        handle, inputs, self._blobs[node.name], parameters.of_node(node.name, parameters.values)
                    )
            if phase is Phase.TRAIN:
                self._record_backward(parameters)
        except BaseException:
            self.close()  # a caller that tries a smaller batch next needs the room
            raise

    def _host_array(self, descriptor: TensorDescriptor) -> np.ndarray:
        raw = self._handle.device.host_buffer(descriptor.nbytes)
        array: np.ndarray = raw.view(descriptor.dtype.numpy).reshape(descriptor.shape)
        array[...] = 0
        return array

    def _record_backward(self, parameters: Parameters) -> None:
        net, handle = self.net, self._handle
        for node in net.nodes:
            self._gradients[node.name] = handle.tensor(self._blobs[node.name].descriptor)
        written: set[str] = {net.output_name}
        with handle.record() as backward:
            for node in reversed(net.nodes):
                if node.name not in written:
                    raise BadParamError(f"net {net.name!r}: nothing reads node {node.name!r}, so it cannot be trained")
                targets: list[Gradient | None] = []
                for name in node.inputs:
                    if name == net.input_name:
                        targets.append(None)
                        continue
                    targets.append(Gradient(self._gradients[name], 1.0 if name in written else 0.0))
                    written.add(name)
                node.layer.backward(
                    handle,
                    [self._blobs[name] for name in node.inputs],
                    self._blobs[node.name],
                    self._gradients[node.name],
                    parameters.of_node(node.name, parameters.values),
                    targets,
                    parameters.of_node(node.name, parameters.gradients),
                )
        self._backward = backward

    @property
    def output(self) -> Tensor:
        """The net's output [N, *output_shape], as of the last forward pass."""
        return self._blobs[self.net.output_name]

    @property
    def output_gradient(self) -> Tensor:
        """Where the caller puts the loss's gradient before `backward` (TRAIN only, else BadParamError)."""
        self._backward_pass()
        return self._gradients[self.net.output_name]

    def blob(self, name: str) -> Tensor:
        """Any blob by its name, as of the last forward pass."""
        return self._blobs[name]

    def forward(self, x: np.ndarray | None = None) -> Tensor:
        """Enqueue the copy of the input and the forward pass; the input buffer must stay as it is until the stream has passed.

        Args:
            x: Copied into `input_buffer` first; None takes what is there.
        """
        self._handle.check_owner()
        if x is not None:
            if x.shape != self.input_buffer.shape:
                raise BadParamError(f"x has shape {x.shape}, this executor takes {self.input_buffer.shape}")
            self.input_buffer[...] = x
        device, stream = self._handle.device, self._handle.stream
        device.copy_to_device(stream, self._blobs[self.net.input_name].address, self.input_buffer)
        self._forward.run()
        return self.output

    def backward(self) -> None:
        """Enqueue the backward pass from `output_gradient`; fills the parameters' gradients.

        Raises:
            BadParamError: the net was bound for Phase.TEST, or this executor was closed.
        """
        self._backward_pass().run()

    def _backward_pass(self) -> Program:
        if self._backward is None:
            raise BadParamError(
                f"this executor of net {self.net.name!r} has no backward pass: it was bound for Phase.TEST, or closed; bind the "
                "net with Phase.TRAIN"
            )
        return self._backward

    def run(self, x: np.ndarray | None = None) -> np.ndarray:
        """Forward, and wait for the output.

        Returns:
            float32 [N, *output_shape]; overwritten by the next run.
        """
        output = self.forward(x)
        device, stream = self._handle.device, self._handle.stream
        device.copy_to_host(stream, self._output_buffer, output.address)
        stream.synchronize()
        return self._output_buffer

    def close(self) -> None:
        """Give activations and gradients back; the parameters stay."""
        self._backward = None  # it holds addresses of what goes back
        for tensor in (*self._blobs.values(), *self._gradients.values()):
            tensor.close()
