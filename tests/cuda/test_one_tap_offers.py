"""Which matrix products are computed as convolutions, as which of these, and why others are not. No device."""

from __future__ import annotations

import re

import pytest

from dnncore import DType, TensorDescriptor
from dnncore.choice import fastest
from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.calls import KernelCall, Place, WhereAligned
from dnncore.cuda.one_tap import GEMM_3XTF32, GEMM_WGMMA, OneTapMatmul
from dnncore.figures import A100, H200
from dnncore.problems import MatmulProblem
from tests.cases.matmul import matrix
from tests.cuda.products import offered, refused

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64


def _packed(rows: int, columns: int, dtype: DType, *, transposed: bool = False) -> TensorDescriptor:
    if transposed:
        return TensorDescriptor.packed((columns, rows), dtype).transposed()
    return TensorDescriptor.packed((rows, columns), dtype)


def _linear(direction: str, batch: int, inputs: int, outputs: int, dtype: DType) -> MatmulProblem:
    """A fully connected layer from x [batch, inputs] to y [batch, outputs] with w [outputs, inputs], or one of its gradients."""
    x, y, w = _packed(batch, inputs, dtype), _packed(batch, outputs, dtype), _packed(outputs, inputs, dtype)
    return {
        "forward": MatmulProblem(x, w.transposed(), y),
        "backward-data": MatmulProblem(y, w, x),
        "backward-filter": MatmulProblem(y.transposed(), x, w),
    }[direction]


def _chosen(problem: MatmulProblem) -> str:
    found = fastest(algorithms_for(problem), problem, H200)
    assert found is not None
    return found[0].name


def _call(problem: MatmulProblem) -> KernelCall:
    """The kernel of wgmma."""
    (choice,) = offered(GEMM_WGMMA, problem).prepare()
    assert isinstance(choice, WhereAligned)
    (call, *_) = choice.aligned
    assert isinstance(call, KernelCall)
    return call


FORWARD, BACKWARD_DATA, BACKWARD_FILTER = (
    "wgmma_float16",
    "wgmma_backward_data_float16",
    "wgmma_backward_filter_float16",
)


@pytest.mark.parametrize(
    ("of_a", "of_b", "of_c", "kernel", "as_y"),
    [
        ("rows", "columns", "rows", FORWARD, 2),
        ("rows", "columns", "columns", FORWARD, 2),
        ("rows", "rows", "rows", BACKWARD_DATA, 2),
        ("columns", "columns", "columns", BACKWARD_DATA, 2),
        ("columns", "rows", "rows", BACKWARD_FILTER, None),
        ("columns", "rows", "columns", BACKWARD_FILTER, None),
        ("columns", "rows", "nowhere", BACKWARD_FILTER, None),
    ],
)
def test_where_neighbours_lie_says_which_convolution_it_is(
    of_a: str, of_b: str, of_c: str, kernel: str, as_y: int | None
) -> None:
    problem = MatmulProblem(matrix(400, 128, F16, of_a), matrix(128, 320, F16, of_b), matrix(400, 320, F16, of_c))
    call = _call(problem)
    assert call.unit.entry.startswith(f"convolution_{kernel}_")
    mapped = {slot.place for slot in call.maps}
    assert mapped == {Place(operand) for operand in (0, 1, as_y) if operand is not None}


def test_transposing_a_product_exchanges_its_operands() -> None:
    """And nothing else: parameters are those of the same convolution."""
    problem = _linear("forward", 400, 1024, 320, F16)
    a, b, c = problem.a, problem.b, problem.c
    call = _call(problem)
    other = _call(MatmulProblem(b.transposed(), a.transposed(), c.transposed()))
    exchanged = {Place(0): Place(1), Place(1): Place(0), Place(2): Place(2)}
    assert (other.unit, other.grid, other.params) == (call.unit, call.grid, call.params)
    assert [(slot.field, exchanged[slot.place], slot.tensor) for slot in other.maps] == [
        (slot.field, slot.place, slot.tensor) for slot in call.maps
    ]


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (MatmulProblem(*(_packed(256, 256, F64) for _ in range(3))), "a is float64; it takes float16, bfloat16"),
        (_linear("forward", 256, 8, 256, F16), "sums of 8 products; at least 16"),
        (_linear("backward-filter", 1, 4096, 4096, F16), "sums of 1 products; at least 16"),
        (_linear("forward", 64, 64, 64, F16), "64 x 64 sums of 64 products take no longer than a launch"),
        (_linear("forward", 0, 128, 128, F16), "there is nothing to multiply"),
        (_linear("forward", 32, 2**17, 128, F16), "sums of 131072 products; at most 65536"),
        (
            MatmulProblem(_packed(128, 256, F16, transposed=True), _packed(256, 128, F16, transposed=True), _packed(128, 128, F16)),
            r"a \(.*\) needs neighbours along its rows, rows a multiple of 8 elements apart; or "
            r"c \(.*\) needs neighbours along its columns, columns a multiple of 8 elements apart, and a multiple of 8 "
            r"elements in each; or b \(.*\) needs neighbours along its rows",
        ),
        (
            _linear("forward", 128, 100, 128, F16),
            r"a \(.*\) needs neighbours along its rows, rows a multiple of 8 elements apart and b \(.*\) needs",
        ),
        (
            _linear("forward", 128, 512, 10, F16),
            r"c \(.*\) needs neighbours along its rows, rows a multiple of 8 elements apart, and a multiple of 8 elements in each",
        ),
        (
            MatmulProblem(_packed(128, 256, F16), _packed(256, 128, F16), matrix(128, 128, F16, "nowhere")),
            r"c \(.*\) needs neighbours along its rows",
        ),
        (
            MatmulProblem(TensorDescriptor(F16, (128, 256), (0, 1)), _packed(256, 128, F16), _packed(128, 128, F16)),
            r"a \(.*\) needs neighbours along its rows, rows a multiple of 8",
        ),
    ],
)  # fmt: skip
def test_what_it_does_not_take_is_refused_with_the_reason(problem: MatmulProblem, message: str) -> None:
    assert re.search(message, refused(GEMM_WGMMA, problem))


def test_float32_is_split_only_where_two_operands_are_taken_as_they_are() -> None:
    a, b, c = (matrix(256, 256, F32, where) for where in ("rows", "rows", "nowhere"))
    assert "c (" in refused(GEMM_3XTF32, MatmulProblem(a, b, c))
    assert "a is float16; it takes float32" in refused(GEMM_3XTF32, _linear("forward", 256, 256, 256, F16))
    assert offered(GEMM_3XTF32, MatmulProblem(matrix(256, 256, F32, "nowhere"), a, b)).math == "dtype"


@pytest.mark.parametrize("algorithm", [GEMM_WGMMA, GEMM_3XTF32], ids=lambda algorithm: algorithm.name)
def test_they_are_deterministic_and_for_one_architecture(algorithm: OneTapMatmul) -> None:
    for direction in ("forward", "backward-data", "backward-filter"):
        problem = _linear(direction, 256, 1024, 512, algorithm.dtypes[0])
        assert "is a kernel for sm_90a, not for sm_80" in str(algorithm.offer(problem, A100))
        assert offered(algorithm, problem).deterministic


WGMMA, THREE, TILED, SPLIT = "gemm_wgmma", "gemm_3xtf32", "gemm", "gemm_split_k"
LINEAR = {
    "alexnet-fc6": (9216, 4096),
    "vgg-fc6": (25088, 4096),
    "fc7": (4096, 4096),
    "fc8": (4096, 1000),
    "resnet-fc": (2048, 1000),
}
CHOSEN = (
    ("forward", F16, 1, dict.fromkeys(LINEAR, WGMMA)),
    ("forward", F16, 32, dict.fromkeys(LINEAR, WGMMA)),
    ("forward", F16, 128, dict.fromkeys(LINEAR, WGMMA)),
    ("backward-data", F16, 1, dict.fromkeys(LINEAR, WGMMA) | {"vgg-fc6": SPLIT}),
    ("backward-data", F16, 32, dict.fromkeys(LINEAR, WGMMA)),
    ("backward-data", F16, 128, dict.fromkeys(LINEAR, WGMMA)),
    ("backward-filter", F16, 1, dict.fromkeys(LINEAR, TILED)),
    ("backward-filter", F16, 32, dict.fromkeys(LINEAR, WGMMA)),
    ("backward-filter", F16, 128, dict.fromkeys(LINEAR, WGMMA)),
    ("forward", F32, 1, dict.fromkeys(LINEAR, SPLIT)),
    ("forward", F32, 128, dict.fromkeys(LINEAR, THREE)),
    ("backward-data", F32, 1, dict.fromkeys(LINEAR, SPLIT)),
    ("backward-data", F32, 128, dict.fromkeys(LINEAR, SPLIT) | {"alexnet-fc6": THREE, "vgg-fc6": THREE}),
    ("backward-filter", F32, 1, dict.fromkeys(LINEAR, TILED)),
    ("backward-filter", F32, 128, dict.fromkeys(LINEAR, THREE)),
)
"""By estimate; nothing of it is measured."""


@pytest.mark.parametrize(
    ("direction", "dtype", "batch", "expected"),
    CHOSEN,
    ids=[f"{direction}-{dtype.value}-{batch}" for direction, dtype, batch, _ in CHOSEN],
)
def test_what_is_chosen_for_the_linear_layers_of_nets(
    direction: str, dtype: DType, batch: int, expected: dict[str, str]
) -> None:
    found = {name: _chosen(_linear(direction, batch, *sizes, dtype)) for name, sizes in LINEAR.items()}
    assert found == expected


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=lambda dtype: dtype.value)
def test_large_products_are_for_the_matrix_units_of_sm_90(dtype: DType) -> None:
    """In every layout but that in which neither operand and the result have neighbours along the same index."""
    for a_transposed, b_transposed in ((False, False), (False, True), (True, False)):
        a = _packed(4096, 4096, dtype, transposed=a_transposed)
        b = _packed(4096, 4096, dtype, transposed=b_transposed)
        problem = MatmulProblem(a, b, _packed(4096, 4096, dtype))
        best = offered(GEMM_3XTF32 if dtype is F32 else GEMM_WGMMA, problem)
        tiled = next(each for each in algorithms_for(problem) if each.name == TILED)
        assert _chosen(problem) == (THREE if dtype is F32 else WGMMA)
        assert best.seconds < offered(tiled, problem).seconds * (0.8 if dtype is F32 else 0.6)


@pytest.mark.parametrize(
    ("m", "n", "k", "chosen"),
    [
        (1, 4096, 8, TILED),
        (1, 8, 4096, SPLIT),
        (8, 8, 16, TILED),
        (64, 64, 64, TILED),
        (65536, 16, 16, TILED),
        (100_000, 8, 64, TILED),
        (16, 16, 65536, SPLIT),
    ],
)
def test_small_and_narrow_products_stay_with_the_tiled_kernels(m: int, n: int, k: int, chosen: str) -> None:
    problem = MatmulProblem(_packed(m, k, F16), _packed(k, n, F16), _packed(m, n, F16))
    assert _chosen(problem) == chosen


def test_what_a_few_blocks_read_takes_as_long_as_memory_does() -> None:
    """205 MB of filters of one row: by the steps of a block it would be less."""
    problem = _linear("forward", 1, 25088, 4096, F16)
    assert _call(problem).unit.entry.endswith("_by_2")
    assert offered(GEMM_WGMMA, problem).seconds > problem.b.nbytes / H200.bytes_per_second


def test_blocks_take_whole_tiles_where_a_gradient_has_several_for_each() -> None:
    """1024 tiles of 128 x 128: eight for each of 128 blocks. 132 blocks would share tiles, whose parts go through the workspace."""
    problem = _linear("backward-filter", 4096, 4096, 4096, F16)
    assert _call(problem).grid == (128, 1, 1)
    assert offered(GEMM_WGMMA, problem).workspace_bytes == 0
