"""The methods: stochastic gradient descent, and four that give each weight a rate of its own, in Caffe's formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dnncore import Tensor, ops
from dnncore.train.optimizer import Move, Optimizer

__all__ = ["OPTIMIZERS", "SGD", "AdaDelta", "AdaGrad", "Adam", "RMSProp"]


class SGD(Optimizer):
    """SGD with momentum and Nesterov's variant, as PyTorch defines them. Owned by one thread; checked.

        v = momentum * v + g;  w = w - lr * v,  or with Nesterov  w = w - lr * (g + momentum * v)

    or as Caffe defines them, with the learning rate within v:

        v' = momentum * v + lr * g;  w = w - v',  or with Nesterov  w = w - ((1 + momentum) * v' - momentum * v)
    """

    def _slots(self) -> Sequence[str]:
        return ("",) if self.config.momentum else ()

    def _move(self, one: Move) -> None:
        w, g, buffers, _, lr, _ = one
        handle, momentum, nesterov = self.handle, self.config.momentum, self.config.nesterov
        if not buffers:
            ops.add(handle, -lr, g, 1.0, w)
            return
        (v,) = buffers
        if self.config.momentum_style == "caffe":
            ahead = momentum if nesterov else 0.0
            if ahead:
                ops.add(handle, ahead, v, 1.0, w)
            ops.add(handle, lr, g, momentum, v)
            ops.add(handle, -1.0 - ahead, v, 1.0, w)
            return
        ops.add(handle, 1.0, g, momentum, v)
        if nesterov:
            ops.add(handle, -lr, g, 1.0, w)
            ops.add(handle, -lr * momentum, v, 1.0, w)
        else:
            ops.add(handle, -lr, v, 1.0, w)


class _Adaptive(Optimizer):
    """A method with averages of squares. Owned by one thread; checked."""

    def _average_squares(self, x: Tensor, keep: float, take: float, average: Tensor) -> None:
        """average = keep * average + take * x^2."""
        ops.binary(self.handle, "mul", take, x, 1.0, x, keep, average)

    def _scaled(self, x: Tensor, squares: Tensor, root: Tensor, out: Tensor) -> None:
        """out = x / (sqrt(squares) + epsilon); overwrites root, which neither may be."""
        ops.set_tensor(self.handle, self.config.epsilon, root)
        ops.unary(self.handle, "sqrt", 1.0, squares, 1.0, root)
        ops.binary(self.handle, "div", 1.0, x, 1.0, root, 0.0, out)


class Adam(_Adaptive):
    """Adam. Owned by one thread; checked.

        m = momentum * m + (1 - momentum) * g;  v = momentum2 * v + (1 - momentum2) * g^2
        w = w - lr * sqrt(1 - momentum2^t) / (1 - momentum^t) * m / (sqrt(v) + epsilon)

    in the step t, from 1. PyTorch adds its epsilon to the corrected root: the same where gradients are much larger than epsilon.

    Source: arXiv 1412.6980, section 2, last paragraph, and Caffe's solver.
    """

    scratch = 1

    def _slots(self) -> Sequence[str]:
        return ("mean", "square")

    def _move(self, one: Move) -> None:
        w, g, (m, v), (root,), lr, step = one
        first, second = self.config.momentum, self.config.momentum2
        ops.add(self.handle, 1 - first, g, first, m)
        self._average_squares(g, second, 1 - second, v)
        self._scaled(m, v, root, g)
        ops.add(self.handle, -lr * math.sqrt(1 - second**step) / (1 - first**step), g, 1.0, w)


class AdaGrad(_Adaptive):
    """AdaGrad: h = h + g^2;  w = w - lr * g / (sqrt(h) + epsilon). Owned by one thread; checked."""

    scratch = 1

    def _slots(self) -> Sequence[str]:
        return ("square",)

    def _move(self, one: Move) -> None:
        w, g, (h,), (root,), lr, _ = one
        keep, take = self._shares()
        self._average_squares(g, keep, take, h)
        self._scaled(g, h, root, g)
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

    def _move(self, one: Move) -> None:
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
