"""Operations as frozen values: the key of every cache, the unit of every test case and of every benchmark.

The first output of every operation is blended: it becomes ``alpha * operation(inputs) + beta * output``, and with beta 0 it is
written without being read. Further outputs (saved statistics, indices) are overwritten, unless the problem says otherwise. A
problem names the descriptors of its inputs and outputs, in the order in which launches take them.
"""

from dnncore.problems.activation import ActivationBackwardProblem, ActivationForwardProblem
from dnncore.problems.convolution import ConvolutionProblem, Direction
from dnncore.problems.cross_entropy import CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from dnncore.problems.matmul import MatmulProblem
from dnncore.problems.pooling import PoolingBackwardProblem, PoolingForwardProblem
from dnncore.problems.problem import Problem
from dnncore.problems.softmax import SoftmaxBackwardProblem, SoftmaxForwardProblem
from dnncore.problems.tensor import AddProblem, SumProblem

__all__ = [
    "ActivationBackwardProblem",
    "ActivationForwardProblem",
    "AddProblem",
    "ConvolutionProblem",
    "CrossEntropyBackwardProblem",
    "CrossEntropyForwardProblem",
    "Direction",
    "MatmulProblem",
    "PoolingBackwardProblem",
    "PoolingForwardProblem",
    "Problem",
    "SoftmaxBackwardProblem",
    "SoftmaxForwardProblem",
    "SumProblem",
]
