"""What descriptors, problems and operations take for an enum's member and for a number, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from dnncore import Handle, ops
from dnncore.descriptors import (
    ActivationDescriptor,
    ActivationMode,
    BatchNormMode,
    BinaryOperator,
    ConvolutionDescriptor,
    ConvolutionMode,
    CrossEntropyDescriptor,
    LRNDescriptor,
    LRNMode,
    MathType,
    PoolingDescriptor,
    PoolingMode,
    ReduceOperator,
    SoftmaxAlgorithm,
    SoftmaxMode,
    TensorDescriptor,
    UnaryOperator,
)
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    BinaryProblem,
    Col2ImProblem,
    ConvolutionProblem,
    Direction,
    DropoutProblem,
    FusedConvolutionProblem,
    GroupNormBackwardProblem,
    GroupNormForwardProblem,
    Im2ColProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
    ReduceProblem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
    UnaryProblem,
)

X = TensorDescriptor.packed((2, 4, 3, 3))
C = TensorDescriptor.packed((1, 4, 1, 1))
ONE = TensorDescriptor.packed((2, 1, 1, 1))
CONV = ConvolutionDescriptor.make(padding=1)
ZEROS = ((0, 0), (0, 0))
COLUMNS = TensorDescriptor.packed((2, 36, 9))

Maker = Callable[[Any], object]


def _binary(operator: Any) -> BinaryProblem:
    """Into what it gives, or into what it reads where it is none."""
    known = operator in [*BinaryOperator, *(member.value for member in BinaryOperator)]
    result = BinaryOperator(operator).result(X.dtype) if known else X.dtype
    return BinaryProblem(X, X, TensorDescriptor.packed(X.shape, result), operator)


ENUM_FIELDS: dict[str, tuple[Maker, str, type[Enum]]] = {
    "activation": (ActivationDescriptor, "mode", ActivationMode),
    "pooling": (lambda v: PoolingDescriptor(v, (2, 2), ZEROS, (2, 2)), "mode", PoolingMode),
    "convolution": (lambda v: ConvolutionDescriptor(ZEROS, (1, 1), (1, 1), 1, v), "mode", ConvolutionMode),
    "math": (
        lambda v: ConvolutionDescriptor(ZEROS, (1, 1), (1, 1), 1, ConvolutionMode.CONVOLUTION, v),
        "math",
        MathType,
    ),
    "lrn": (LRNDescriptor, "mode", LRNMode),
    "tensor": (lambda v: TensorDescriptor(v, (2,), (1,)), "dtype", DType),
    "direction": (
        lambda v: ConvolutionProblem(v, X, TensorDescriptor.packed((4, 4, 3, 3)), X, CONV),
        "direction",
        Direction,
    ),
    "softmax algorithm": (lambda v: SoftmaxForwardProblem(X, X, v, SoftmaxMode.CHANNEL), "algorithm", SoftmaxAlgorithm),
    "softmax mode": (lambda v: SoftmaxForwardProblem(X, X, SoftmaxAlgorithm.LOG, v), "mode", SoftmaxMode),
    "softmax backward algorithm": (
        lambda v: SoftmaxBackwardProblem(X, X, X, v, SoftmaxMode.CHANNEL),
        "algorithm",
        SoftmaxAlgorithm,
    ),
    "softmax backward mode": (lambda v: SoftmaxBackwardProblem(X, X, X, SoftmaxAlgorithm.LOG, v), "mode", SoftmaxMode),
    "binary": (_binary, "operator", BinaryOperator),
    "unary": (lambda v: UnaryProblem(X, X, v), "operator", UnaryOperator),
    "reduce": (lambda v: ReduceProblem(X, C, v), "operator", ReduceOperator),
}
"""How to make a value with a field of an enum, the field, the enum; batch normalisations are below: shapes follow their mode."""


def _batch_norms(mode: Any, parameter: TensorDescriptor) -> tuple[Any, ...]:
    p = parameter
    return (
        BatchNormInferenceProblem(X, p, p, p, p, X, mode, 1e-5),
        BatchNormForwardProblem(X, p, p, X, p, p, mode, 1e-5),
        BatchNormBackwardProblem(X, X, p, p, p, X, p, p, mode),
    )


@pytest.mark.parametrize(
    ("what", "member"), [(what, m) for what, (_, _, kind) in ENUM_FIELDS.items() for m in kind], ids=str
)
def test_text_stands_for_the_member_of_its_name(what: str, member: Enum) -> None:
    make, field, _ = ENUM_FIELDS[what]
    named, plain = make(member.value), make(member)
    assert getattr(named, field) is member
    assert named == plain
    assert hash(named) == hash(plain)


@pytest.mark.parametrize("what", ENUM_FIELDS)
@pytest.mark.parametrize("bad", ["bogus", "MAX", "", 0, ("max",)])
def test_what_names_no_member_is_refused_with_those_there_are(what: str, bad: object) -> None:
    make, _, kind = ENUM_FIELDS[what]
    with pytest.raises(BadParamError, match=f"use one of .*{next(iter(kind)).value}"):
        make(bad)


@pytest.mark.parametrize("mode", BatchNormMode)
def test_batch_normalisations_take_text(mode: BatchNormMode) -> None:
    parameter = C if mode is BatchNormMode.SPATIAL else TensorDescriptor.packed((1, 4, 3, 3))
    assert _batch_norms(mode.value, parameter) == _batch_norms(mode, parameter)
    for problem in _batch_norms(mode.value, parameter):
        assert problem.mode is mode


@pytest.mark.parametrize("index", range(3))
def test_batch_normalisations_refuse_other_text(index: int) -> None:
    good = _batch_norms("spatial", C)[index]
    values = {name: getattr(good, name) for name in good.__slots__}
    with pytest.raises(BadParamError, match="'bogus' is no BatchNormMode; use one of spatial, per_activation"):
        type(good)(**{**values, "mode": "bogus"})


def test_operations_compute_the_same_from_text(handle: Handle) -> None:
    rng = np.random.default_rng(0)
    x = handle.upload(rng.standard_normal((2, 4, 3, 3)).astype(np.float32))

    def result(run: Callable[[Any], None], shape: tuple[int, ...]) -> np.ndarray:
        y = handle.upload(np.full(shape, np.nan, np.float32))
        run(y)
        return y.numpy()

    softmax = result(lambda y: ops.softmax_forward(handle, "accurate", "channel", 1.0, x, 0.0, y), (2, 4, 3, 3))
    np.testing.assert_allclose(softmax.sum(1), 1, rtol=1e-6)

    largest: Any = "max"
    pooling = PoolingDescriptor(largest, (3, 3), ZEROS, (3, 3))
    maxima = result(lambda y: ops.pooling_forward(handle, 1.0, x, pooling, 0.0, y), (2, 4, 1, 1))
    np.testing.assert_array_equal(maxima[..., 0, 0], x.numpy().max((2, 3)))

    zeros, ones = (handle.upload(np.full((1, 4, 1, 1), v, np.float32)) for v in (0, 1))
    same = result(
        lambda y: ops.batch_norm_inference(handle, "spatial", 1.0, x, 0.0, y, ones, zeros, zeros, ones, 0.0),
        (2, 4, 3, 3),
    )
    np.testing.assert_allclose(same, x.numpy(), rtol=1e-6)
    with pytest.raises(BadParamError, match="use one of fast, accurate, log"):
        ops.softmax_forward(handle, "acurate", "channel", 1.0, x, 0.0, x)


INTEGER_FIELDS: dict[str, tuple[Maker, str]] = {
    "groups": (lambda v: ConvolutionDescriptor(ZEROS, (1, 1), (1, 1), v), "groups"),
    "groups of make": (lambda v: ConvolutionDescriptor.make(groups=v), "groups"),
    "n": (lambda v: LRNDescriptor(n=v), "n"),
    "n of make": (lambda v: LRNDescriptor.make(n=v), "n"),
    "ignore_index": (lambda v: CrossEntropyDescriptor(ignore_index=v), "ignore_index"),
    "groups of group_norm": (
        lambda v: GroupNormForwardProblem(X, X, *(TensorDescriptor.packed((2, 2, 1, 1)),) * 2, v, 1e-5),
        "groups",
    ),
    "groups of group_norm backward": (
        lambda v: GroupNormBackwardProblem(X, X, *(TensorDescriptor.packed((2, 2, 1, 1)),) * 2, X, v),
        "groups",
    ),
    "axis of layer_norm": (
        lambda v: LayerNormForwardProblem(X, X, TensorDescriptor.packed((2, 4, 1, 1)), v, 1e-5),
        "axis",
    ),
    "axis of layer_norm backward": (
        lambda v: LayerNormBackwardProblem(X, X, TensorDescriptor.packed((2, 4, 1, 1)), X, v),
        "axis",
    ),
}
"""Values that have a field of one integer; all take a 2."""

SEQUENCE_FIELDS: dict[str, tuple[Maker, str, Any]] = {
    "shape": (lambda v: TensorDescriptor(DType.FLOAT32, v, (3, 1)), "shape", (2, 3)),
    "shape of packed": (TensorDescriptor.packed, "shape", (2, 3)),
    "shape of with_shape": (X.with_shape, "shape", (2, 4, 3, 3)),
    "strides": (lambda v: TensorDescriptor(DType.FLOAT32, (2, 3), v), "strides", (3, 1)),
    "stride": (lambda v: ConvolutionDescriptor(ZEROS, v, (1, 1)), "stride", (2, 3)),
    "stride of make": (lambda v: ConvolutionDescriptor.make(stride=v), "stride", (2, 3)),
    "dilation": (lambda v: ConvolutionDescriptor(ZEROS, (1, 1), v), "dilation", (2, 3)),
    "dilation of make": (lambda v: ConvolutionDescriptor.make(dilation=v), "dilation", (2, 3)),
    "padding": (lambda v: ConvolutionDescriptor(v, (1, 1), (1, 1)), "padding", ((1, 2), (0, 1))),
    "padding of make": (lambda v: ConvolutionDescriptor.make(padding=v), "padding", ((1, 2), (0, 1))),
    "pooling window": (lambda v: PoolingDescriptor(PoolingMode.MAX, v, ZEROS, (2, 2)), "window", (2, 3)),
    "pooling window of make": (lambda v: PoolingDescriptor.make("max", v), "window", (2, 3)),
    "pooling stride": (lambda v: PoolingDescriptor(PoolingMode.MAX, (2, 2), ZEROS, v), "stride", (2, 3)),
    "pooling stride of make": (lambda v: PoolingDescriptor.make("max", 2, stride=v), "stride", (2, 3)),
    "pooling padding": (lambda v: PoolingDescriptor(PoolingMode.MAX, (3, 3), v, (2, 2)), "padding", ((1, 2), (0, 1))),
    "pooling padding of make": (lambda v: PoolingDescriptor.make("max", 3, padding=v), "padding", ((1, 2), (0, 1))),
    "im2col": (lambda v: Im2ColProblem(X, COLUMNS, CONV, v), "filter_shape", (3, 3)),
    "col2im": (lambda v: Col2ImProblem(COLUMNS, X, CONV, v), "filter_shape", (3, 3)),
}
"""Values that have a field of several integers, and what it may be."""


STATE = TensorDescriptor.packed((4,), "int32")
STATISTIC = TensorDescriptor.packed((2, 2, 1, 1))
FUSED = (X, TensorDescriptor.packed((4, 4, 3, 3)), X, CONV)

NUMBER_FIELDS: dict[str, tuple[Maker, str]] = {
    "coefficient": (lambda v: ActivationDescriptor(ActivationMode.ELU, v), "coefficient"),
    "alpha of LRN": (lambda v: LRNDescriptor(alpha=v), "alpha"),
    "beta of LRN": (lambda v: LRNDescriptor(beta=v), "beta"),
    "k of LRN": (lambda v: LRNDescriptor.make(k=v), "k"),
    "label_smoothing": (lambda v: CrossEntropyDescriptor(v), "label_smoothing"),
    "alpha1 of binary": (lambda v: BinaryProblem(X, X, X, BinaryOperator.ADD, alpha1=v), "alpha1"),
    "alpha2 of binary": (lambda v: BinaryProblem(X, X, X, BinaryOperator.ADD, alpha2=v), "alpha2"),
    "alpha1 of fused": (lambda v: FusedConvolutionProblem(*FUSED, alpha1=v), "alpha1"),
    "alpha2 of fused": (lambda v: FusedConvolutionProblem(*FUSED, z=X, alpha2=v), "alpha2"),
    "probability": (lambda v: DropoutProblem(X, STATE, X, v), "probability"),
    "epsilon": (lambda v: BatchNormInferenceProblem(X, C, C, C, C, X, BatchNormMode.SPATIAL, v), "epsilon"),
    "momentum": (lambda v: BatchNormForwardProblem(X, C, C, X, C, C, BatchNormMode.SPATIAL, 0.5, v), "momentum"),
    **{
        f"{field} of {name}": (partial(make, field), field)
        for field in ("parameter_alpha", "parameter_beta")
        for name, make in {
            "batch_norm": lambda f, v: BatchNormBackwardProblem(
                X,
                X,
                C,
                C,
                C,
                X,
                C,
                C,
                BatchNormMode.SPATIAL,
                **{"old_dscale": C, "old_dbias": C, "parameter_beta": 1.0, f: v},
            ),
            "group_norm": lambda f, v: GroupNormBackwardProblem(X, X, STATISTIC, STATISTIC, X, 2, **{f: v}),
            "layer_norm": lambda f, v: LayerNormBackwardProblem(X, X, ONE, X, 1, **{f: v}),
        }.items()
    },
}
"""Values that have a field of a real number; all take a half."""


@pytest.mark.parametrize("what", NUMBER_FIELDS)
def test_a_number_of_any_kind_is_as_good_as_a_plain_one(what: str) -> None:
    make, field = NUMBER_FIELDS[what]
    for half in (np.float16(0.5), np.float64(0.5), Fraction(1, 2), np.array(0.5, np.float32)):
        assert getattr(make(half), field) == 0.5


@pytest.mark.parametrize("what", NUMBER_FIELDS)
@pytest.mark.parametrize("bad", ["0.5", None, (0.5,), 0.5j, 10**400], ids=lambda bad: type(bad).__name__)
def test_what_is_no_number_is_refused_by_name_and_value(what: str, bad: object) -> None:
    make, field = NUMBER_FIELDS[what]
    with pytest.raises(BadParamError) as refusal:
        make(bad)
    assert f"{field} {bad!r} must be a number" in str(refusal.value)


@pytest.mark.parametrize("bad", ["1", b"1", None, 1j, [1.0]], ids=repr)
def test_factors_of_an_operation_that_are_no_numbers_are_refused_by_name(handle: Handle, bad: Any) -> None:
    with handle.upload(np.ones((2, 2), np.float32)) as x, handle.upload(np.ones((2, 2), np.float32)) as y:
        for alpha, beta, name in ((bad, 0.0, "alpha"), (1.0, bad, "beta")):
            with pytest.raises(BadParamError) as refusal:
                ops.transform(handle, alpha, x, beta, y)
            assert str(refusal.value) == f"{name} {bad!r} must be a number"
        with pytest.raises(BadParamError, match=r"value .* must be a number"):
            ops.set_tensor(handle, bad, y)
        with handle.record() as program, pytest.raises(BadParamError, match=r"alpha .* must be a number"):
            ops.scale_tensor(handle, bad, y)
        assert program.steps == []
        assert (y.numpy() == 1).all()


def test_factors_of_an_operation_may_be_numbers_of_any_kind(handle: Handle) -> None:
    with handle.upload(np.ones((2, 2), np.float32)) as x, handle.upload(np.ones((2, 2), np.float32)) as y:
        for alpha, beta in ((2, True), (np.float32(0.5), np.int8(2)), (Fraction(1, 4), np.array(0.5))):
            factors: Any = (alpha, beta)
            ops.transform(handle, factors[0], x, factors[1], y)
        assert (y.numpy() == 0.25 + 0.5 * (0.5 + 2 * (2 + 1))).all()


@pytest.mark.parametrize("what", INTEGER_FIELDS)
def test_an_integer_of_any_kind_becomes_a_plain_one(what: str) -> None:
    make, field = INTEGER_FIELDS[what]
    for two in (np.int8(2), np.uint64(2)):
        assert type(getattr(make(two), field)) is int
        assert make(two) == make(2)


@pytest.mark.parametrize("what", INTEGER_FIELDS)
@pytest.mark.parametrize("bad", [2.0, 2.9, "2", (2,), np.float32(2)])
def test_what_is_no_integer_is_refused_by_name_and_value(what: str, bad: object) -> None:
    make, field = INTEGER_FIELDS[what]
    with pytest.raises(BadParamError) as refusal:
        make(bad)
    assert f"{field} {bad!r} must be an integer" in str(refusal.value)


@pytest.mark.parametrize("what", SEQUENCE_FIELDS)
def test_sequences_of_any_integers_become_tuples_of_plain_ones(what: str) -> None:
    make, field, good = SEQUENCE_FIELDS[what]
    array = np.array(good, np.uint8)
    for like in (array, array.tolist(), tuple(map(tuple, array)) if array.ndim == 2 else tuple(array)):
        made = make(like)
        assert made == make(good)
        assert hash(made) == hash(make(good))
        value = getattr(made, field)
        assert value == good
        assert {type(number) for number in np.array(value, object).flat} == {int}


@pytest.mark.parametrize("what", SEQUENCE_FIELDS)
@pytest.mark.parametrize("bad", [1.5, (2, 2.5), (2.0, 3.0), "22", ("2", "3"), ((1, 2.5), (0, 1))], ids=repr)
def test_sequences_of_anything_else_are_refused_by_name_and_value(what: str, bad: object) -> None:
    make, field, _ = SEQUENCE_FIELDS[what]
    with pytest.raises(BadParamError) as refusal:
        make(bad)
    assert str(refusal.value).startswith(f"{field} ")
    if isinstance(bad, float):
        assert repr(bad) in str(refusal.value)


@pytest.mark.parametrize("number", [2, np.uint8(2), np.int64(2)])
def test_one_number_stands_for_all_spatial_dimensions(number: int) -> None:
    conv = ConvolutionDescriptor.make(3, padding=number, stride=number, dilation=number)
    assert conv == ConvolutionDescriptor(((2, 2),) * 3, (2, 2, 2), (2, 2, 2))
    assert PoolingDescriptor.make("max", number, spatial_ndim=1).stride == (2,)


def test_extents_do_not_wrap_around_in_numpys_widths() -> None:
    shape: Any = (np.int32(65537),) * 2
    strides: Any = (np.int32(65537), np.int32(1))
    assert TensorDescriptor(DType.FLOAT32, shape, strides).nbytes == 65537 * 65537 * 4
    assert TensorDescriptor.packed(shape).nbytes == 65537 * 65537 * 4
    far: Any = (np.int64(2**62),) * 2
    with pytest.raises(BadParamError, match="spans more than"):
        TensorDescriptor(DType.FLOAT32, (3, 3), far)
    dilation: Any = np.int32(2**31 - 1)
    with pytest.raises(BadParamError, match="more than the padded"):
        ConvolutionDescriptor.make(1, dilation=dilation).output_shape((1, 1, 5), (1, 1, 3))


def test_output_shapes_come_in_plain_integers() -> None:
    x: Any = np.array([1, 2, 100, 100], np.int8)
    w: Any = np.array([3, 2, 1, 1], np.int8)
    assert ConvolutionDescriptor.make(padding=100).output_shape(x, w) == (1, 3, 300, 300)
    assert PoolingDescriptor.make("max", 101, padding=100, stride=1).output_shape(x) == (1, 2, 200, 200)


@pytest.mark.parametrize("axes", [(0,), (0, 0, 1, 2), (0, 1, 2, 4), (0, 1, 2, 3, 3), (-1, 0, 1, 2), (0.0, 1, 2, 3)])
def test_axes_that_are_no_permutation_are_refused(axes: tuple[int, ...]) -> None:
    with pytest.raises(BadParamError, match="axes "):
        X.transposed(*axes)


def test_axes_may_be_any_integers() -> None:
    assert X.transposed(*np.array([0, 2, 3, 1])).shape == (2, 3, 3, 4)
    assert X.transposed().shape == (3, 3, 4, 2)


@pytest.mark.parametrize("strides", [(0, 1), (3, 2)])
def test_outputs_whose_elements_may_share_memory_are_refused_in_these_words(strides: tuple[int, int]) -> None:
    output = TensorDescriptor(DType.FLOAT32, (2, 3), strides)
    with pytest.raises(BadParamError, match="is written, but by its strides elements may share memory"):
        BinaryProblem(output, output, output, BinaryOperator.ADD)


@pytest.mark.parametrize(("seed", "offset", "field"), [(1.5, 0, "seed"), (0, 1.5, "offset"), ("7", 0, "seed")])
def test_a_random_state_is_of_integers(seed: Any, offset: Any, field: str) -> None:
    with pytest.raises(BadParamError, match=rf"{field} .* must be an integer"):
        ops.dropout_state(seed, offset)


def test_a_random_state_may_be_of_numpys_integers() -> None:
    seed: Any = np.uint64(2**64 - 1)
    offset: Any = np.int8(3)
    np.testing.assert_array_equal(ops.dropout_state(seed, offset), ops.dropout_state(2**64 - 1, 3))


def test_the_gradient_of_a_bias_needs_channels(handle: Handle) -> None:
    dy, db = (handle.upload(np.zeros(shape, np.float32)) for shape in ((5,), (1, 5)))
    with pytest.raises(BadParamError, match=r"dy has shape \(5,\); \[N, C, \.\.\.\] is needed"):
        ops.convolution_backward_bias(handle, 1.0, dy, 0.0, db)


@pytest.mark.parametrize("bad", [3, 2.5, (3, 2.5), None])
def test_columns_of_a_filter_without_a_sequence_of_extents_are_refused(handle: Handle, bad: Any) -> None:
    x, columns = handle.tensor((2, 4, 3, 3)), handle.tensor((2, 36, 9))
    with pytest.raises(BadParamError, match=r"filter_shape .* must be a sequence of integers"):
        ops.im2col(handle, 1.0, x, CONV, bad, 0.0, columns)
    with pytest.raises(BadParamError, match=r"filter_shape .* must be a sequence of integers"):
        ops.col2im(handle, 1.0, columns, CONV, bad, 0.0, x)
