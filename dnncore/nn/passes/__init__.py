"""From a net as somebody made it to the net that is run: each pass takes a model and gives one that computes the same.

A pass is a function, so it can be tried alone; `for_inference` runs those that make a net faster, in the order of `PASSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn.model import Model
from dnncore.nn.passes.batch_norms import fold_batch_norms
from dnncore.nn.passes.convolutions import fuse_convolutions
from dnncore.nn.passes.identities import drop_identities
from dnncore.nn.passes.layouts import channels_last
from dnncore.nn.passes.precision import in_precision

__all__ = [
    "PASSES",
    "channels_last",
    "drop_identities",
    "fold_batch_norms",
    "for_inference",
    "fuse_convolutions",
    "in_precision",
]

PASSES: dict[str, Callable[[Model], Model]] = {
    pass_.__name__: pass_ for pass_ in (drop_identities, fold_batch_norms, fuse_convolutions)
}
"""What every net that is run goes through, by name and in this order."""


def for_inference(model: Model, precision: DType = DType.FLOAT32, without: Collection[str] = ()) -> Model:
    """The model that is run in place of one that was trained.

    Args:
        model: In float32.
        precision: Of what lies between inputs and outputs. In 16 bits it lies channels-last, as tensor cores need.
        without: Names of passes to leave out, those of `PASSES` and "channels_last".

    Raises:
        BadParamError: there is no pass of that name.
    """
    if unknown := set(without) - {*PASSES, "channels_last"}:
        raise BadParamError(
            f"there is no pass {', '.join(sorted(unknown))}; there are {', '.join(PASSES)}, channels_last"
        )
    for name, pass_ in PASSES.items():
        if name not in without:
            model = pass_(model)
    model = in_precision(model, precision)
    if precision is not DType.FLOAT32 and "channels_last" not in without:
        model = channels_last(model)
    return model
