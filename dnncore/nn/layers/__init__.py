"""The layers there are, by the name that a model package gives them."""

from dnncore.nn.layer import Layer
from dnncore.nn.layers.activation import ReLU, Sigmoid, TanH
from dnncore.nn.layers.convolution import Convolution
from dnncore.nn.layers.eltwise import Add
from dnncore.nn.layers.inner_product import InnerProduct
from dnncore.nn.layers.pooling import Pooling
from dnncore.nn.layers.softmax import Softmax

__all__ = ["LAYERS", "Add", "Convolution", "InnerProduct", "Pooling", "ReLU", "Sigmoid", "Softmax", "TanH"]

LAYERS: dict[str, type[Layer]] = {
    cls.__name__: cls for cls in (Add, Convolution, InnerProduct, Pooling, ReLU, Sigmoid, Softmax, TanH)
}
"""Every type of layer by its name."""
