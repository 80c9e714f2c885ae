"""Elements repeated: along dimensions of extent 1 and missing leading ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.gradients import SumTo
from dnncore.tensor import Tensor

__all__ = ["Expand"]


@dataclass(frozen=True)
class Expand(Operator):
    """x broadcast as NumPy does; with a second input also to the number of images that this has.

    Args:
        shape: Extents to broadcast to, 1 where that of x stays; as far as there are fewer than x has, x keeps its leading ones.
    """

    kind: ClassVar[str] = "expand"
    input_names: ClassVar[tuple[str, ...]] = ("x", "like")
    optional: ClassVar[int] = 1

    shape: tuple[int, ...] = ()

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, like = (*inputs, None)[:2]
        assert x is not None
        wanted = self.shape
        if like is not None:
            if not like.shape:
                raise BadParamError(f"like {like} has no images")
            wanted = (like.shape[0], *wanted)
        ndim = max(len(x.shape), len(wanted))
        have, want = ((*(1,) * (ndim - len(shape)), *shape) for shape in (x.shape, wanted))
        if any(a != b and 1 not in (a, b) for a, b in zip(have, want, strict=True)):
            raise BadParamError(f"{x} cannot be broadcast to {list(wanted)}")
        return (x.with_shape(*(b if a == 1 else a for a, b in zip(have, want, strict=True))),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, (y,) = inputs[0], outputs
        assert x is not None
        ops.add(handle, 1.0, x.view(with_leading(x.descriptor, y.ndim)), 0.0, y)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        have, got = step.shape(step.x), step.shape(step.outputs[0])
        missing = len(got) - len(have)
        summed = tuple(missing + i for i, extent in enumerate(have) if extent == 1 and got[missing + i] != 1)
        return (step.add(SumTo(summed, missing), step.dy, step.partial()),)
