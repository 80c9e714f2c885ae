"""How far what a net gives may move by a pass: data beside each, which `dnncore describe` prints and a test holds it to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes

from dnncore.dtypes import DType
from dnncore.nn.calibration import LARGEST
from dnncore.nn.graph import Graph

__all__ = ["EXACT", "LAST_BITS", "Tolerance"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a pass may change of a net's outputs. Immutable.

    It is what rounding the result of every node some times more could do, if all of these errors met in one output: an error that
    grows with the depth of a net, in the narrowest type that lies in it.

    Args:
        roundings: How many for each node; 0 where no bit changes.
    """

    roundings: int

    def relative(self, before: Graph, after: Graph) -> float:
        """The largest change of any element of an output, relative to the largest magnitude in it.

        Where a device computes what the pass has made by another algorithm, what the two differ by comes on top: by one that
        transforms tiles that is more than roundings.

        Args:
            before: The net that the pass was given.
            after: What it made of that.
        """
        dtypes = {after.values[name].dtype for node in after.nodes for name in node.outputs}
        return self.roundings * len(before.nodes) * max(map(_roundoff, dtypes), default=0.0)


def _roundoff(dtype: DType) -> float:
    """The largest relative error of one rounding; in int8 relative to what the largest number stands for."""
    if dtype is DType.INT8:
        return 0.5 / LARGEST
    finfo: Any = ml_dtypes.finfo  # NumPy's own knows no bfloat16
    return float(finfo(dtype.numpy).eps) / 2 if dtype.is_floating else 0.0


EXACT = Tolerance(0)
LAST_BITS = Tolerance(4)
"""Those of float32, or of 8 and 16 bits where these lie inside. On the zoo's nets at 32 x 32, with seven sets of random weights,
MobileNetV2's errors were up to 2.5 roundings a node in int8 and 1.6 else (its channels are few, and their errors do not cancel)."""
