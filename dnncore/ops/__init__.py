"""The operations, in cuDNN's words.

Each one blends: ``out = alpha * operation(inputs) + beta * out``; with beta 0 `out` is written without being read, so it may hold
NaN. An optimizer's step does so with every weight. alpha and beta act in the compute type: float64 for float64 tensors, float32 for
all others. Each operation is enqueued on the handle's stream and returns before it has run. Tensors may have any strides (those of
an optimizer's step lie in one piece); an output's elements must not overlap. Shapes use the letters N batch, C in-channels, K
out-channels, G groups. All raise BadParamError when descriptors disagree (the message names the two that do) and NotSupportedError
when no algorithm fits the handle's workspace preference.
"""

from dnncore.ops.activation import RELU, SIGMOID, TANH, activation_backward, activation_forward
from dnncore.ops.bottleneck import bottleneck
from dnncore.ops.convolution import (
    convolution_backward_bias,
    convolution_backward_data,
    convolution_backward_filter,
    convolution_forward,
)
from dnncore.ops.cross_entropy import cross_entropy_backward, cross_entropy_forward
from dnncore.ops.dropout import dropout_backward, dropout_forward, dropout_state
from dnncore.ops.fused_convolution import convolution_bias_activation_backward, convolution_bias_activation_forward
from dnncore.ops.im2col import col2im, im2col
from dnncore.ops.image import image_convolution, image_normalization, image_resize
from dnncore.ops.inverted_residual import inverted_residual
from dnncore.ops.matmul import (
    inner_product_backward_data,
    inner_product_backward_weights,
    inner_product_forward,
    matmul,
)
from dnncore.ops.normalization import (
    batch_norm_backward,
    batch_norm_forward,
    batch_norm_inference,
    group_norm_backward,
    group_norm_forward,
    layer_norm_backward,
    layer_norm_forward,
    lrn_backward,
    lrn_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from dnncore.ops.optimizer import adam_step, momentum_step
from dnncore.ops.pooled_convolution import pooled_convolution
from dnncore.ops.pooling import pooling_backward, pooling_backward_indices, pooling_forward
from dnncore.ops.softmax import softmax_backward, softmax_forward
from dnncore.ops.tensor import add, binary, reduce, scale_tensor, set_tensor, sum_to, transform, unary, where
from dnncore.ops.top_k import top_k

__all__ = [
    "RELU",
    "SIGMOID",
    "TANH",
    "activation_backward",
    "activation_forward",
    "adam_step",
    "add",
    "batch_norm_backward",
    "batch_norm_forward",
    "batch_norm_inference",
    "binary",
    "bottleneck",
    "col2im",
    "convolution_backward_bias",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_bias_activation_backward",
    "convolution_bias_activation_forward",
    "convolution_forward",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "dropout_backward",
    "dropout_forward",
    "dropout_state",
    "group_norm_backward",
    "group_norm_forward",
    "im2col",
    "image_convolution",
    "image_normalization",
    "image_resize",
    "inner_product_backward_data",
    "inner_product_backward_weights",
    "inner_product_forward",
    "inverted_residual",
    "layer_norm_backward",
    "layer_norm_forward",
    "lrn_backward",
    "lrn_forward",
    "matmul",
    "momentum_step",
    "pooled_convolution",
    "pooling_backward",
    "pooling_backward_indices",
    "pooling_forward",
    "reduce",
    "rms_norm_backward",
    "rms_norm_forward",
    "scale_tensor",
    "set_tensor",
    "softmax_backward",
    "softmax_forward",
    "sum_to",
    "top_k",
    "transform",
    "unary",
    "where",
]
