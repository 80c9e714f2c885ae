"""Calls that mean the same in dnncore.functional and in PyTorch: a function's name, its operands and its settings, all by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dnncore import functional
from dnncore.functional import unary

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A call. Immutable.

    Args:
        name: Of the function.
        operands: Shapes of the tensors, by name.
        settings: Everything else.
        classes: Extents that integers are below, by the name of an operand of integers.
        positive: Names of operands that are variances, say.
    """

    name: str
    operands: dict[str, Shape]
    settings: dict[str, Any] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    positive: tuple[str, ...] = ()

    def __str__(self) -> str:
        shapes = "-".join("x".join(map(str, shape)) for shape in self.operands.values())
        settings = "-".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.name}-{shapes}" + (f"-{settings}" if settings else "")

    @property
    def ours(self) -> Callable[..., Any]:
        """Ours."""
        found: Callable[..., Any] = getattr(functional, self.name)
        return found

    @property
    def theirs(self) -> Callable[..., Any]:
        """PyTorch's."""
        theirs: Any = torch.nn.functional
        found: Callable[..., Any] = getattr(theirs, self.name, None) or getattr(torch, self.name)
        return found

    def arrays(self, dtype: str = "float64") -> dict[str, np.ndarray]:
        """Operands, seeded."""
        random = np.random.default_rng(len(str(self)))
        made: dict[str, np.ndarray] = {}
        for name, shape in self.operands.items():
            if name in self.classes:
                made[name] = random.integers(0, self.classes[name], shape, np.int64)
            elif name in self.positive:
                made[name] = random.uniform(0.5, 2, shape).astype(dtype)
            else:
                made[name] = random.standard_normal(shape).astype(dtype)
        return made


def _c(name: str, *operands: tuple[str, Shape], **settings: Any) -> Case:
    return Case(name, dict(operands), settings)


def _x(*shape: int) -> tuple[str, Shape]:
    return "input", shape


def _w(*shape: int) -> tuple[str, Shape]:
    return "weight", shape


def _b(*shape: int) -> tuple[str, Shape]:
    return "bias", shape


def _other(*shape: int) -> tuple[str, Shape]:
    return "other", shape


CONVOLUTION = (
    _c("conv1d", _x(2, 3, 9), _w(4, 3, 3), _b(4), padding=1, stride=2),
    _c("conv1d", _x(3, 9), _w(4, 3, 3), padding="same", dilation=2),
    _c("conv2d", _x(2, 3, 8, 7), _w(4, 3, 3, 2)),
    _c("conv2d", _x(2, 3, 8, 7), _w(4, 3, 3, 3), _b(4), stride=(2, 1), padding=[1, 2], dilation=2),
    _c("conv2d", _x(2, 4, 6, 6), _w(6, 2, 3, 3), _b(6), groups=2, padding="valid"),
    _c("conv2d", _x(2, 4, 6, 6), _w(6, 4, 4, 3), _b(6), padding="same", dilation=(1, 2)),
    _c("conv2d", _x(3, 8, 7), _w(4, 3, 3, 3), _b(4)),
    _c("conv3d", _x(1, 2, 5, 4, 6), _w(3, 2, 2, 3, 3), _b(3), padding=1),
    _c("conv3d", _x(2, 5, 4, 6), _w(3, 2, 2, 3, 3), stride=2),
    _c("conv_transpose1d", _x(2, 4, 5), _w(4, 3, 3), _b(3), stride=2, output_padding=1),
    _c("conv_transpose2d", _x(2, 4, 5, 4), _w(4, 3, 3, 3), _b(3), stride=2, padding=1, output_padding=1),
    _c("conv_transpose2d", _x(2, 4, 5, 4), _w(4, 3, 3, 2), groups=2, dilation=2),
    _c("conv_transpose2d", _x(4, 5, 4), _w(4, 3, 3, 2), _b(3)),
    _c("conv_transpose3d", _x(1, 2, 3, 2, 3), _w(2, 3, 2, 2, 2), _b(3), stride=(2, 1, 2)),
    _c("unfold", _x(2, 3, 7, 6), kernel_size=3, dilation=1, padding=1, stride=2),
    _c("unfold", _x(3, 7, 6), kernel_size=(2, 3)),
    _c("fold", _x(2, 12, 20), output_size=(5, 6), kernel_size=2),
    _c("fold", _x(2, 27, 12), output_size=(7, 6), kernel_size=(3, 3), padding=1, stride=2),
    _c("fold", _x(12, 20), output_size=(5, 6), kernel_size=2),
)

POOLING = (
    _c("max_pool1d", _x(2, 3, 9), kernel_size=3),
    _c("max_pool2d", _x(2, 3, 8, 7), kernel_size=2),
    _c("max_pool2d", _x(2, 3, 8, 7), kernel_size=(3, 2), stride=2, padding=1, ceil_mode=True),
    _c("max_pool2d", _x(3, 8, 7), kernel_size=3, stride=1),
    _c("max_pool3d", _x(1, 2, 5, 6, 7), kernel_size=[2, 3, 2], padding=1),
    _c("avg_pool1d", _x(2, 3, 9), kernel_size=2, stride=3, ceil_mode=True),
    _c("avg_pool2d", _x(2, 3, 8, 7), kernel_size=3, stride=2, padding=1),
    _c("avg_pool2d", _x(2, 3, 8, 7), kernel_size=3, stride=2, padding=1, count_include_pad=False),
    _c("avg_pool2d", _x(2, 3, 8, 7), kernel_size=3, stride=2, padding=1, ceil_mode=True),
    _c("avg_pool2d", _x(2, 3, 8, 7), kernel_size=3, padding=1, divisor_override=4),
    _c("avg_pool2d", _x(2, 3, 8, 7), kernel_size=2, count_include_pad=False, divisor_override=4),
    _c("avg_pool3d", _x(2, 5, 6, 7), kernel_size=2),
    _c("adaptive_avg_pool1d", _x(2, 3, 12), output_size=4),
    _c("adaptive_avg_pool2d", _x(2, 3, 8, 6), output_size=1),
    _c("adaptive_avg_pool2d", _x(2, 3, 8, 5), output_size=(2, None)),
    _c("adaptive_avg_pool2d", _x(3, 5, 3), output_size=(4, 2)),
    _c("adaptive_avg_pool3d", _x(2, 3, 4, 6, 2), output_size=(2, 3, 1)),
    _c("max_pool1d", _x(2, 3, 9), kernel_size=3, stride=1, padding=1, dilation=3),
    _c("max_pool2d", _x(2, 3, 9, 8), kernel_size=3, dilation=2),
    _c("max_pool2d", _x(2, 3, 9, 8), kernel_size=(3, 2), stride=(1, 2), padding=1, dilation=(2, 3), ceil_mode=True),
    _c("max_pool2d", _x(3, 9, 8), kernel_size=(2, 1), stride=1, dilation=2),
    _c("max_pool2d", _x(3, 9, 8), kernel_size=(1, 3), stride=1, dilation=(5, 1)),
    _c("max_pool2d", _x(1, 2, 1, 1), kernel_size=2, padding=1, dilation=2),
    _c("max_pool3d", _x(1, 2, 5, 6, 7), kernel_size=2, stride=2, padding=(1, 0, 1), dilation=(2, 1, 3)),
    *(
        _c(f"adaptive_{what}_pool{ndim}d", _x(*shape), output_size=size)
        for what in ("avg", "max")
        for ndim, shape, size in (
            (1, (2, 3, 8), 3),
            (1, (3, 5), 8),
            (2, (2, 3, 8, 8), 3),
            (2, (2, 3, 8, 6), (6, 4)),
            (2, (2, 3, 5, 7), (None, 3)),
            (2, (3, 10, 7), (4, 7)),
            (2, (2, 3, 1, 9), (3, 6)),
            (3, (1, 2, 5, 4, 7), (3, 4, 5)),
        )
    ),
    _c("adaptive_max_pool1d", _x(2, 3, 12), output_size=4),
    _c("adaptive_max_pool2d", _x(2, 3, 8, 6), output_size=1),
    _c("adaptive_max_pool3d", _x(2, 3, 4, 6, 2), output_size=(2, 3, 1)),
)

ACTIVATION = tuple(
    _c(name, _x(2, 3, 4, 5), **settings)
    for name, settings in (
        ("relu", {}),
        ("relu6", {}),
        ("leaky_relu", {}),
        ("leaky_relu", {"negative_slope": 0.2}),
        ("elu", {}),
        ("elu", {"alpha": 0.5}),
        ("gelu", {}),
        ("gelu", {"approximate": "tanh"}),
        ("silu", {}),
        ("sigmoid", {}),
        ("tanh", {}),
        ("hardsigmoid", {}),
        ("hardswish", {}),
    )
)

SOFTMAX = (
    _c("softmax", _x(2, 3, 4, 5), dim=1),
    _c("softmax", _x(2, 3, 4, 5), dim=-1),
    _c("softmax", _x(7), dim=0),
    _c("softmax", _x(), dim=-1),
    _c("log_softmax", _x(), dim=0),
    _c("softmax", _x(4, 5), dim=0),
    _c("log_softmax", _x(2, 3, 4, 5), dim=2),
    _c("log_softmax", _x(2, 3, 4, 5), dim=0),
)

_STATISTICS = (("running_mean", (4,)), ("running_var", (4,)))


def _batch_norm(*operands: tuple[str, Shape], **settings: Any) -> Case:
    return Case("batch_norm", dict(operands), settings, positive=("running_var",))


NORMALIZATION = (
    _batch_norm(_x(5, 4, 3, 2), *_STATISTICS, _w(4), _b(4)),
    _batch_norm(_x(5, 4), *_STATISTICS, eps=1e-3),
    _batch_norm(_x(5, 4, 3, 2), *_STATISTICS, _w(4), _b(4), training=True),
    _batch_norm(_x(5, 4, 3), *_STATISTICS, training=True, momentum=0.3),
    Case("batch_norm", dict((_x(5, 4, 3, 2), _b(4))), {"running_mean": None, "running_var": None, "training": True}),
    _c("layer_norm", _x(3, 4, 5), _w(5), _b(5), normalized_shape=(5,)),
    _c("layer_norm", _x(3, 4, 5), _w(4, 5), normalized_shape=(4, 5), eps=1e-3),
    _c("layer_norm", _x(3, 4, 5), normalized_shape=(3, 4, 5)),
    _c("rms_norm", _x(3, 4, 5), _w(5), normalized_shape=(5,)),
    _c("rms_norm", _x(3, 4, 5), normalized_shape=(4, 5), eps=1e-3),
    _c("group_norm", _x(3, 6, 4, 5), _w(6), _b(6), num_groups=3),
    _c("group_norm", _x(3, 6, 4), num_groups=6),
    _c("local_response_norm", _x(2, 7, 3, 4), size=5),
    _c("local_response_norm", _x(2, 7, 3), size=3, alpha=0.5, beta=0.5, k=2.0),
)

_SCALARS = (
    _c("relu", _x()),
    _c("elu", _x(), alpha=0.5),
    _c("exp", _x()),
    _c("softplus", _x(), beta=0.5, threshold=1),
    _c("add", _x(), _other()),
    _c("add", _x(2, 3), _other()),
    _c("sub", _x(), _other(2, 3), alpha=2),
    _c("mul", _x(), other=3),
    _c("sum", _x()),
    _c("mean", _x(), dim=0, keepdim=True),
    _c("amax", _x(), dim=-1),
)

SOFTPLUS = tuple(
    _c("softplus", _x(2, 3, 4, 5), beta=beta, threshold=threshold)
    for beta, threshold in ((2, 20), (2.5, 1), (-1, 0.5), (1, 0.25), (1, 1000), (0.5, -1))
)

_CLASSES = {"target": 5}
CROSS_ENTROPY = tuple(
    Case("cross_entropy", {"input": x, "target": target, **weight}, settings, classes, tuple(weight))
    for x, target, classes in (
        ((6, 5), (6,), _CLASSES),
        ((2, 5, 3, 4), (2, 3, 4), _CLASSES),
        ((6, 5), (6, 5), {}),
        ((2, 5, 3), (2, 5, 3), {}),
        ((5,), (5,), {}),
        ((5,), (), _CLASSES),
        ((4, 1), (4,), {"target": 1}),
    )
    for weight in ({}, {"weight": (5 if 5 in x[:2] else 1,)})
    for settings in (
        {"reduction": "none"},
        {},
        {"reduction": "sum", "label_smoothing": 0.25},
        {"label_smoothing": 0.25, "ignore_index": 2},
    )
    if classes or "ignore_index" not in settings
)

TENSOR = (
    _c("linear", _x(2, 3, 5), _w(4, 5), _b(4)),
    _c("linear", _x(6, 5), _w(4, 5)),
    _c("linear", _x(5), _w(4, 5), _b(4)),
    _c("matmul", _x(3, 4), _other(4, 5)),
    _c("matmul", _x(2, 3, 4), _other(4, 5)),
    _c("matmul", _x(4), _other(4, 5)),
    _c("matmul", _x(2, 3, 4), _other(4)),
    _c("matmul", _x(4), _other(4)),
    _c("add", _x(2, 3, 4, 5), _other(2, 3, 4, 5)),
    _c("add", _x(2, 3, 4, 5), _other(3, 1, 1), alpha=2),
    _c("sub", _x(3, 1), _other(4, 1, 5), alpha=0.5),
    _c("mul", _x(2, 3, 4, 5), other=0.5),
    _c("add", _x(2, 3), alpha=2, other=3),
    _c("mul", _x(5), _other(2, 3, 4, 5)),
    _c("div", _x(2, 3, 4, 5), _other(1, 3, 1, 1)),
    _c("maximum", _x(2, 3, 4, 5), _other(2, 3, 4, 5)),
    _c("minimum", _x(2, 3, 4, 5), _other(4, 5)),
    _c("fmod", _x(2, 3, 4, 5), _other(3, 1, 1)),
    _c("remainder", _x(2, 3, 4, 5), _other(3, 1, 1)),
    Case("pow", {"input": (2, 3), "exponent": (2, 1)}, positive=("input",)),
    *(
        _c(name, _x(2, 3, 4, 5), **settings)
        for name in ("sum", "mean", "amax", "amin")
        for settings in ({"dim": 1}, {"dim": (0, -1)}, {"dim": [2, 3], "keepdim": True}, {"dim": None})
        if name in ("sum", "mean") or settings["dim"] is not None
    ),
    _c("amax", _x(2, 3, 4)),
    _c("prod", _x(2, 3, 4)),
    *(_c("prod", _x(2, 3, 4, 5), dim=dim, keepdim=keepdim) for dim, keepdim in ((1, False), (-1, True))),
    _c("norm", _x(2, 3, 4)),
    *(
        _c("norm", _x(2, 3, 4, 5), p=p, dim=dim, keepdim=keepdim)
        for p, dim, keepdim in (
            (2, 1, False),
            (1, (0, -1), True),
            (math.inf, 2, False),
            (1.0, None, False),
            ("fro", (1, 2), True),
        )
    ),
)

UNARY = tuple(
    Case(name, dict((_x(2, 3, 4, 5),)), positive=("input",) if name in ("log", "rsqrt", "sqrt") else ())
    for name in unary.__all__
)

CASES = (
    *CONVOLUTION,
    *POOLING,
    *ACTIVATION,
    *SOFTMAX,
    *NORMALIZATION,
    *CROSS_ENTROPY,
    *TENSOR,
    *UNARY,
    *SOFTPLUS,
    *_SCALARS,
)
