"""One iteration on a device: forward, loss, backward, update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dnncore import Handle, Tensor, ops
from dnncore.errors import DivergedError
from dnncore.nn import Executor, Net, Parameters, Phase
from dnncore.train.config import OptimizerConfig
from dnncore.train.optimizers import SGD

__all__ = ["Learner"]


@dataclass(frozen=True, slots=True)
class _Binding:
    """What one batch size needs."""

    executor: Executor
    labels: Tensor
    loss: Tensor

    def close(self) -> None:
        self.executor.close()
        self.labels.close()
        self.loss.close()


class Learner:
    """A net that learns: parameters, momenta, and executors for the batch sizes that come. Owned by one thread; checked.

    Args:
        handle: Where it learns.
        net: Ends in logits [N, K].
        weights: To start from.
        config: The optimizer's.
        momenta: To resume with; None starts from zeros.
    """

    def __init__(
        self,
        handle: Handle,
        net: Net,
        weights: Mapping[str, np.ndarray],
        config: OptimizerConfig,
        momenta: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._handle = handle
        self._net = net
        self._bindings: dict[int, _Binding] = {}
        self.parameters: Parameters = net.upload(handle, weights)
        self._optimizer = SGD(handle, self.parameters, config, momenta)

    def step(self, images: np.ndarray, labels: np.ndarray, lr: float) -> float:
        """Learn from one batch: the gradient of its mean cross-entropy, one update.

        Args:
            images: float32 [n, C, height, width].
            labels: int32 [n].
            lr: Learning rate.

        Returns:
            Sum of the images' losses before the update.

        Raises:
            DivergedError: that sum is not finite; the weights are as they were.
        """
        count = len(labels)
        binding = self._binding(count)
        executor = binding.executor
        binding.labels.assign(labels)
        logits = executor.forward(images)
        ops.cross_entropy_forward(self._handle, 1.0, logits, binding.labels, 0.0, binding.loss)
        loss = float(binding.loss.numpy().sum(dtype=np.float64))
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss}")
        ops.cross_entropy_backward(self._handle, 1 / count, logits, binding.labels, 0.0, executor.output_gradient)
        executor.backward()
        self._optimizer.update(lr)
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        """The weights now. Waits."""
        return self.parameters.download()

    def momenta(self) -> dict[str, np.ndarray]:
        """The optimizer's buffers now. Waits."""
        return self._optimizer.download()

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        for binding in self._bindings.values():
            binding.close()
        self._bindings.clear()
        self._optimizer.close()
        self.parameters.close()

    def _binding(self, batch: int) -> _Binding:
        if batch not in self._bindings:
            self._bindings[batch] = _Binding(
                Executor(self._net, self._handle, self.parameters, batch, Phase.TRAIN),
                self._handle.tensor((batch,), "int32"),
                self._handle.tensor((batch,)),
            )
        return self._bindings[batch]
