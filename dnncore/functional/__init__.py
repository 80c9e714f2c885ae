"""Functions that allocate their results, named and called as torch.nn.functional's.

>>> import numpy as np
>>> from dnncore import functional as F
>>> y = F.conv2d(np.ones((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32), stride=2, padding=1)
>>> F.relu(y)
Tensor(float32[1, 4, 4, 4] strides [64, 16, 4, 1] on cpu)

Operands are dnncore's tensors, whose handle runs the function; NumPy's arrays, which are used where they lie, on the calling
thread's own handle of "cpu"; and what other libraries share through DLPack, on the thread's own handle of the device that it is
on (`handle`). All operands of a call are on one device, and tensors of ours of one handle: nothing is copied between devices
unasked.

Results are tensors of that handle, in the memory format of the operands: `numpy()` waits for one and copies it, others take
it through DLPack. Their memory is taken from the device in the order of the handle's stream and goes back when nobody refers to
it. A call returns before it has run; the memory of its operands is kept until then.

Forward only: gradients are `dnncore.torch`'s and `dnncore.ops`' business. What differs from PyTorch: no tensor has 0 dimensions,
so that a sum over everything is [1]; indices and labels are int32; nothing computes in place but the running statistics of
`batch_norm`; a softmax must be given its dimension and a dropout its seed; and a setting that is not computed is refused.
"""

from dnncore.functional.activation import (
    elu,
    gelu,
    hardsigmoid,
    hardswish,
    leaky_relu,
    relu,
    relu6,
    sigmoid,
    silu,
    tanh,
)
from dnncore.functional.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from dnncore.functional.cross_entropy import cross_entropy
from dnncore.functional.dropout import dropout
from dnncore.functional.im2col import fold, unfold
from dnncore.functional.linear import linear, matmul
from dnncore.functional.normalization import batch_norm, group_norm, layer_norm, local_response_norm, rms_norm
from dnncore.functional.operands import Operand, handle
from dnncore.functional.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from dnncore.functional.softmax import log_softmax, softmax
from dnncore.functional.tensor import (
    add,
    amax,
    amin,
    div,
    eq,
    fmod,
    ge,
    gt,
    le,
    logical_and,
    logical_or,
    logical_xor,
    lt,
    maximum,
    mean,
    minimum,
    mul,
    ne,
    norm,
    pow,
    prod,
    remainder,
    sub,
    sum,
    topk,
    where,
)
from dnncore.functional.unary import (
    abs,
    ceil,
    cos,
    erf,
    exp,
    floor,
    log,
    neg,
    reciprocal,
    round,
    rsqrt,
    sign,
    sin,
    softplus,
    sqrt,
    square,
)

__all__ = [
    "Operand",
    "abs",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "add",
    "amax",
    "amin",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "ceil",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cos",
    "cross_entropy",
    "div",
    "dropout",
    "elu",
    "eq",
    "erf",
    "exp",
    "floor",
    "fmod",
    "fold",
    "ge",
    "gelu",
    "group_norm",
    "gt",
    "handle",
    "hardsigmoid",
    "hardswish",
    "layer_norm",
    "le",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log",
    "log_softmax",
    "logical_and",
    "logical_or",
    "logical_xor",
    "lt",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "maximum",
    "mean",
    "minimum",
    "mul",
    "ne",
    "neg",
    "norm",
    "pow",
    "prod",
    "reciprocal",
    "relu",
    "relu6",
    "remainder",
    "rms_norm",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "sub",
    "sum",
    "tanh",
    "topk",
    "unfold",
    "where",
]
