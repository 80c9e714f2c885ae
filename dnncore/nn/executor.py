"""A net bound to a handle: activations and gradients in arenas, and the captured programs that run it."""

from __future__ import annotations

from enum import Enum

import numpy as np

from dnncore.arena import Arena
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.layer import Gradient
from dnncore.nn.net import Net
from dnncore.nn.parameters import Parameters
from dnncore.program import CapturedProgram
from dnncore.tensor import Tensor

__all__ = ["Executor", "Phase"]


class Phase(Enum):
    """What a binding is for: TEST runs forward only, TRAIN keeps what the backward pass needs and has gradients."""

    TEST = "test"
    TRAIN = "train"


class Executor:
    """A net bound to a handle, for batches of one size. Owned by one thread; checked by the handle.

    Making one allocates activations for a batch, chooses every algorithm and captures the passes.

    Args:
        net: What to run.
        handle: Where.
        parameters: Its learnable tensors on that handle; several executors may share them.
        batch: N, 1 or more.
        phase: Whether gradients are wanted.

    Raises:
        OutOfMemoryError: the device has no room; what was allocated until then has been given back.

    Attributes:
        input_buffer: Host array [N, *input_shape], page-locked on CUDA: write rows straight into it, then call `run`.
    """

    def __init__(self, net: Net, handle: Handle, parameters: Parameters, batch: int, phase: Phase) -> None:
        if batch < 1:
            raise BadParamError(f"batch {batch} must be 1 or more")
        self.net = net
        self.batch = batch
        self._handle = handle
        self._blobs = handle.arena(
            {name: TensorDescriptor.packed((batch, *shape)) for name, shape in net.blob_shapes().items()}
        )
        self._gradients: Arena | None = None
        self._forward: CapturedProgram | None = None
        self._backward: CapturedProgram | None = None
        try:
            self.input_buffer = self._host_array(self._blobs[net.input_name].descriptor)
            self._output_buffer = self._host_array(self.output.descriptor)
            with handle.record() as forward:
                for node in net.nodes:
                    inputs = [self._blobs[name] for name in node.inputs]
                    node.layer.forward(
                        handle, inputs, self._blobs[node.name], parameters.of_node(node.name, parameters.values)
                    )
            self._forward = forward.capture()
            if phase is Phase.TRAIN:
                self._capture_backward(parameters)
        except BaseException:
            self.close()  # a caller that tries a smaller batch next needs the room
            raise

    def _host_array(self, descriptor: TensorDescriptor) -> np.ndarray:
        raw = self._handle.device.host_buffer(descriptor.nbytes)
        array: np.ndarray = raw.view(descriptor.dtype.numpy).reshape(descriptor.shape)
        array[...] = 0
        return array

    def _capture_backward(self, parameters: Parameters) -> None:
        net, handle = self.net, self._handle
        gradients = handle.arena({node.name: self._blobs[node.name].descriptor for node in net.nodes})
        self._gradients = gradients
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
                    targets.append(Gradient(gradients[name], 1.0 if name in written else 0.0))
                    written.add(name)
                node.layer.backward(
                    handle,
                    [self._blobs[name] for name in node.inputs],
                    self._blobs[node.name],
                    gradients[node.name],
                    parameters.of_node(node.name, parameters.values),
                    targets,
                    parameters.of_node(node.name, parameters.gradients),
                )
        self._backward = backward.capture()

    @property
    def output(self) -> Tensor:
        """The net's output [N, *output_shape], as of the last forward pass."""
        return self._blobs[self.net.output_name]

    @property
    def output_gradient(self) -> Tensor:
        """Where the caller puts the loss's gradient before `backward` (TRAIN only, else BadParamError)."""
        self._backward_pass()
        assert self._gradients is not None
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
        assert self._forward is not None
        self._forward.run()
        return self.output

    def backward(self) -> None:
        """Enqueue the backward pass from `output_gradient`; fills the parameters' gradients.

        Raises:
            BadParamError: the net was bound for Phase.TEST, or this executor was closed.
        """
        self._backward_pass().run()

    def _backward_pass(self) -> CapturedProgram:
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
        for resource in (self._forward, self._backward, self._blobs, self._gradients):
            if resource is not None:
                resource.close()
        self._backward = None
