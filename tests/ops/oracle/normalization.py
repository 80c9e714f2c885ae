"""Normalisations: PyTorch's batch_norm, layer_norm, group_norm, rms_norm and local_response_norm, gradients from autograd.

Magnitudes. With m and v a group's mean and variance, i = 1 / sqrt(v + epsilon) and n = (x - m) i:

- m is a sum of n elements: its magnitude is the mean of |x|.
- x - m cancels where the mean is large beside the deviation: its magnitude is |x| + mean |x|, and that of n this times i.
- v is a sum of squares of such differences: an error e of a difference d moves it by 2 d e, so that its magnitude is the mean of
  2 |x - m| (|x| + mean |x|), and v itself. Where the mean is small this is a few times v.
- i moves by i/2 times the relative error of v + epsilon.
- The rest are sums of products of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from dnncore.descriptors import LRNDescriptor, LRNMode, TensorDescriptor
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    GroupNormBackwardProblem,
    GroupNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
    LRNBackwardProblem,
    LRNForwardProblem,
)
from dnncore.problems.normalization.batch_norm import batch_norm_axes
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs, from_numpy
from tests.ops.oracle.padding import pad

__all__: list[str] = []

_Backward = BatchNormBackwardProblem | GroupNormBackwardProblem | LayerNormBackwardProblem
_Forward = BatchNormForwardProblem | GroupNormForwardProblem | LayerNormForwardProblem
_EPSILON = 1e-4  # that the saved statistics of backward problems were made with, which do not tell


class _Groups:
    """x with each group's elements in one dimension, and back."""

    def __init__(self, problem: _Backward | _Forward) -> None:
        self.shape = problem.x.shape
        axes: tuple[int, ...]
        if isinstance(problem, BatchNormForwardProblem | BatchNormBackwardProblem):
            axes = batch_norm_axes(problem.x, problem.mode)
            self._cut = self.shape
        elif isinstance(problem, GroupNormForwardProblem | GroupNormBackwardProblem):
            n, c, *spatial = self.shape
            self._cut = (n, problem.groups, c // problem.groups, *spatial)
            axes = tuple(range(2, len(self._cut)))
        else:
            axes = tuple(range(problem.axis, problem.x.ndim))
            self._cut = self.shape
        self._axes = axes
        self.length = math.prod(self._cut[axis] for axis in axes)
        self.saved = problem.saved_inv_std.shape

    def mean(self, values: Tensor) -> Tensor:
        """Of each group, everywhere in it."""
        cut = values.reshape(self._cut)
        mean = cut.mean(self._axes, keepdim=True) if cut.numel() else cut.sum(self._axes, keepdim=True)
        return mean.expand(self._cut).reshape(self.shape)

    def each(self, values: Tensor) -> Tensor:
        """One value a group, of values that are the same everywhere in it."""
        first = tuple(slice(0, 1) if axis in self._axes else slice(None) for axis in range(len(self._cut)))
        return values.reshape(self._cut)[first].reshape(self.saved)


class _Spread:
    """Statistics and their magnitudes, everywhere in x."""

    def __init__(self, groups: _Groups, x: Tensor, epsilon: float, *, centred: bool) -> None:
        self.mean = groups.mean(x) if centred else torch.zeros_like(x)
        self.mean_magnitude = groups.mean(x.abs()) if centred else torch.zeros_like(x)
        distance = (x - self.mean).abs()
        self.variance = groups.mean(distance**2)
        self.inv_std = (self.variance + epsilon).rsqrt()
        difference = x.abs() + self.mean_magnitude
        self.variance_magnitude = self.variance + 2 * groups.mean(distance * difference)
        self.inv_std_magnitude = self.inv_std * (1 + self.variance_magnitude * self.inv_std**2 / 2)
        self.normalized_magnitude = difference * self.inv_std + distance * self.inv_std_magnitude


def _is_centred(problem: _Forward | _Backward) -> bool:
    return problem.saved_mean is not None


def _function(problem: _Forward | _Backward, epsilon: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """PyTorch's function of (x, scale, bias), these two as the problem has them, or None."""
    if isinstance(problem, BatchNormForwardProblem | BatchNormBackwardProblem):
        parameters = problem.scale.shape

        def batch_norm(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
            if not x.numel():  # which PyTorch refuses
                return x * scale + bias
            # Per activation every place is a channel. torch.batch_norm, unlike F.batch_norm, takes a single element too.
            flat = x if parameters[2:] == (1,) * len(parameters[2:]) else x.reshape(x.shape[0], scale.numel())
            y = torch.batch_norm(flat, scale.reshape(-1), bias.reshape(-1), None, None, True, 0.0, epsilon, False)
            return y.reshape(x.shape)

        return batch_norm
    if isinstance(problem, GroupNormForwardProblem | GroupNormBackwardProblem):
        groups = problem.groups
        return lambda x, scale, bias: torch.group_norm(x, groups, *map(_flat, (scale, bias)), epsilon)
    shape = problem.x.shape[problem.axis :]

    def layer_norm(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        weight, offset = (None if p is None else p.reshape(shape) for p in (scale, bias))
        if _is_centred(problem):
            return F.layer_norm(x, shape, weight, offset, epsilon)
        return F.rms_norm(x, shape, weight, epsilon)

    return layer_norm


def _flat(parameter: Tensor) -> Tensor:
    return None if parameter is None else parameter.reshape(-1)


def _one(parameter: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.float64) if parameter is None else parameter.abs()


@answers.register(BatchNormForwardProblem)
@answers.register(GroupNormForwardProblem)
@answers.register(LayerNormForwardProblem)
def _(problem: _Forward, *inputs: Tensor) -> list[Terms]:
    given = dict(zip(problem.input_names, inputs, strict=True))
    x, scale, bias = given["x"], given.get("scale"), given.get("bias")
    groups, n = _Groups(problem), _Groups(problem).length
    spread = _Spread(groups, x, problem.epsilon, centred=_is_centred(problem))
    y = _function(problem, problem.epsilon)(x, scale, bias)
    magnitude = _one(scale) * spread.normalized_magnitude + (0.0 if bias is None else bias.abs())
    if isinstance(problem, BatchNormForwardProblem) and problem.activation is not None:
        z = given.get("z", torch.zeros_like(x))
        y, magnitude = torch.relu(y + z), magnitude + z.abs()
    found: list[Terms] = [(y, magnitude.expand(x.shape), n)]
    if _is_centred(problem):
        found.append((groups.each(spread.mean), groups.each(spread.mean_magnitude), n))
    found.append((groups.each(spread.inv_std), groups.each(spread.inv_std_magnitude), n))
    if "running_mean" in given:
        assert isinstance(problem, BatchNormForwardProblem)
        means, variances = given["running_mean"].clone(), given["running_variance"].clone()
        flat = x.reshape(x.shape[0], means.numel(), n // max(x.shape[0], 1))
        if x.numel():
            torch.batch_norm(flat, None, None, means.view(-1), variances.view(-1), True, problem.momentum, 0.1, False)
        fresh, unbiased = problem.momentum, n / (n - 1)
        old_mean, old_variance = ((1 - fresh) * given[f"running_{name}"].abs() for name in ("mean", "variance"))
        found += [
            (means, old_mean + fresh * groups.each(spread.mean_magnitude), n),
            (variances, old_variance + fresh * unbiased * groups.each(spread.variance_magnitude), n),
        ]
    return found


@draw_inputs.register(BatchNormForwardProblem)
@draw_inputs.register(GroupNormForwardProblem)
@draw_inputs.register(LayerNormForwardProblem)
def _(problem: _Forward, rng: np.random.Generator) -> list[np.ndarray]:
    """x around 0.7, so that the mean counts; a variance that has been running is positive."""
    values = [draw(descriptor, rng) for descriptor in problem.inputs]
    values[0] = _off_centre(problem.x, rng)
    if "running_variance" in problem.input_names:
        values[-1] = np.abs(values[-1])
    return values


def _off_centre(x: TensorDescriptor, rng: np.random.Generator) -> np.ndarray:
    return (draw(x, rng).astype(np.float64) + 0.7).astype(x.dtype.numpy)


@draw_inputs.register(BatchNormBackwardProblem)
@draw_inputs.register(GroupNormBackwardProblem)
@draw_inputs.register(LayerNormBackwardProblem)
def _(problem: _Backward, rng: np.random.Generator) -> list[np.ndarray]:
    """Statistics are those of the x that is drawn."""
    values = {name: draw(descriptor, rng) for name, descriptor in zip(problem.input_names, problem.inputs, strict=True)}
    values["x"] = _off_centre(problem.x, rng)
    groups = _Groups(problem)
    spread = _Spread(groups, from_numpy(values["x"]), _EPSILON, centred=_is_centred(problem))
    dtype = problem.saved_inv_std.dtype.numpy
    values["saved_inv_std"] = groups.each(spread.inv_std).numpy().astype(dtype)
    if _is_centred(problem):
        values["saved_mean"] = groups.each(spread.mean).numpy().astype(dtype)
    if "y" in values:
        y = from_numpy(values["y"])
        if "bias" in values:  # of which and x the sign follows
            y = _function(problem, _EPSILON)(*(from_numpy(values[name]) for name in ("x", "scale", "bias")))
        values["y"] = torch.relu(y).numpy().astype(problem.x.dtype.numpy)
    return list(values.values())


@answers.register(BatchNormBackwardProblem)
@answers.register(GroupNormBackwardProblem)
@answers.register(LayerNormBackwardProblem)
def _(problem: _Backward, *inputs: Tensor) -> list[Terms]:
    given = dict(zip(problem.input_names, inputs, strict=True))
    x, dy, scale = given["x"], given["dy"], given.get("scale")
    if "y" in given:
        dy = torch.where(given["y"] > 0, dy, 0.0)
    leaves = {"dx": x.clone().requires_grad_()}
    asked = tuple(name for name in problem.output_names if name in ("dscale", "dbias"))
    shapes = {name: getattr(problem, name).shape for name in asked}
    wanted = torch.ones(shapes["dscale"], dtype=torch.float64) if "dscale" in asked and scale is None else scale
    if wanted is not None:
        leaves["dscale"] = wanted.clone().requires_grad_()
    # PyTorch's batch normalisation takes a bias always; its value has no influence on gradients.
    if "dbias" in asked:
        leaves["dbias"] = torch.zeros(shapes["dbias"], dtype=torch.float64).requires_grad_()
    y = _function(problem, _EPSILON)(leaves["dx"], leaves.get("dscale"), leaves.get("dbias"))
    gradients = dict(zip(leaves, torch.autograd.grad(y, list(leaves.values()), dy), strict=True))

    groups = _Groups(problem)
    spread = _Spread(groups, x, _EPSILON, centred=_is_centred(problem))
    normalized, weighted = spread.normalized_magnitude, (dy.abs() * _one(scale)).expand(x.shape)
    inside = weighted + groups.mean(weighted) + normalized * groups.mean(weighted * normalized)
    found: list[Terms] = [(gradients["dx"], spread.inv_std * inside, groups.length)]
    for name in asked:
        shared = tuple(axis for axis, extent in enumerate(shapes[name]) if extent == 1)
        terms = (dy.abs() * normalized if name == "dscale" else dy.abs()).sum(shared, keepdim=True)
        value, magnitude = (problem.parameter_alpha * gradients[name], abs(problem.parameter_alpha) * terms)
        if problem.parameter_beta:
            old = given[f"old_{name}"]
            value, magnitude = (
                value + problem.parameter_beta * old,
                magnitude + abs(problem.parameter_beta) * old.abs(),
            )
        found.append((value, magnitude, x.numel() // max(value.numel(), 1)))
    if "dz" in problem.output_names:
        found.append((dy, dy.abs(), 1))
    return found


@draw_inputs.register
def _(problem: BatchNormInferenceProblem, rng: np.random.Generator) -> list[np.ndarray]:
    values = [draw(descriptor, rng) for descriptor in problem.inputs]
    return [*values[:-1], np.abs(values[-1])]


@answers.register
def _(
    problem: BatchNormInferenceProblem, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Terms:
    if not x.numel():  # which PyTorch refuses
        return x, x, 2
    per_activation = x.shape[0] * mean.numel() == x.numel()
    flat = x.reshape(x.shape[0], mean.numel()) if per_activation else x
    means, variances, scales, biases = (p.reshape(-1) for p in (mean, variance, scale, bias))
    value = F.batch_norm(flat, means, variances, scales, biases, False, 0.0, problem.epsilon).reshape(x.shape)
    magnitude = scale.abs() * (x.abs() + mean.abs()) * (variance + problem.epsilon).rsqrt() + bias.abs()
    return value, magnitude.expand(x.shape), 2


def _windows(values: Tensor, lrn: LRNDescriptor, before: int, after: int) -> Tensor:
    """The sum over each element's window, unfolded after padding with zeros."""
    across = lrn.mode is LRNMode.ACROSS_CHANNELS
    axes = (1,) if across else tuple(range(2, values.ndim))
    for axis in axes:
        moved = values.movedim(axis, -1)
        padded = pad(moved, ((before, after),))
        values = padded.unfold(-1, lrn.n, 1).sum(-1).movedim(-1, axis)
    return values


def _share(lrn: LRNDescriptor, ndim: int) -> float:
    return lrn.alpha / (lrn.n if lrn.mode is LRNMode.ACROSS_CHANNELS else lrn.n ** (ndim - 2))


def _lrn(x: Tensor, lrn: LRNDescriptor) -> Tensor:
    if lrn.mode is LRNMode.ACROSS_CHANNELS and lrn.n % 2 and x.ndim > 2 and x.numel():
        return F.local_response_norm(x, lrn.n, lrn.alpha, lrn.beta, lrn.k)
    # PyTorch's window of an even size is shifted by one against cuDNN's, and it has none within a channel.
    return x / (lrn.k + _share(lrn, x.ndim) * _windows(x**2, lrn, lrn.before, lrn.after)) ** lrn.beta


def _terms(lrn: LRNDescriptor, ndim: int) -> int:
    return round(lrn.alpha / _share(lrn, ndim)) if lrn.alpha else 1


@answers.register
def _(problem: LRNForwardProblem, x: Tensor) -> Terms:
    value = _lrn(x, problem.lrn)
    # The sum has terms of one sign; its relative error comes through the power times the exponent.
    return value, value.abs() * (1 + problem.lrn.beta), _terms(problem.lrn, x.ndim)


@draw_inputs.register
def _(problem: LRNBackwardProblem, rng: np.random.Generator) -> list[np.ndarray]:
    x = draw(problem.x, rng)
    return [_lrn(from_numpy(x), problem.lrn).numpy().astype(x.dtype), draw(problem.dy, rng), x]


@answers.register
def _(problem: LRNBackwardProblem, _y: Tensor, dy: Tensor, x: Tensor) -> Terms:
    lrn = problem.lrn
    leaf = x.clone().requires_grad_()
    (value,) = torch.autograd.grad(_lrn(leaf, lrn), leaf, dy)
    share = _share(lrn, x.ndim)
    base = lrn.k + share * _windows(x**2, lrn, lrn.before, lrn.after)
    neighbours = _windows((dy * x).abs() * base ** (-lrn.beta - 1), lrn, lrn.after, lrn.before)
    magnitude = dy.abs() * base**-lrn.beta + 2 * lrn.beta * share * x.abs() * neighbours
    return value, magnitude * (2 + lrn.beta), _terms(lrn, x.ndim)
