"""Sums, means, extrema and norms over dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dnncore.dtypes import DType
from dnncore.errors import NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.operators import Binary, Cast, GlobalPooling, Reduce

__all__ = ["RULES"]

_POOLED = {"avg": "average", "max": "max"}


def _reduction(operator: str, since: int, *, squared: bool = False) -> Rule:
    """Args:
    operator: A name of `ReduceOperator`.
    since: The opset that made the axes an operand.
    squared: Whether it is taken of squares.
    """

    def rule(call: Call) -> Sequence[Imported]:
        x = call.tensor(0)
        axes = call.attributes.integers("axes") if call.version < since else call.integers(1, "axes")
        keep = bool(call.attributes.integer("keepdims", 1))
        if call.attributes.integer("noop_with_empty_axes", 0) and not axes:
            if operator.startswith("norm"):
                raise NotSupportedError("a norm over no dimensions is not supported")
            return (call.emit(Binary("mul"), x, x) if squared else x,)
        over = sorted({call.axis(axis, x.ndim) for axis in axes}) if axes else list(range(x.ndim))
        if x.few.dtype is DType.BOOL and operator in ("max", "min"):
            return (_any(call, x, tuple(over), keep) if operator == "max" else _all(call, x, tuple(over), keep),)
        if squared:
            x = call.emit(Binary("mul"), x, x)
        return (_reduced(call, x, operator, tuple(over), keep),)

    return rule


def _reduced(call: Call, x: Computed, operator: str, over: tuple[int, ...], keep: bool) -> Computed:
    if operator in _POOLED and x.ndim > 2 and over == tuple(range(2, x.ndim)):
        y = call.emit(GlobalPooling(_POOLED[operator]), x)
        return y if keep else call.reshape(y, y.few.shape[:2], y.many.shape[:2])
    return call.emit(Reduce(operator, over, keep), x) if over else x


def _any(call: Call, x: Computed, over: tuple[int, ...], keep: bool) -> Computed:
    """The largest of what is true or false: whether the sum is not 0, of nothing false."""
    numbers = call.emit(Cast(DType.FLOAT32.value), x)
    return call.emit(Cast(DType.BOOL.value), call.emit(Reduce("add", over, keep), numbers))


def _all(call: Call, x: Computed, over: tuple[int, ...], keep: bool) -> Computed:
    """The smallest: what is true unless any is false."""
    true = call.scalar(x, True, "true")
    return call.emit(Binary("xor"), _any(call, call.emit(Binary("xor"), x, true), over, keep), true)


RULES: Mapping[str, Rule] = {
    "ReduceL1": _reduction("norm1", 18),
    "ReduceL2": _reduction("norm2", 18),
    "ReduceMax": _reduction("max", 18),
    "ReduceMean": _reduction("avg", 18),
    "ReduceMin": _reduction("min", 18),
    "ReduceProd": _reduction("mul", 18),
    "ReduceSum": _reduction("add", 13),
    "ReduceSumSquare": _reduction("add", 18, squared=True),
}
