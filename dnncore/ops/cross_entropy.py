"""Cross-entropy of logits, forward and backward."""

from __future__ import annotations

from dnncore.descriptors import CrossEntropyDescriptor
from dnncore.handle import Handle
from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from dnncore.tensor import Tensor

__all__ = ["cross_entropy_backward", "cross_entropy_forward"]

_PLAIN = CrossEntropyDescriptor()


def cross_entropy_forward(
    handle: Handle,
    alpha: float,
    x: Tensor,
    labels: Tensor,
    beta: float,
    loss: Tensor,
    cross_entropy: CrossEntropyDescriptor = _PLAIN,
) -> None:
    """loss [N] = logsumexp(x[n]) - x[n, labels[n]] of logits x [N, K] and int32 labels [N]; 0 where a label is no class.

    Args:
        x: [N, K], any strides.
        labels: Classes, int32 [N], or probabilities [N, K] of the dtype of x.
        loss: [N], of the dtype of x or, where that has 16 bits, float32.
        cross_entropy: Label smoothing, and a class to ignore.
    """
    arguments = (x.descriptor, labels.descriptor, loss.descriptor, cross_entropy)
    handle.execute(CrossEntropyForwardProblem, arguments, alpha, (x, labels), beta, (loss,))


def cross_entropy_backward(
    handle: Handle,
    alpha: float,
    x: Tensor,
    labels: Tensor,
    beta: float,
    dx: Tensor,
    cross_entropy: CrossEntropyDescriptor = _PLAIN,
) -> None:
    """dx [N, K] = softmax(x) - onehot(labels): the gradient of the summed loss; alpha 1/N gives that of the mean."""
    arguments = (x.descriptor, labels.descriptor, dx.descriptor, cross_entropy)
    handle.execute(CrossEntropyBackwardProblem, arguments, alpha, (x, labels), beta, (dx,))
