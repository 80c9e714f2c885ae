"""The operations, in cuDNN's words.

Each one blends: ``out = alpha * operation(inputs) + beta * out``; with beta 0 `out` is written without being read, so it may hold
NaN. Each is enqueued on the handle's stream and returns before it has run. Tensors may have any strides; an output's elements must
not overlap. Shapes use the letters N batch, C in-channels, K out-channels, G groups. All raise BadParamError when descriptors
disagree (the message names the two that do) and NotSupportedError when no algorithm fits the handle's workspace preference.
"""

from __future__ import annotations

from dnncore.descriptors import (
    ActivationDescriptor,
    ActivationMode,
    ConvolutionDescriptor,
    PoolingDescriptor,
    SoftmaxAlgorithm,
    SoftmaxMode,
    TensorDescriptor,
)
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.problems import (
    ActivationBackwardProblem,
    ActivationForwardProblem,
    AddProblem,
    ConvolutionProblem,
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    Direction,
    MatmulProblem,
    PoolingBackwardProblem,
    PoolingForwardProblem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
    SumProblem,
)
from dnncore.tensor import Tensor

__all__ = [
    "RELU",
    "SIGMOID",
    "TANH",
    "activation_backward",
    "activation_forward",
    "add",
    "convolution_backward_bias",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "inner_product_backward_data",
    "inner_product_backward_weights",
    "inner_product_forward",
    "matmul",
    "pooling_backward",
    "pooling_forward",
    "softmax_backward",
    "softmax_forward",
    "sum_to",
    "transform",
]

RELU = ActivationDescriptor(ActivationMode.RELU)
SIGMOID = ActivationDescriptor(ActivationMode.SIGMOID)
TANH = ActivationDescriptor(ActivationMode.TANH)


def convolution_forward(
    handle: Handle,
    alpha: float,
    x: Tensor,
    w: Tensor,
    conv: ConvolutionDescriptor,
    beta: float,
    y: Tensor,
    *,
    algorithm: str | None = None,
) -> None:
    """y [N, K, *output] = x [N, C, *input] correlated with w [K, C/G, *filter] (or convolved, by `conv.mode`).

    Args:
        algorithm: Take the one of this name; None lets the handle's preference choose.

    Source: arXiv 1410.0759, section 3.
    """
    _convolve(handle, Direction.FORWARD, alpha, (x, w, y), (x, w), conv, beta, y, algorithm)


def convolution_backward_data(
    handle: Handle,
    alpha: float,
    w: Tensor,
    dy: Tensor,
    conv: ConvolutionDescriptor,
    beta: float,
    dx: Tensor,
    *,
    algorithm: str | None = None,
) -> None:
    """dx [N, C, *input] = the adjoint of the forward operation in x, applied to dy [N, K, *output]."""
    _convolve(handle, Direction.BACKWARD_DATA, alpha, (dx, w, dy), (w, dy), conv, beta, dx, algorithm)


def convolution_backward_filter(
    handle: Handle,
    alpha: float,
    x: Tensor,
    dy: Tensor,
    conv: ConvolutionDescriptor,
    beta: float,
    dw: Tensor,
    *,
    algorithm: str | None = None,
) -> None:
    """dw [K, C/G, *filter] = the adjoint of the forward operation in w, applied to dy [N, K, *output]."""
    _convolve(handle, Direction.BACKWARD_FILTER, alpha, (x, dw, dy), (x, dy), conv, beta, dw, algorithm)


def _convolve(
    handle: Handle,
    direction: Direction,
    alpha: float,
    geometry: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, Tensor],
    conv: ConvolutionDescriptor,
    beta: float,
    output: Tensor,
    algorithm: str | None,
) -> None:
    x, w, y = (tensor.descriptor for tensor in geometry)
    plan = handle.plan(ConvolutionProblem(direction, x, w, y, conv), algorithm=algorithm)
    handle.run(plan, alpha, inputs, beta, (output,))


def convolution_backward_bias(handle: Handle, alpha: float, dy: Tensor, beta: float, db: Tensor) -> None:
    """db [1, K, 1, ...] = dy [N, K, *output] summed over the batch and all places."""
    expected = (1, dy.shape[1], *(1,) * (len(dy.shape) - 2))
    if db.shape != expected:
        raise BadParamError(f"db has shape {db.shape} but dy {dy.shape} needs {expected}")
    sum_to(handle, alpha, dy, beta, db)


def pooling_forward(
    handle: Handle, alpha: float, x: Tensor, pooling: PoolingDescriptor, beta: float, y: Tensor
) -> None:
    """y [N, C, *output] = maximum or average of x [N, C, *input] under each window; a maximum propagates NaN."""
    handle.run(handle.plan(PoolingForwardProblem(x.descriptor, y.descriptor, pooling)), alpha, (x,), beta, (y,))


def pooling_backward(
    handle: Handle,
    alpha: float,
    y: Tensor,
    dy: Tensor,
    x: Tensor,
    pooling: PoolingDescriptor,
    beta: float,
    dx: Tensor,
) -> None:
    """dx from what the forward operation read (x) and wrote (y) and from dy; of equal maxima the first takes all."""
    problem = PoolingBackwardProblem(y.descriptor, dy.descriptor, x.descriptor, dx.descriptor, pooling)
    handle.run(handle.plan(problem), alpha, (y, dy, x), beta, (dx,))


def activation_forward(
    handle: Handle, activation: ActivationDescriptor, alpha: float, x: Tensor, beta: float, y: Tensor
) -> None:
    """y = f(x), element by element; y may be x."""
    problem = ActivationForwardProblem(x.descriptor, y.descriptor, activation)
    handle.run(handle.plan(problem), alpha, (x,), beta, (y,))


def activation_backward(
    handle: Handle,
    activation: ActivationDescriptor,
    alpha: float,
    y: Tensor,
    dy: Tensor,
    x: Tensor,
    beta: float,
    dx: Tensor,
) -> None:
    """dx = f'(x) * dy, element by element; dx may be dy."""
    problem = ActivationBackwardProblem(y.descriptor, dy.descriptor, x.descriptor, dx.descriptor, activation)
    handle.run(handle.plan(problem), alpha, (y, dy, x), beta, (dx,))


def softmax_forward(
    handle: Handle,
    algorithm: SoftmaxAlgorithm,
    mode: SoftmaxMode,
    alpha: float,
    x: Tensor,
    beta: float,
    y: Tensor,
) -> None:
    """y = softmax of x [N, C, *spatial], or its logarithm; y may be x."""
    problem = SoftmaxForwardProblem(x.descriptor, y.descriptor, algorithm, mode)
    handle.run(handle.plan(problem), alpha, (x,), beta, (y,))


def softmax_backward(
    handle: Handle,
    algorithm: SoftmaxAlgorithm,
    mode: SoftmaxMode,
    alpha: float,
    y: Tensor,
    dy: Tensor,
    beta: float,
    dx: Tensor,
) -> None:
    """dx from what the forward operation wrote (y) and from dy; dx may be dy."""
    problem = SoftmaxBackwardProblem(y.descriptor, dy.descriptor, dx.descriptor, algorithm, mode)
    handle.run(handle.plan(problem), alpha, (y, dy), beta, (dx,))


def cross_entropy_forward(handle: Handle, alpha: float, x: Tensor, labels: Tensor, beta: float, loss: Tensor) -> None:
    """loss [N] = logsumexp(x[n]) - x[n, labels[n]] of logits x [N, K] and int32 labels [N]; 0 where a label is no class."""
    problem = CrossEntropyForwardProblem(x.descriptor, labels.descriptor, loss.descriptor)
    handle.run(handle.plan(problem), alpha, (x, labels), beta, (loss,))


def cross_entropy_backward(handle: Handle, alpha: float, x: Tensor, labels: Tensor, beta: float, dx: Tensor) -> None:
    """dx [N, K] = softmax(x) - onehot(labels): the gradient of the summed loss; alpha 1/N gives that of the mean."""
    problem = CrossEntropyBackwardProblem(x.descriptor, labels.descriptor, dx.descriptor)
    handle.run(handle.plan(problem), alpha, (x, labels), beta, (dx,))


def add(handle: Handle, alpha: float, a: Tensor, beta: float, c: Tensor) -> None:
    """c = alpha * a + beta * c; each extent of a is that of c or 1, as a bias [1, K, 1, 1] is."""
    handle.run(handle.plan(AddProblem(a.descriptor, c.descriptor)), alpha, (a,), beta, (c,))


def transform(handle: Handle, alpha: float, x: Tensor, beta: float, y: Tensor) -> None:
    """y = alpha * x + beta * y for equal shapes: a copy from one layout to another."""
    if x.shape != y.shape:
        raise BadParamError(f"x has shape {x.shape} but y has {y.shape}")
    add(handle, alpha, x, beta, y)


def sum_to(handle: Handle, alpha: float, x: Tensor, beta: float, y: Tensor) -> None:
    """y = x summed over the dimensions in which y has extent 1."""
    handle.run(handle.plan(SumProblem(x.descriptor, y.descriptor)), alpha, (x,), beta, (y,))


def matmul(handle: Handle, alpha: float, a: Tensor, b: Tensor, beta: float, c: Tensor) -> None:
    """c [M, N] = a [M, K] times b [K, N]."""
    handle.run(handle.plan(MatmulProblem(a.descriptor, b.descriptor, c.descriptor)), alpha, (a, b), beta, (c,))


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.view(tensor.descriptor.transposed())


def _as_matrix(tensor: Tensor) -> Tensor:
    """[N, ...] as [N, everything else]; the tensor must be row-major where it has more than two dimensions."""
    descriptor = tensor.descriptor
    if descriptor.ndim == 2:
        return tensor
    if not descriptor.is_row_major:
        raise BadParamError(f"{descriptor} has more than 2 dimensions and is not row-major; transform it first")
    rows = descriptor.shape[0]
    columns = TensorDescriptor.packed(descriptor.shape[1:], descriptor.dtype).size
    return tensor.reshape(rows, columns)


def inner_product_forward(handle: Handle, alpha: float, x: Tensor, w: Tensor, beta: float, y: Tensor) -> None:
    """y [N, K] = x [N, ...] (seen as [N, C]) times the transpose of w [K, C]."""
    matmul(handle, alpha, _as_matrix(x), _transposed(w), beta, y)


def inner_product_backward_data(handle: Handle, alpha: float, w: Tensor, dy: Tensor, beta: float, dx: Tensor) -> None:
    """dx [N, ...] (seen as [N, C]) = dy [N, K] times w [K, C]."""
    matmul(handle, alpha, dy, w, beta, _as_matrix(dx))


def inner_product_backward_weights(
    handle: Handle, alpha: float, x: Tensor, dy: Tensor, beta: float, dw: Tensor
) -> None:
    """dw [K, C] = the transpose of dy [N, K] times x [N, ...] (seen as [N, C])."""
    matmul(handle, alpha, _transposed(dy), _as_matrix(x), beta, dw)
