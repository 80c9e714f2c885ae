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

Forward only: gradients are `dnncore.torch`'s and `dnncore.ops`' business. Names, order and presets of arguments are PyTorch's, and
what is called alike computes the same; a result without dimensions, a sum over everything, say, has none here either. What differs,
and what is refused, with a `BadParamError` that says so:

- Indices are int32, and so are labels on a device: that is our widest integer.
- `inplace=True`: a result is a new tensor. Nothing computes in place but the running statistics of `batch_norm`; `dnncore.ops`
  writes into tensors of the caller's.
- `softmax` and `log_softmax` without `dim`: PyTorch guesses one, and warns of it. Their `dtype` is a `DType`, its name or NumPy's
  type.
- `dropout` in training without `seed`, an argument of ours: there is no global generator.
- `size_average` and `reduce` of `cross_entropy`, which PyTorch has replaced by `reduction`. A label that is neither a class nor
  ignored has a loss of 0 instead of raising: whether there is one would have to be waited for.
- `return_indices` of maxima whose windows are dilated, or are adaptive and differ in size or stride: they are computed along one
  dimension after the other, which loses the places. Their inputs are floating-point, not int8, and so are those of such averages.
- An adaptive `output_size` of 0, and adaptive pooling of nothing: windows would be empty.
- `padding` of pooling that is not less than the window, with its dilation; PyTorch allows half the window, less than we do.
- `divisor_override` with `ceil_mode`: the sum under a window that goes beyond the padding is not its average times its size.
- `softplus` with a `beta` of 0, by which it would be divided; `leaky_relu` and `elu` with a negative coefficient, which the kernels
  do not have.
- `topk(largest=False)`: the operation finds the largest; of the negative of a tensor these are the smallest.
- `matmul` of stacks of matrices with each other, `norm` with a `p` other than 1, 2, "fro" and infinity, and `local_response_norm`
  over an even number of channels: no operation does these.
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
from dnncore.functional.adaptive_pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
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
