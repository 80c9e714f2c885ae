"""What all optimizers share: multipliers, penalties, clipping, and buffers that a checkpoint keeps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from dnncore import Handle, Tensor, ops
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import CheckpointError
from dnncore.nn.trainable import Multipliers
from dnncore.train.config import OptimizerConfig

__all__ = ["Move", "Moves", "OneByOne", "Optimizer"]

_ONE = Multipliers()


class Moves(NamedTuple):
    """The step of parameters that share a learning rate and a decay. Immutable.

    Args:
        weights: The parameters.
        gradients: One for each, described alike; may be overwritten.
        buffers: Of each slot of the optimizer, likewise.
        lr: Their learning rate.
        decay: What the weights are multiplied by before they are added to the gradients.
        number: Of the step, from 1.
    """

    weights: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    buffers: tuple[tuple[Tensor, ...], ...]
    lr: float
    decay: float
    number: int


class Move(NamedTuple):
    """The step of one parameter. Immutable.

    Args:
        w: The parameter.
        g: Its gradient, penalty included; may be overwritten.
        buffers: Those of the optimizer's slots.
        scratch: As many as its `scratch` says, of any content.
        lr: Its learning rate.
        number: Of the step, from 1.
    """

    w: Tensor
    g: Tensor
    buffers: tuple[Tensor, ...]
    scratch: tuple[Tensor, ...]
    lr: float
    number: int


class Optimizer(ABC):
    """Moves parameters by their gradients, on the device. Owned by one thread; checked.

    Of a step, first all gradients are made shorter together, if their norm is above `config.clip_norm`; then each gets its penalty,
    weight_decay * w or weight_decay * sign(w); then each parameter is moved. Biases and scales, which are vectors, have no penalty
    unless the configuration says so. A parameter's multipliers are factors of the learning rate and of weight_decay.

    Args:
        handle: Whose device holds the parameters.
        parameters: What is updated, by name.
        config: What the method is told; its learning rate is the schedule's business.
        state: Buffers to resume with, as `download` gives them; None starts from zeros.
        multipliers: By name; 1 for parameters that are not among them.

    Raises:
        CheckpointError: the buffers are not those of the parameters.
    """

    def __init__(
        self,
        handle: Handle,
        parameters: Mapping[str, Tensor],
        config: OptimizerConfig,
        state: Mapping[str, np.ndarray] | None = None,
        multipliers: Mapping[str, Multipliers] | None = None,
    ) -> None:
        self.handle = handle
        self.config = config
        self._parameters = parameters
        self._multipliers = multipliers or {}
        self._buffers: dict[str, tuple[Tensor, ...]] = {}
        self._relaid: dict[str, Tensor] = {}
        shapes = {key: w.shape for name, w in parameters.items() for key in self._keys(name)}
        if state is not None and {key: array.shape for key, array in state.items()} != shapes:
            raise CheckpointError(f"momentum of {sorted(state)} does not fit the parameters {shapes}")
        for name, w in parameters.items():
            self._buffers[name] = tuple(handle.tensor(w.descriptor) for _ in self._slots())
            for key, buffer in zip(self._keys(name), self._buffers[name], strict=True):
                buffer.assign(np.zeros(w.shape, w.dtype.numpy) if state is None else state[key])
        self._norms = handle.tensor((len(parameters),)) if config.clip_norm and parameters else None

    @abstractmethod
    def _slots(self) -> Sequence[str]:
        """Names of a parameter's buffers; "" for one that checkpoints name as the parameter."""

    @abstractmethod
    def _move(self, moves: Moves) -> None:
        """Enqueue the step of parameters that have all in common but themselves."""

    def update(self, gradients: Mapping[str, Tensor], base_lr: float, step: int) -> None:
        """Enqueue one step.

        Args:
            gradients: By parameter; used as scratch.
            base_lr: Learning rate.
            step: Which one it is, from 1.
        """
        self._clip([gradients[name] for name in self._parameters])
        groups: dict[tuple[float, float], list[str]] = {}
        alike = {name: self._alike(name, gradients[name]) for name in self._parameters}
        for name, w in self._parameters.items():
            decay = self._decay(name)
            if decay and self.config.penalty == "l1":
                ops.unary(self.handle, "sign", decay, w, 1.0, alike[name])
                decay = 0.0
            groups.setdefault((base_lr * self._multipliers.get(name, _ONE).lr, decay), []).append(name)
        for (lr, decay), names in groups.items():
            weights, found = tuple(self._parameters[name] for name in names), tuple(alike[name] for name in names)
            buffers = tuple(zip(*(self._buffers[name] for name in names), strict=True))
            self._move(Moves(weights, found, buffers, lr, decay, step))

    def _decay(self, name: str) -> float:
        """What a parameter's penalty is multiplied by; 0 for none."""
        has_one = self.config.decay_biases or len(self._parameters[name].shape) > 1
        return self.config.weight_decay * self._multipliers.get(name, _ONE).decay if has_one else 0.0

    def _alike(self, name: str, gradient: Tensor) -> Tensor:
        """The gradient in the layout of its parameter."""
        descriptor = self._parameters[name].descriptor
        if gradient.descriptor == descriptor:
            return gradient
        if name not in self._relaid:
            self._relaid[name] = self.handle.tensor(descriptor)
        ops.transform(self.handle, 1.0, gradient, 0.0, self._relaid[name])
        return self._relaid[name]

    def _clip(self, gradients: Sequence[Tensor]) -> None:
        """Make all gradients shorter by one factor where their norm together is above the limit; waits for it."""
        if self._norms is None:
            return
        for place, g in enumerate(gradients):
            one = TensorDescriptor.packed((1,) * g.ndim, g.dtype)
            ops.reduce(self.handle, "norm2", 1.0, g, 0.0, self._norms.view(one, place))
        norm = float(np.linalg.norm(self._norms.numpy().astype(np.float64)))
        if math.isfinite(norm) and norm > self.config.clip_norm:
            for g in gradients:
                ops.scale_tensor(self.handle, self.config.clip_norm / norm, g)

    def download(self) -> dict[str, np.ndarray]:
        """The buffers for a checkpoint; none for a method that has none. Waits."""
        return {
            key: buffer.numpy()
            for name, buffers in self._buffers.items()
            for key, buffer in zip(self._keys(name), buffers, strict=True)
        }

    def _keys(self, parameter: str) -> list[str]:
        return [f"{slot}/{parameter}" if slot else parameter for slot in self._slots()]

    def close(self) -> None:
        """Give the buffers back; a second call does nothing."""
        for buffer in (*self._relaid.values(), *(one for buffers in self._buffers.values() for one in buffers)):
            buffer.close()
        if self._norms is not None:
            self._norms.close()
        self._buffers.clear()
        self._relaid.clear()
        self._norms = None


class OneByOne(Optimizer):
    """Moves one parameter after the other, by operations on tensors. Owned by one thread; checked. Its arguments are an
    `Optimizer`'s.
    """

    scratch: ClassVar[int] = 0
    """Tensors of a parameter's shape that `_move_one` may write to."""

    def __init__(
        self,
        handle: Handle,
        parameters: Mapping[str, Tensor],
        config: OptimizerConfig,
        state: Mapping[str, np.ndarray] | None = None,
        multipliers: Mapping[str, Multipliers] | None = None,
    ) -> None:
        super().__init__(handle, parameters, config, state, multipliers)
        largest = max((w.descriptor.size for w in parameters.values()), default=0)
        self._shared = [handle.tensor((largest,)) for _ in range(self.scratch)]

    @abstractmethod
    def _move_one(self, one: Move) -> None:
        """Enqueue the step of one parameter."""

    def _move(self, moves: Moves) -> None:
        for place, (w, g) in enumerate(zip(moves.weights, moves.gradients, strict=True)):
            if moves.decay:
                ops.add(self.handle, moves.decay, w, 1.0, g)
            scratch = tuple(tensor.view(w.descriptor) for tensor in self._shared)
            buffers = tuple(slot[place] for slot in moves.buffers)
            self._move_one(Move(w, g, buffers, scratch, moves.lr, moves.number))

    def close(self) -> None:
        """Give the buffers back; a second call does nothing."""
        super().close()
        for tensor in self._shared:
            tensor.close()
        self._shared.clear()
