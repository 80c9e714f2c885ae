"""What is not computed is refused by its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dnncore import functional
from dnncore.errors import BadParamError

F: Any = functional
X = np.ones((2, 4, 6, 5))
W = np.ones((3, 4, 3, 3))
ROWS = np.ones((2, 4))
LABELS = np.array([0, 1])
SCALAR = np.array(1.0)
IN_PLACE = ("relu", "relu6", "leaky_relu", "elu", "silu", "hardsigmoid", "hardswish", "dropout")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.conv2d(X[0, 0], W), r"input has shape \(6, 5\).* with 2 spatial dimensions"),
        (lambda: F.conv1d(X, W), "with 1 spatial dimensions"),
        (lambda: F.relu(None), "tensor 1 of 1 is None"),
        (lambda: F.conv2d(X, None), "tensor 2 of 3 is None"),
        (lambda: F.linear(F.relu(ROWS), None), "tensor 2 of 3 is None"),
        (lambda: F.conv2d(X, W[:, :3]), "x has 4 channels"),
        (lambda: F.conv2d(X, W, np.ones(4)), "bias has shape"),
        (lambda: F.conv2d(X, W, np.ones((3, 1))), r"has shape \(3, 1\); \[C\] is needed"),
        (lambda: F.conv2d(X, W, padding="full"), "padding 'full' is neither valid nor same"),
        (lambda: F.conv2d(X, W, padding="same", stride=2), '"same" keeps the extents'),
        (lambda: F.conv2d(X, W, stride="2"), "stride"),
        (lambda: F.conv2d(X, W.astype("f4")), "x is float64 but w is float32"),
        (lambda: F.conv2d(X.astype("i1"), W.astype("i1")), "x is int8; a floating-point dtype is needed"),
        (lambda: F.conv_transpose2d(X, W), r"input has 4 channels, weight \(3, 4, 3, 3\) needs 3"),
        (lambda: F.conv_transpose2d(X, W[0]), r"w has shape \(4, 3, 3\)"),
        (lambda: F.conv_transpose2d(X, np.ones((4, 3, 3, 3)), np.ones(1)), r"bias has shape \(1,\)"),
        (lambda: F.conv_transpose2d(X, np.ones((4, 3, 3, 3)), output_padding=1), r"output_padding \(1, 1\)"),
        (lambda: F.conv_transpose2d(X, np.ones((4, 3, 3, 3)), padding=9), "leaves no output"),
        (lambda: F.max_pool2d(X, 2, dilation=0), "dilation 0 must be 1 or more"),
        (lambda: F.max_pool2d(X, 2, dilation=2, return_indices=True), "return_indices is True, but dilation is 2"),
        (lambda: F.max_pool2d(X, 2, padding=3, dilation=2), "less than the window"),
        (lambda: F.max_pool2d(X, 2, dilation=5), "larger than the padded input"),
        (lambda: F.max_pool2d(X.astype("i1"), 2, dilation=2), "floating-point dtype is needed"),
        (lambda: F.max_pool2d(X, 2, padding=2), "less than the window"),
        (lambda: F.avg_pool2d(X, 2, ceil_mode=True, divisor_override=3), "divisor_override 3 with ceil_mode"),
        (lambda: F.avg_pool2d(X, 2, divisor_override=0), "divisor_override 0"),
        (lambda: F.adaptive_avg_pool2d(X[:, :, :0], (2, 1)), "output_size 2 over an extent of 0"),
        (lambda: F.adaptive_avg_pool2d(X.astype("i1"), (4, 1)), "floating-point dtype is needed"),
        (
            lambda: F.adaptive_max_pool2d(X, (4, 1), return_indices=True),
            r"return_indices is True, but \[4, 1\] adaptive windows",
        ),
        (lambda: F.adaptive_max_pool2d(X, 0), "output_size 0 must be 1 or more"),
        (lambda: F.adaptive_avg_pool2d(X, 0), "output_size 0 must be 1 or more"),
        (lambda: F.adaptive_avg_pool2d(X, (1, 1, 1)), "must be one number or 2"),
        (lambda: F.leaky_relu(X, -0.1), "coefficient -0.1"),
        (lambda: F.gelu(X, "erf"), "approximate 'erf' is none of none, tanh"),
        (lambda: F.norm(X, 3), "p 3 is none of 'fro', 2, 1, inf"),
        (lambda: F.norm(X, "nuc"), "p 'nuc' is none of"),
        (lambda: F.norm(X, -math.inf), "p -inf is none of"),
        (lambda: F.prod(X, 4), "dim 4 is none of a tensor with 4 dimensions"),
        (lambda: F.topk(X, 6), "k 6 is not from 0 to 5, the extent of dimension 3"),
        (lambda: F.topk(X, -1, 0), "k -1 is not from 0 to 2, the extent of dimension 0"),
        (lambda: F.topk(X, 1.5), "k 1.5 must be an integer"),
        (lambda: F.topk(X, 1, largest=False), "the smallest elements are not computed"),
        (lambda: F.softmax(X, 4), "dim 4 is none of a tensor with 4 dimensions"),
        (lambda: F.softmax(X, None), "dim None must be an integer"),
        (lambda: F.softmax(SCALAR, 1), "dim 1 is none of a tensor with 0 dimensions"),
        (lambda: F.softmax(X, 0, dtype="int64"), "dtype 'int64' is not supported"),
        (lambda: F.softmax(X, 0, dtype="int8"), "floating-point dtype is needed"),
        (lambda: F.softplus(X, 0), "beta is 0"),
        (lambda: F.softplus(X, threshold="20"), "threshold '20' must be a number"),
        *((lambda name=name: getattr(F, name)(X, inplace=True), "inplace is True") for name in IN_PLACE),
        (
            lambda: F.cross_entropy(ROWS, LABELS, np.ones(3)),
            r"weight is float64\[3\] but logits \(2, 4\) have 4 classes",
        ),
        (lambda: F.cross_entropy(ROWS, LABELS, np.ones(4, "i4")), r"weight is int32\[4\]"),
        (lambda: F.cross_entropy(ROWS, ROWS.astype("f4"), np.ones(4)), "target is float32 but logits are float64"),
        (lambda: F.cross_entropy(ROWS, LABELS, None, True), "size_average is True and reduce None"),
        (lambda: F.cross_entropy(ROWS, LABELS, reduce=False), "size_average is None and reduce False"),
        (lambda: F.cross_entropy(SCALAR, LABELS), r"input has shape \(\)"),
        (lambda: F.sum(SCALAR, 1), "dim 1 is none of a tensor with"),
        (lambda: F.topk(SCALAR, 2), "k 2 is not from 0 to 1"),
        (lambda: F.matmul(SCALAR, ROWS), r"input has shape \(\) and other \(2, 4\)"),
        (lambda: F.linear(SCALAR, ROWS), r"input has shape \(\)"),
        (lambda: F.conv2d(SCALAR, W), r"input has shape \(\)"),
        (lambda: F.max_pool2d(SCALAR, 2), r"input has shape \(\)"),
        (lambda: F.layer_norm(SCALAR, 1), "is not how x"),
        (lambda: F.cross_entropy(ROWS, LABELS, reduction="max"), "reduction 'max' is none of none, mean, sum"),
        (lambda: F.cross_entropy(ROWS, LABELS, label_smoothing=2), "label smoothing 2"),
        (lambda: F.cross_entropy(ROWS, LABELS[:1]), r"target has shape \(1,\) but logits \(2, 4\) need \(2,\)"),
        (lambda: F.cross_entropy(ROWS, ROWS[:, :2]), r"target has shape \(2, 2\)"),
        (lambda: F.cross_entropy(ROWS, LABELS.astype("i1")), "labels"),
        (lambda: F.batch_norm(X, None, None), "outside training both are needed"),
        (lambda: F.batch_norm(X, np.ones(4), None, training=True), "in training both or neither"),
        (lambda: F.batch_norm(np.ones(4), None, None, training=True), r"\[N, C, \*spatial\] is needed"),
        (lambda: F.batch_norm(X, np.ones(3), np.ones(3)), "mean is float64"),
        (lambda: F.group_norm(np.ones(4), 2), r"\[N, C, \*spatial\] is needed"),
        (lambda: F.group_norm(X, 3), "3 groups do not divide"),
        (lambda: F.layer_norm(X, (4,)), r"normalized_shape \(4,\) is not how x \(2, 4, 6, 5\) ends"),
        (lambda: F.layer_norm(X, ()), r"normalized_shape \(\)"),
        (lambda: F.layer_norm(X, (1, 2, 4, 6, 5)), "is not how x"),
        (lambda: F.layer_norm(X, 5, np.ones(4)), "scale is float64"),
        (lambda: F.local_response_norm(X, 4), "size 4 is even"),
        (lambda: F.dropout(X), "dropout in training needs a seed"),
        (lambda: F.dropout(X, 1.5, seed=0), "probability 1.5"),
        (lambda: F.dropout(X, seed=np.zeros(3, np.int32)), "state"),
        (lambda: F.unfold(X[0, 0], 2), "with 2 spatial dimensions"),
        (lambda: F.fold(X, 2, 2), r"\[N, C \* taps, places\]"),
        (lambda: F.fold(ROWS, 3, 3), "no multiple of the 9 taps"),
        (lambda: F.fold(np.ones((4, 7)), 3, 2), "columns"),
        (lambda: F.linear(X, W), r"weight has shape \(3, 4, 3, 3\); \[K, C\] is needed"),
        (
            lambda: F.linear(ROWS, np.ones((3, 4)), np.ones(4)),
            r"bias has shape \(4,\) but weight \(3, 4\) needs \(3,\)",
        ),
        (lambda: F.linear(ROWS, np.ones((3, 5))), "a has 4 columns but b has 5 rows"),
        (lambda: F.matmul(X, X), "products with more than one matrix are not supported"),
        (lambda: F.add(X, np.ones(4)), r"shapes .* differ where neither has an extent of 1"),
        (lambda: F.add(X, ROWS.astype("f4")[:, :1, None, None]), "is float64 but b is float32"),
        (lambda: F.add(2.0, X), "float is no tensor"),
        (lambda: F.sum(X, (1, -3)), "names a dimension twice"),
        (lambda: F.sum(X.astype("i4")), "floating-point dtype is needed"),
    ],
)
def test_it_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(BadParamError, match=message):
        call()
