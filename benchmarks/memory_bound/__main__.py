"""Every algorithm of the operations that move bytes and compute next to nothing, beside PyTorch in the same run.

They are timed as convolutions are (`benchmarks/race.py`): graphs of calls on rotating buffers, in turns, medians; `_warm` is of
calls whose operands the cache holds. TB/s count the fewest bytes that an operation can move: each tensor that it needs once, its
output twice where it blends. The ceiling is what a copy of 1 GiB reaches in the same run. Large tensors are several times an H200's
L2 cache; the small ones show what a launch costs. PyTorch 2.11 gets the gradient of overlapping average pooling wrong on
channels-last CUDA tensors: it differs from PyTorch's own CPU build, ours does not. There alone the relative difference is about 1.

The one command for a call of ten minutes on a GPU; the next call goes on where it ended:

    DNNCORE_COMMIT=... python -m benchmarks.memory_bound --minutes 9 --missing --out $OUT

Dry runs as `benchmarks.kernels` has them:

    python -m benchmarks.memory_bound --dry-run --device cpu --out /tmp/dry
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks.measurement import Measurement, Sized
from benchmarks.memory_bound.bottlenecks import bottlenecks
from benchmarks.memory_bound.depthwise import depthwise
from benchmarks.memory_bound.elementwise import elementwise
from benchmarks.memory_bound.images import images
from benchmarks.memory_bound.inverted_residuals import inverted_residuals
from benchmarks.memory_bound.normalizations import normalizations
from benchmarks.memory_bound.optimizers import optimizers
from benchmarks.memory_bound.poolings import poolings
from benchmarks.memory_bound.reductions import reductions
from benchmarks.memory_bound.rows import rows
from benchmarks.session import Group, add_arguments, opened
from dnncore import DType
from dnncore.errors import DnncoreError

__all__ = ["FAMILIES", "main"]

FAMILIES: dict[str, Callable[[DType, Sized], Iterator[Measurement]]] = {
    family.__name__: family
    for family in (
        elementwise,
        rows,
        normalizations,
        reductions,
        optimizers,
        poolings,
        depthwise,
        inverted_residuals,
        bottlenecks,
        images,
    )
}
"""In order of importance."""

_DTYPES = ("float16", "float32")


def _as_it_is(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape


def _shrunk(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of images and of rows: few elements, and 32 channels where there are more, which group norm has groups of."""
    if len(shape) == 2:
        return min(shape[0], 3), min(shape[1], 70)
    batch, channels, *extents = shape
    return min(batch, 2), min(channels, 32), *(min(extent, 9) for extent in extents)


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for; 1 where something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory_bound",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument("--dtype", nargs="+", choices=("float32", "float16", "bfloat16"), default=_DTYPES)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=tuple(FAMILIES))
    parser.add_argument("--only", default="", help="only those whose name contains one of these, with commas between")
    options = parser.parse_args(arguments)
    sized = _shrunk if options.dry_run else _as_it_is
    try:
        with opened(options) as session:
            for name, family in FAMILIES.items():
                for dtype in options.dtype if name in options.families else ():
                    found = [
                        one
                        for one in family(DType.of(dtype), sized)
                        if any(part in one.name for part in options.only.split(","))
                    ]
                    session.measure(Group(f"memory_bound-{dtype}", ("name",), {"dtype": dtype}, found))
            return session.close()
    except DnncoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
