"""From a net as somebody made it to the net that is run: each pass takes a model and gives one that computes the same.

A pass is a function, so it can be tried alone; `for_inference` runs those that make a net faster, in the order of `PASSES`.
`REGISTRY` has all of them, each with the tolerance within which its net computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn.calibration import Calibration
from dnncore.nn.model import Model
from dnncore.nn.passes.batch_norms import fold_batch_norms
from dnncore.nn.passes.bottlenecks import fuse_bottlenecks
from dnncore.nn.passes.convolutions import fuse_convolutions
from dnncore.nn.passes.identities import drop_identities
from dnncore.nn.passes.inner_products import fuse_inner_products
from dnncore.nn.passes.inverted_residuals import fuse_inverted_residuals
from dnncore.nn.passes.layouts import channels_last
from dnncore.nn.passes.pixels import from_pixels, fuse_pixels
from dnncore.nn.passes.poolings import fuse_pooling
from dnncore.nn.passes.precision import in_precision
from dnncore.nn.passes.quantization import quantize
from dnncore.nn.passes.ranking import rank_classes
from dnncore.nn.passes.siblings import merge_siblings
from dnncore.nn.passes.tolerance import EXACT, LAST_BITS, Tolerance
from dnncore.nn.passes.unused import drop_unused
from dnncore.preprocessing import Normalization

__all__ = [
    "CHOICES",
    "PASSES",
    "REGISTRY",
    "Pass",
    "Tolerance",
    "applied_passes",
    "channels_last",
    "drop_identities",
    "drop_unused",
    "fold_batch_norms",
    "for_inference",
    "from_pixels",
    "fuse_bottlenecks",
    "fuse_convolutions",
    "fuse_inner_products",
    "fuse_inverted_residuals",
    "fuse_pixels",
    "fuse_pooling",
    "in_precision",
    "merge_siblings",
    "quantize",
    "rank_classes",
]


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass in the registry. Immutable.

    Args:
        run: run(model, what else it takes) -> the model that computes the same.
        tolerance: Within which it does.
    """

    run: Callable[..., Model]
    tolerance: Tolerance

    @property
    def name(self) -> str:
        """That of the function."""
        return self.run.__name__


_ALWAYS = (
    Pass(drop_unused, EXACT),
    Pass(drop_identities, EXACT),
    Pass(fold_batch_norms, LAST_BITS),
    Pass(fuse_convolutions, LAST_BITS),
    Pass(fuse_inner_products, LAST_BITS),
    Pass(merge_siblings, LAST_BITS),
)
_WHERE_ASKED_FOR = (
    Pass(quantize, LAST_BITS),  # of 8, on inputs like those that it was calibrated on
    Pass(in_precision, LAST_BITS),
    Pass(channels_last, LAST_BITS),
    Pass(fuse_inverted_residuals, LAST_BITS),
    Pass(fuse_bottlenecks, LAST_BITS),
    Pass(from_pixels, LAST_BITS),  # no bit without a mean image
    Pass(fuse_pixels, EXACT),
    Pass(fuse_pooling, LAST_BITS),
    Pass(rank_classes, EXACT),  # of what the net gives without it
)

REGISTRY: dict[str, Pass] = {each.name: each for each in (*_ALWAYS, *_WHERE_ASKED_FOR)}
"""Every pass by name, in the order in which they are run."""

PASSES: dict[str, Callable[[Model], Model]] = {each.name: each.run for each in _ALWAYS}
"""What every net that is run goes through, by name and in this order."""


_NARROW = (channels_last, fuse_inverted_residuals, fuse_bottlenecks)
"""What follows in 8 and 16 bits."""

CHOICES = (
    *PASSES,
    quantize.__name__,
    *(pass_.__name__ for pass_ in _NARROW),
    fuse_pixels.__name__,
    fuse_pooling.__name__,
    rank_classes.__name__,
)
"""Passes that can be left out."""


def for_inference(
    model: Model,
    precision: DType = DType.FLOAT32,
    without: Collection[str] = (),
    calibration: Calibration | None = None,
    normalization: Normalization | None = None,
    ranked: int | None = None,
) -> Model:
    """The model that is run in place of one that was trained.

    Args:
        model: In float32.
        precision: Of what lies between inputs and outputs: floating point, or INT8, beside which the rest is FLOAT16. In 8 and 16
            bits it lies channels-last, as tensor cores need.
        without: Names of passes to leave out, those of `CHOICES`.
        calibration: What INT8 needs to know.
        normalization: That of its preprocessing, for a net that shall read pixels; None for one that reads what it did.
        ranked: How many classes a classifier shall rank, as `rank_classes` has it; None for one that gives what it did.

    Raises:
        BadParamError: there is no pass of that name, no calibration, or as `from_pixels` and `rank_classes`.
    """
    for _, changed in applied_passes(model, precision, without, calibration, normalization, ranked):
        model = changed
    return model


def applied_passes(
    model: Model,
    precision: DType = DType.FLOAT32,
    without: Collection[str] = (),
    calibration: Calibration | None = None,
    normalization: Normalization | None = None,
    ranked: int | None = None,
) -> Iterator[tuple[str, Model]]:
    """What `for_inference` does, step by step: the name of each pass, and the model behind it.

    Raises:
        BadParamError: as `for_inference`.
    """
    if unknown := set(without) - {*CHOICES}:
        raise BadParamError(f"there is no pass {', '.join(sorted(unknown))}; there are {', '.join(CHOICES)}")
    if precision is DType.INT8 and calibration is None:
        raise BadParamError(f"net {model.graph.name!r} cannot be run in int8: it is not calibrated (dnncore calibrate)")
    for name, pass_ in PASSES.items():
        if name not in without:
            model = pass_(model)
            yield name, model
    if precision is DType.INT8:
        precision = DType.FLOAT16
        if calibration is not None and quantize.__name__ not in without:
            model = quantize(model, calibration)
            yield quantize.__name__, model
    if precision is not DType.FLOAT32:
        model = in_precision(model, precision)
        yield in_precision.__name__, model
        for pass_ in _NARROW:
            if pass_.__name__ not in without:
                model = pass_(model)
                yield pass_.__name__, model
    if normalization is not None:
        model = from_pixels(model, normalization)
        yield from_pixels.__name__, model
        if fuse_pixels.__name__ not in without:
            model = fuse_pixels(model)
            yield fuse_pixels.__name__, model
    if fuse_pooling.__name__ not in without:
        model = fuse_pooling(model)  # behind `fuse_pixels`: a convolution that looks pixels up saves more
        yield fuse_pooling.__name__, model
    if ranked is not None and rank_classes.__name__ not in without:
        yield rank_classes.__name__, rank_classes(model, ranked)
