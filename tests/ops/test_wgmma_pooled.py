"""Pooled convolutions by patches of which a block takes several, of one slab of channels and of several, one of them short."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, DType, Handle, TensorDescriptor, ops
from dnncore.choice import fastest
from dnncore.cuda.convolution.pooled import POOLED
from dnncore.descriptors import ActivationDescriptor
from dnncore.figures import A100, H200
from dnncore.problems import PooledConvolutionProblem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check
from tests.ops.oracle import make_inputs

ALGORITHM = "implicit_gemm_wgmma"
WGMMA = next(algorithm for algorithm in POOLED if algorithm.name == ALGORITHM)
F16, BF16 = DType.FLOAT16, DType.BFLOAT16
SAME, INNER = ConvolutionDescriptor.make(padding=1), ConvolutionDescriptor.make()
LEAKY, RELU = ActivationDescriptor.make("leaky_relu", 0.125), ActivationDescriptor.make("relu")


def _of(
    dtype: DType,
    x: tuple[int, int, int, int],
    filters: int,
    convolution: ConvolutionDescriptor = SAME,
    activation: ActivationDescriptor | None = RELU,
    layout: str = "NHWC",
    taps: tuple[int, int] = (3, 3),
) -> PooledConvolutionProblem:
    w = (filters, x[1], *taps)
    batch, _, rows, columns = convolution.output_shape(x, w)
    of_x, of_w, of_y = (
        TensorDescriptor.packed(shape, dtype, layout) for shape in (x, w, (batch, filters, rows // 2, columns // 2))
    )
    row = TensorDescriptor.packed((1, filters, 1, 1))
    return PooledConvolutionProblem(of_x, of_w, of_y, convolution, row, activation)


@dataclass(frozen=True)
class Layer:
    problem: PooledConvolutionProblem
    multiprocessors: int = 1
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def kernel(self) -> str:
        return f"convolution_wgmma_pooled_{self.problem.x.dtype.value}_64x224"

    def case(self) -> Case:
        return Case(self.kernel, self.problem, self.alpha, self.beta)


LAYERS = {
    "a slab, two tiles of filters": Layer(_of(F16, (2, 40, 30, 18), 72), 2, -0.5, 2.0),
    "three slabs, the last short": Layer(_of(F16, (1, 136, 60, 10), 72, INNER, LEAKY), 1, 2.0, -1.0),
    "two slabs": Layer(_of(BF16, (3, 128, 28, 8), 64, SAME, None)),
    "fewer places than a patch": Layer(_of(BF16, (5, 8, 4, 6), 8, SAME, LEAKY), 1, 0.5),
}
KERNELS = {layer.kernel for layer in LAYERS.values()}
"""What the cases here run."""


@pytest.mark.cuda
@pytest.mark.parametrize("name", LAYERS)
def test_a_block_takes_several_patches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LAYERS[name]
    figures = replace(H200, multiprocessors=layer.multiprocessors)
    monkeypatch.setattr("dnncore.cuda.figures.of_device", lambda *_: figures)
    with Handle(CUDA_DEVICES[0]) as few:
        assert f"{layer.kernel}: " in few.plan(layer.problem, algorithm=ALGORITHM).describe()
        check(few, layer.case(), ALGORITHM)


@pytest.mark.cuda
def test_operands_that_start_anywhere_are_computed_elsewhere() -> None:
    with Handle(CUDA_DEVICES[0]) as own:
        check(own, LAYERS["fewer places than a patch"].case(), ALGORITHM, guard=GUARD + 1)


@pytest.mark.cuda
def test_a_nan_spreads_over_the_windows_that_it_reaches_and_no_further() -> None:
    problem = _of(F16, (1, 16, 32, 20), 8, SAME, None)
    x, w, row = make_inputs(problem, np.random.default_rng(0))
    x = x.copy()
    x[0, 3, 13, 8] = np.nan  # it reaches rows 12 to 14 and columns 7 to 9: windows 6 and 7, 3 and 4, of two rectangles
    with Handle(CUDA_DEVICES[0]) as own:
        tensors = [own.tensor(descriptor) for descriptor in problem.inputs]
        for tensor, value in zip(tensors, (x, w, row), strict=True):
            tensor.assign(value)
        y = own.tensor(problem.y)
        tx, tw, bias = tensors
        ops.pooled_convolution(own, 1.0, tx, tw, problem.convolution, 0.0, y, bias=bias, algorithm=ALGORITHM)
        places = np.argwhere(np.isnan(y.numpy()).all(axis=(0, 1)))
    assert places.tolist() == [[6, 3], [6, 4], [7, 3], [7, 4]]


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (_of(F16, (2, 64, 13, 13), 64, ConvolutionDescriptor.make(padding=2, stride=2)), "3 x 3, next to each other"),
        (
            _of(F16, (2, 64, 14, 14), 64, ConvolutionDescriptor.make(padding=2), taps=(5, 5)),
            "3 x 3, next to each other",
        ),
        (_of(F16, (2, 64, 14, 14), 64, layout="NCHW"), "channels"),
        (_of(F16, (2, 64, 14, 14), 64, activation=ActivationDescriptor.make("gelu")), "not gelu"),
    ],
    ids=["strides", "5x5", "planes", "activation"],
)
def test_what_it_does_not_take_is_said(problem: PooledConvolutionProblem, reason: str) -> None:
    assert reason in str(WGMMA.offer(problem, H200))
    assert "sm_80" in str(WGMMA.offer(_of(F16, (2, 64, 14, 14), 64), A100))


@pytest.mark.parametrize(
    ("channels", "size", "chosen"),
    [(64, 224, ALGORITHM), (128, 112, ALGORITHM), (256, 56, ALGORITHM), (512, 14, "layer_by_layer")],
)
def test_of_vgg_all_but_the_last_stage_pools_on_the_chip(channels: int, size: int, chosen: str) -> None:
    found = fastest(POOLED, _of(F16, (256, channels, size, size), channels), H200)
    assert found is not None
    assert found[0].name == chosen
