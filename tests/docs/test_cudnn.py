"""The page that maps cuDNN to dnncore: complete, and every name of ours on it exists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dnncore
import dnncore.problems
from dnncore.cuda.algorithms import algorithms_for
from dnncore.problems import ConvolutionProblem
from dnncore.reference import ReferenceDevice
from tests.cases import CASES

PAGE = (Path(__file__).parents[2] / "docs/cudnn.md").read_text()


def words(text: str) -> list[str]:
    return text.split()


# cudnn.h of v2 (CUDNN_VERSION 2000), in its order.
V2_FUNCTIONS = words("""
GetVersion GetErrorString Create Destroy SetStream GetStream
CreateTensorDescriptor SetTensor4dDescriptor SetTensor4dDescriptorEx GetTensor4dDescriptor SetTensorNdDescriptor
GetTensorNdDescriptor DestroyTensorDescriptor TransformTensor AddTensor SetTensor ScaleTensor
CreateFilterDescriptor SetFilter4dDescriptor GetFilter4dDescriptor SetFilterNdDescriptor GetFilterNdDescriptor
DestroyFilterDescriptor
CreateConvolutionDescriptor SetConvolution2dDescriptor GetConvolution2dDescriptor GetConvolution2dForwardOutputDim
SetConvolutionNdDescriptor GetConvolutionNdDescriptor GetConvolutionNdForwardOutputDim DestroyConvolutionDescriptor
GetConvolutionForwardAlgorithm GetConvolutionForwardWorkspaceSize
ConvolutionForward ConvolutionBackwardBias ConvolutionBackwardFilter ConvolutionBackwardData Im2Col
SoftmaxForward SoftmaxBackward
CreatePoolingDescriptor SetPooling2dDescriptor GetPooling2dDescriptor SetPoolingNdDescriptor GetPoolingNdDescriptor
GetPoolingNdForwardOutputDim GetPooling2dForwardOutputDim DestroyPoolingDescriptor PoolingForward PoolingBackward
ActivationForward ActivationBackward
""")

# What v1 had and v2 renamed or dropped: the bindings of soumith/cudnn.torch (branch R1) and hannes-brt/cudnn-python-wrappers.
V1_FUNCTIONS = words("""
CreateTensor4dDescriptor DestroyTensor4dDescriptor TransformTensor4d AddTensor4d SetTensor4d SetFilterDescriptor GetFilterDescriptor
SetConvolutionDescriptor SetConvolutionDescriptorEx GetOutputTensor4dDim SetPoolingDescriptor GetPoolingDescriptor
""")

ENUMERATIONS = words("""
Status DataType TensorFormat AddMode ConvolutionMode ConvolutionFwdPreference ConvolutionFwdAlgo SoftmaxAlgorithm SoftmaxMode
PoolingMode ActivationMode ConvolutionPath AccumulateResult
""")

ENUMERATORS = words("""
DATA_FLOAT DATA_DOUBLE TENSOR_NCHW TENSOR_NHWC
ADD_IMAGE ADD_SAME_HW ADD_FEATURE_MAP ADD_SAME_CHW ADD_SAME_C ADD_FULL_TENSOR CONVOLUTION CROSS_CORRELATION
CONVOLUTION_FWD_NO_WORKSPACE CONVOLUTION_FWD_PREFER_FASTEST CONVOLUTION_FWD_SPECIFY_WORKSPACE_LIMIT
CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM CONVOLUTION_FWD_ALGO_GEMM
CONVOLUTION_FWD_ALGO_DIRECT SOFTMAX_FAST SOFTMAX_ACCURATE SOFTMAX_MODE_INSTANCE SOFTMAX_MODE_CHANNEL
POOLING_MAX POOLING_AVERAGE_COUNT_INCLUDE_PADDING POOLING_AVERAGE_COUNT_EXCLUDE_PADDING
ACTIVATION_SIGMOID ACTIVATION_RELU ACTIVATION_TANH
CONVOLUTION_FWD CONVOLUTION_WEIGHT_GRAD CONVOLUTION_DATA_GRAD RESULT_ACCUMULATE RESULT_NO_ACCUMULATE POOLING_AVERAGE
STATUS_SUCCESS STATUS_NOT_INITIALIZED STATUS_ALLOC_FAILED STATUS_BAD_PARAM STATUS_INTERNAL_ERROR STATUS_INVALID_VALUE
STATUS_ARCH_MISMATCH STATUS_MAPPING_ERROR STATUS_EXECUTION_FAILED STATUS_NOT_SUPPORTED STATUS_LICENSE_ERROR
""")

CHECKLIST = [
    *(f"cudnn{name}" for name in (*V2_FUNCTIONS, *V1_FUNCTIONS)),
    *(f"cudnn{name}_t" for name in ENUMERATIONS),
    *(f"CUDNN_{name}" for name in ENUMERATORS),
]


def rows() -> Iterator[list[str]]:
    for line in PAGE.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def ours() -> set[str]:
    """Everything in code marks that is not in a row's first column and is not cuDNN's."""
    prose = "\n".join(line for line in PAGE.splitlines() if not line.startswith("|"))
    cells = [cell for row in rows() for cell in row[1:]]
    marked = {name for text in (prose, *cells) for name in re.findall(r"`([^`]+)`", text)}
    return {name for name in marked if not name.lower().startswith("cudnn")}


def resolve(name: str) -> Any:
    """An attribute of the package; of a class, also one that its instances have."""
    found: Any = dnncore
    for part in name.split("."):
        if found is dnncore.Handle and not hasattr(found, part):
            with dnncore.Handle("cpu") as handle:
                found = getattr(handle, part)
        else:
            found = getattr(found, part)
    return found


def test_the_checklist_is_that_of_the_headers() -> None:
    assert (len(V2_FUNCTIONS), len(V1_FUNCTIONS), len(ENUMERATIONS)) == (52, 12, 11 + 2)
    assert len(CHECKLIST) == len(set(CHECKLIST))


def test_every_name_of_cudnn_has_exactly_one_row() -> None:
    named = Counter(name for first, *_ in rows() for name in re.findall(r"`(\w+)`", first))
    assert named == Counter(CHECKLIST)


@pytest.mark.parametrize("name", sorted(name for name in ours() if re.fullmatch(r"[A-Za-z_][\w.]*", name)))
def test_every_name_of_ours_exists(name: str) -> None:
    resolve(name)


def test_every_algorithm_it_names_exists() -> None:
    there = {"cpu"}  # a device
    device = ReferenceDevice()
    for problem in (case.problem for case in CASES if isinstance(case.problem, ConvolutionProblem)):
        there |= {algorithm.name for algorithm in (*algorithms_for(problem), *device.algorithms(problem))}
    named = {name.strip('"') for name in ours() if re.fullmatch(r'"\w+"', name)} - {"NHWC"}
    assert named
    assert named <= there
