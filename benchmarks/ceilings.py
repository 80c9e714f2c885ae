"""What a device reaches at most, measured in the run that quotes it: a large copy, and large matrix products by PyTorch.

A copy is made in two ways, of which the faster counts. `Tensor.copy_` is a copy of the driver's, which on an H200 stays at 2.7 TB/s; a
kernel that multiplies by one moves the same bytes and reaches 4.26.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.comparison import release
from benchmarks.race import Rotation, race
from benchmarks.torch_graphs import Rival
from dnncore.backend import Event
from dnncore.dtypes import DType

__all__ = ["Ceilings"]

_COPIED_BYTES = 1 << 30
_EXTENT = 8192
_ROUNDS = 7
_NONE = Rotation(1, 1)


@dataclass
class Ceilings:
    """Owned by one thread.

    Args:
        mark: Records an event where PyTorch's graphs are replayed.
    """

    mark: Callable[[], Event]
    copy_tbps: float = field(init=False)
    _tflops: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        source = torch.empty(_COPIED_BYTES // 4, dtype=torch.float32, device="cuda").normal_()
        target = torch.empty_like(source)
        copies: tuple[Callable[..., Any], ...] = (lambda a, b: b.copy_(a), lambda a, b: torch.mul(a, 1.0, out=b))
        ms = min(self._ms(copy, source, target) for copy in copies)
        self.copy_tbps = 2 * _COPIED_BYTES / ms / 1e9

    def tflops(self, dtype: DType, *, is_tf32: bool) -> float | None:
        """Of a product of two matrices of 8192 x 8192; measured when first asked for, None where PyTorch has none."""
        if not dtype.is_floating:
            return None
        name = "tf32" if is_tf32 else dtype.value
        if name not in self._tflops:
            a, b = (
                torch.empty(_EXTENT, _EXTENT, dtype=getattr(torch, dtype.value), device="cuda").normal_()
                for _ in range(2)
            )
            before = torch.backends.cuda.matmul.allow_tf32
            torch.backends.cuda.matmul.allow_tf32 = is_tf32
            self._tflops[name] = 2 * _EXTENT**3 / self._ms(torch.matmul, a, b) / 1e9
            torch.backends.cuda.matmul.allow_tf32 = before
        return self._tflops[name]

    def _ms(self, function: Callable[..., Any], *inputs: torch.Tensor) -> float:
        captured = Rival(function, lambda _inputs: (), [inputs], Rotation(1, 4), _NONE).captured("ceiling")
        ms = race({"": captured.cold}, self.mark, _ROUNDS)[""].ms
        del captured
        release()
        return ms

    def __str__(self) -> str:
        products = "".join(f", {name} {rate:.0f} TFLOP/s" for name, rate in self._tflops.items())
        return f"copy {self.copy_tbps:.2f} TB/s{products}"
