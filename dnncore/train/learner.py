"""One iteration on a device: forward, loss, backward, update."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dnncore import Handle
from dnncore.errors import DivergedError
from dnncore.nn import Executor, Graph, Parameters
from dnncore.nn.trainable import Trainable
from dnncore.nn.training import LABELS, LOSS, dropout_states, for_training
from dnncore.train.config import OptimizerConfig
from dnncore.train.optimizers import OPTIMIZERS

__all__ = ["Learner"]


class Learner:
    """A net that learns: parameters, momenta, and executors for the batch sizes that come. Owned by one thread; checked.

    Args:
        handle: Where it learns.
        net: Ends in logits [N, K], or has several heads.
        weights: To start from.
        config: The optimizer's.
        momenta: To resume with; None starts from zeros.
        seed: Of dropout.
    """

    def __init__(
        self,
        handle: Handle,
        net: Graph | Trainable,
        weights: Mapping[str, np.ndarray],
        config: OptimizerConfig,
        momenta: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
    ) -> None:
        self._seed = seed
        self._handle = handle
        graph = net if isinstance(net, Graph) else net.graph
        (self._data,) = [value.name for value in graph.inputs]
        self._training = for_training(net)
        self._executors: dict[int, Executor] = {}
        self.parameters = Parameters.upload(handle, graph, weights)
        trainable = {name: self.parameters.values[name] for name in self._training.gradients}
        multipliers = {} if isinstance(net, Graph) else net.multipliers
        self._optimizer = OPTIMIZERS[config.kind](handle, trainable, config, momenta, multipliers)

    def step(self, images: np.ndarray, labels: np.ndarray, lr: float, iteration: int = 0) -> float:
        """Learn from one batch: the gradient of its mean cross-entropy, one update.

        Args:
            images: float32 [n, C, height, width].
            labels: int32 [n].
            lr: Learning rate.
            iteration: Steps before this one: with the seed it says what dropout drops, and some optimizers count them.

        Returns:
            Sum of the images' losses before the update, those of all heads in it.

        Raises:
            DivergedError: that sum is not finite; the weights are as they were, running statistics are not.
        """
        count = len(labels)
        if count not in self._executors:
            self._executors[count] = Executor(self._training.graph, self._handle, self.parameters, count)
        executor = self._executors[count]
        feeds = {self._data: images, LABELS: labels, **dropout_states(self._training.graph, self._seed, iteration)}
        loss = float(executor.run(feeds, (LOSS,))[LOSS].sum(dtype=np.float64))
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss}")
        gradients = {name: executor.tensor(gradient) for name, gradient in self._training.gradients.items()}
        self._optimizer.update(gradients, lr, iteration + 1)
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        """The weights now. Waits."""
        return self.parameters.download()

    def momenta(self) -> dict[str, np.ndarray]:
        """The optimizer's buffers now. Waits."""
        return self._optimizer.download()

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        for executor in self._executors.values():
            executor.close()
        self._executors.clear()
        self._optimizer.close()
        self.parameters.close()
