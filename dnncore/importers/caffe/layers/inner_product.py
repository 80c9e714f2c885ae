"""The fully connected layer."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dnncore.errors import BadParamError
from dnncore.importers.caffe.net import Site
from dnncore.nn.operators import Flatten, InnerProduct, Reshape

__all__ = ["LAYERS"]


def _inner_product(site: Site) -> None:
    param = site.layer.inner_product_param
    site.takes(1)
    if param.num_output < 1:
        raise BadParamError(f"num_output {param.num_output} must be 1 or more")
    shape = site.shape(site.x)
    axis = site.axis(param.axis, len(shape))
    if axis == 0:
        raise BadParamError("axis 0 would multiply images with each other")
    columns, rows = math.prod(shape[axis:]), param.num_output
    x = site.x if len(shape) == 2 else site.add("flatten", Flatten(axis), site.x)
    if param.transpose:
        weight = site.parameter(
            "weight", (columns, rows), param.weight_filler, shape=(rows, columns), convert=np.transpose
        )
    else:
        weight = site.parameter("weight", (rows, columns), param.weight_filler)
    parameters = [weight]
    if param.bias_term:
        parameters.append(site.parameter("bias", (rows,), param.bias_filler))
    if axis == 1:
        site.top(InnerProduct(), x, *parameters)
    else:
        product = site.add("product", InnerProduct(), x, *parameters)
        site.top(Reshape((-1, *shape[1:axis], rows)), product)


LAYERS: dict[str, Callable[[Site], None]] = {"InnerProduct": _inner_product}
