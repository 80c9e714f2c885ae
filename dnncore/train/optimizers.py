"""The methods: stochastic gradient descent, and four that give each weight a rate of its own, in Caffe's formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dnncore import Tensor, ops
from dnncore.train.optimizer import Move, Moves, OneByOne, Optimizer

__all__ = ["OPTIMIZERS", "SGD", "AdaDelta", "AdaGrad", "Adam", "RMSProp"]


class SGD(OneByOne):
    """SGD with momentum and Nesterov's variant, as PyTorch defines them, all parameters at once. Owned by one thread; checked.

        v = momentum * v + g;  w = w - lr * v,  or with Nesterov  w = w - lr * (g + momentum * v)

    or, one by one, as Caffe defines them, with the learning rate within v:

        v' = momentum * v + lr * g;  w = w - v',  or with Nesterov  w = w - ((1 + momentum) * v' - momentum * v)
    """

    def _slots(self) -> Sequence[str]:
        return ("",) if self.config.momentum else ()

    def _move(self, moves: Moves) -> None:
        config = self.config
        if config.momentum and config.momentum_style == "caffe":
            super()._move(moves)
            return
        velocities = moves.buffers[0] if moves.buffers else ()
        ops.momentum_step(
            self.handle,
            -moves.lr,
            moves.gradients,
            velocities,
            1.0,
            moves.weights,
            momentum=config.momentum,
            nesterov=config.nesterov,
            decay=moves.decay,
        )

    def _move_one(self, one: Move) -> None:
        """As Caffe defines it."""
        w, g, (v,), _, lr, _ = one
        ahead = self.config.momentum if self.config.nesterov else 0.0
        if ahead:
            ops.add(self.handle, ahead, v, 1.0, w)
        ops.add(self.handle, lr, g, self.config.momentum, v)
        ops.add(self.handle, -1.0 - ahead, v, 1.0, w)


class Adam(Optimizer):
    """Adam, all parameters at once. Owned by one thread; checked.

        m = momentum * m + (1 - momentum) * g;  v = momentum2 * v + (1 - momentum2) * g^2
        w = w - lr * sqrt(1 - momentum2^t) / (1 - momentum^t) * m / (sqrt(v) + epsilon)

    in the step t, from 1. PyTorch adds its epsilon to the corrected root: the same where gradients are much larger than epsilon.

    Source: arXiv 1412.6980, section 2, last paragraph, and Caffe's solver.
    """

    def _slots(self) -> Sequence[str]:
        return ("mean", "square")

    def _move(self, moves: Moves) -> None:
        first, second = self.config.momentum, self.config.momentum2
        means, squares = moves.buffers
        correction = math.sqrt(1 - second**moves.number) / (1 - first**moves.number)
        ops.adam_step(
            self.handle,
            -moves.lr * correction,
            moves.gradients,
            means,
            squares,
            1.0,
            moves.weights,
            momentum=first,
            momentum2=second,
            epsilon=self.config.epsilon,
            decay=moves.decay,
        )


class _Adaptive(OneByOne):
    """A method with averages of squares. Owned by one thread; checked."""

    def _average_squares(self, x: Tensor, keep: float, take: float, average: Tensor) -> None:
        """average = keep * average + take * x^2."""
        ops.binary(self.handle, "mul", take, x, 1.0, x, keep, average)


class AdaGrad(_Adaptive):
    """AdaGrad: h = h + g^2;  w = w - lr * g / (sqrt(h) + epsilon). Owned by one thread; checked."""

    scratch = 1

    def _slots(self) -> Sequence[str]:
        return ("square",)

    def _move_one(self, one: Move) -> None:
        w, g, (h,), (root,), lr, _ = one
        keep, take = self._shares()
        self._average_squares(g, keep, take, h)
        ops.set_tensor(self.handle, self.config.epsilon, root)
        ops.unary(self.handle, "sqrt", 1.0, h, 1.0, root)
        ops.binary(self.handle, "div", 1.0, g, 1.0, root, 0.0, g)
        ops.add(self.handle, -lr, g, 1.0, w)

    def _shares(self) -> tuple[float, float]:
        """What becomes of h, and of the square that comes."""
        return 1.0, 1.0


class RMSProp(AdaGrad):
    """RMSProp: h = rms_decay * h + (1 - rms_decay) * g^2;  w = w - lr * g / (sqrt(h) + epsilon). Owned by one thread; checked."""

    def _shares(self) -> tuple[float, float]:
        return self.config.rms_decay, 1 - self.config.rms_decay


class AdaDelta(_Adaptive):
    """AdaDelta. Owned by one thread; checked.

        h = momentum * h + (1 - momentum) * g^2;  u = g * sqrt((d + epsilon) / (h + epsilon))
        d = momentum * d + (1 - momentum) * u^2;  w = w - lr * u

    Source: arXiv 1212.5701, algorithm 1, where lr is 1.
    """

    scratch = 2

    def _slots(self) -> Sequence[str]:
        return ("square", "update")

    def _move_one(self, one: Move) -> None:
        w, g, (h, d), (above, below), lr, _ = one
        handle = self.handle
        keep = self.config.momentum
        self._average_squares(g, keep, 1 - keep, h)
        for squares, shifted in ((d, above), (h, below)):
            ops.set_tensor(handle, self.config.epsilon, shifted)
            ops.add(handle, 1.0, squares, 1.0, shifted)
        ops.binary(handle, "div", 1.0, above, 1.0, below, 0.0, above)
        ops.unary(handle, "sqrt", 1.0, above, 0.0, above)
        ops.binary(handle, "mul", 1.0, g, 1.0, above, 0.0, g)
        self._average_squares(g, keep, 1 - keep, d)
        ops.add(handle, -lr, g, 1.0, w)


OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adagrad": AdaGrad,
    "rmsprop": RMSProp,
    "adadelta": AdaDelta,
}
"""By `OptimizerConfig.kind`."""
