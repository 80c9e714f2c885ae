"""PyTorch on our kernels: functions with gradients, modules, and `convert`, which swaps a model's layers in place.

    model = dnncore.torch.convert(torchvision.models.resnet50().cuda()).model

Tensors are used where they lie, CPU tensors by the reference backend; work is enqueued on PyTorch's current stream, and so in order
with everything else that PyTorch does. Functions are named and called as torch.nn.functional's where it has them; geometry comes as
our descriptors. Results take the memory format of x. First derivatives only. Needs PyTorch, which `import dnncore` does not.
"""

from dnncore.torch.conversion import Conversion, convert
from dnncore.torch.functions.batch_norm import batch_norm
from dnncore.torch.functions.convolution import convolution
from dnncore.torch.functions.elementwise import activation, dropout
from dnncore.torch.functions.linear import linear
from dnncore.torch.functions.normalization import group_norm, layer_norm, local_response_norm
from dnncore.torch.functions.pooling import avg_pool, max_pool
from dnncore.torch.functions.softmax import cross_entropy, log_softmax, softmax

__all__ = [
    "Conversion",
    "activation",
    "avg_pool",
    "batch_norm",
    "convert",
    "convolution",
    "cross_entropy",
    "dropout",
    "group_norm",
    "layer_norm",
    "linear",
    "local_response_norm",
    "log_softmax",
    "max_pool",
    "softmax",
]
