"""PyTorch on our kernels: functions with gradients, modules, and `convert`, which swaps a model's layers in place.

    model = dnncore.torch.convert(torchvision.models.resnet50().cuda()).model

A model that is trained becomes one launch, or a package that dnnserve serves, without a file in between:

    run = dnncore.torch.compile(model, example, precision="float16")
    dnncore.torch.save_package(model, example, "models/resnet50/1", labels=labels, preprocess=preprocessing)

Tensors are used where they lie, CPU tensors by the reference backend; work is enqueued on PyTorch's current stream, and so in order
with everything else that PyTorch does. Functions are named and called as torch.nn.functional's where it has them; geometry comes as
our descriptors. Results have PyTorch's memory formats. Needs PyTorch, which `import dnncore` does not.

`dnncore.torch.modules` has the classes that `convert` swaps in, to build nets from. Both kinds of net are pickled and saved as any.

First derivatives only: a gradient with `create_graph=True` raises RuntimeError. Under `torch.autocast` convolution and linear cast
their operands to its dtype, softmax and cross-entropy theirs to float32, and the rest computes in the dtype of x.
"""

from dnncore.torch import modules
from dnncore.torch.conversion import Conversion, convert
from dnncore.torch.export import CompiledModel, save_package, to_model
from dnncore.torch.export import compile_model as compile
from dnncore.torch.functions.batch_norm import batch_norm
from dnncore.torch.functions.batch_norm_relu import batch_norm_relu
from dnncore.torch.functions.convolution import convolution
from dnncore.torch.functions.cross_entropy import cross_entropy
from dnncore.torch.functions.elementwise import activation, dropout
from dnncore.torch.functions.linear import linear
from dnncore.torch.functions.normalization import group_norm, layer_norm, local_response_norm
from dnncore.torch.functions.pooling import avg_pool, max_pool
from dnncore.torch.functions.softmax import log_softmax, softmax

__all__ = [
    "CompiledModel",
    "Conversion",
    "activation",
    "avg_pool",
    "batch_norm",
    "batch_norm_relu",
    "compile",
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
    "modules",
    "save_package",
    "softmax",
    "to_model",
]
