"""Stochastic gradient descent; the updates run on the device, through dnncore.ops.add."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dnncore import Handle, Tensor, ops
from dnncore.errors import CheckpointError
from dnncore.nn.trainable import Multipliers
from dnncore.train.config import OptimizerConfig

__all__ = ["SGD"]

_ONE = Multipliers()


class SGD:
    """SGD with momentum, Nesterov's variant and weight decay, as PyTorch defines them. Owned by one thread; checked.

        g = g + weight_decay * w;  v = momentum * v + g;  w = w - lr * v,  or with Nesterov  w = w - lr * (g + momentum * v)

    or as Caffe defines them, with the learning rate within v:

        v' = momentum * v + lr * g;  w = w - v',  or with Nesterov  w = w - ((1 + momentum) * v' - momentum * v)

    Biases and scales, which are vectors, are not decayed unless the configuration says so. A parameter's multipliers are factors of
    lr and of weight_decay.

    Args:
        handle: Whose device holds the parameters.
        parameters: What is updated, by name.
        config: Momentum and weight decay; its learning rate is the schedule's business.
        momenta: v by name, to resume with; None starts from zeros.
        multipliers: By name; 1 for parameters that are not among them.

    Raises:
        CheckpointError: momenta are not those of the parameters.
    """

    def __init__(
        self,
        handle: Handle,
        parameters: Mapping[str, Tensor],
        config: OptimizerConfig,
        momenta: Mapping[str, np.ndarray] | None = None,
        multipliers: Mapping[str, Multipliers] | None = None,
    ) -> None:
        self._handle = handle
        self._parameters = parameters
        self._config = config
        self._multipliers = multipliers or {}
        self._momenta: dict[str, Tensor] = {}
        if config.momentum == 0:
            return
        shapes = {name: value.shape for name, value in parameters.items()}
        if momenta is None:
            momenta = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        elif {name: array.shape for name, array in momenta.items()} != shapes:
            raise CheckpointError(f"momentum of {sorted(momenta)} does not fit the parameters {shapes}")
        for name, value in parameters.items():
            self._momenta[name] = handle.tensor(value.descriptor)
            self._momenta[name].assign(momenta[name])

    def update(self, gradients: Mapping[str, Tensor], base_lr: float) -> None:
        """Enqueue one step.

        Args:
            gradients: By parameter; used as scratch: afterwards they include the weight decay.
            base_lr: Learning rate.
        """
        handle, momentum = self._handle, self._config.momentum
        for name, w in self._parameters.items():
            g = gradients[name]
            own = self._multipliers.get(name, _ONE)
            lr, decay = base_lr * own.lr, self._config.weight_decay * own.decay
            if decay and (self._config.decay_biases or len(w.shape) > 1):
                ops.add(handle, decay, w, 1.0, g)
            if momentum == 0:
                ops.add(handle, -lr, g, 1.0, w)
                continue
            v = self._momenta[name]
            if self._config.momentum_style == "caffe":
                self._move_as_caffe(w, v, g, lr)
                continue
            ops.add(handle, 1.0, g, momentum, v)
            if self._config.nesterov:
                ops.add(handle, -lr, g, 1.0, w)
                ops.add(handle, -lr * momentum, v, 1.0, w)
            else:
                ops.add(handle, -lr, v, 1.0, w)

    def _move_as_caffe(self, w: Tensor, v: Tensor, g: Tensor, lr: float) -> None:
        handle, momentum = self._handle, self._config.momentum
        ahead = momentum if self._config.nesterov else 0.0
        if ahead:
            ops.add(handle, ahead, v, 1.0, w)
        ops.add(handle, lr, g, momentum, v)
        ops.add(handle, -1.0 - ahead, v, 1.0, w)

    def download(self) -> dict[str, np.ndarray]:
        """v by name, for a checkpoint; empty without momentum. Waits."""
        return {name: v.numpy() for name, v in self._momenta.items()}

    def close(self) -> None:
        """Give the buffers back; a second call does nothing."""
        for v in self._momenta.values():
            v.close()
        self._momenta.clear()
