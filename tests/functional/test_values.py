"""Every function against PyTorch's of the same name, called with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import dnncore
from dnncore import TensorDescriptor, spare
from dnncore import functional as F
from dnncore.descriptors import PoolingMode
from dnncore.dtypes import DType
from dnncore.functional.adaptive_pooling import _adaptive
from dnncore.functional.normalization import _batch_norm
from dnncore.functional.unary import _softplus_of
from dnncore.testing import unit_roundoff
from tests.functional.cases import CASES, Case

TorchTensor = Any


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result has new memory: the emulated driver tells who reads that before it is written, but not of memory used before."""
    monkeypatch.setattr(spare, "MOST_BYTES", 0)


_NOT_OF_PYTORCH = {"Operand", "handle"}
_PREDICATES = ("eq", "ge", "gt", "le", "logical_and", "logical_or", "logical_xor", "lt", "ne")


def _tensors(case: Case, dtype: str = "float64") -> dict[str, TorchTensor]:
    return {name: torch.from_numpy(array) for name, array in case.arrays(dtype).items()}


def _expected(case: Case, tensors: dict[str, TorchTensor]) -> TorchTensor:
    return case.theirs(**tensors, **case.settings)


def _check(case: Case, tensors: dict[str, TorchTensor], result: dnncore.Tensor) -> None:
    expected = _expected(case, tensors)
    torch.testing.assert_close(torch.from_numpy(result.numpy()), expected, rtol=1e-10, atol=1e-12)


def _with_gaps(x: TorchTensor) -> TorchTensor:
    if not x.dim():
        return torch.zeros(3, dtype=x.dtype).index_fill(0, torch.tensor(1), x.item())[1]
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 1, dtype=x.dtype)
    wide[..., 1::2] = x
    return wide[..., 1::2]


def _reversed_in_memory(x: TorchTensor) -> TorchTensor:
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


LAYOUTS = {"row-major": torch.Tensor.contiguous, "gaps": _with_gaps, "reversed": _reversed_in_memory}


def test_every_function_has_a_case() -> None:
    assert {case.name for case in CASES} == set(F.__all__) - _NOT_OF_PYTORCH - {
        "dropout",
        "topk",
        "where",
        *_PREDICATES,
    }


@pytest.mark.parametrize("name", _PREDICATES)
def test_what_a_predicate_gives_chooses(name: str) -> None:
    a, b = torch.tensor([[0.0, 1, 2]]), torch.tensor([[1.0], [2], [0]])
    condition = getattr(F, name)(a, b)
    assert condition.dtype is DType.BOOL
    expected = torch.where(getattr(torch, name)(a, b), a, b)
    assert np.array_equal(F.where(condition, a, b).numpy(), expected.numpy())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_pytorch(case: Case, layout: str) -> None:
    tensors = {name: LAYOUTS[layout](tensor) for name, tensor in _tensors(case).items()}
    theirs = {name: tensor.clone() for name, tensor in tensors.items()}
    _check(case, theirs, case.ours(**tensors, **case.settings))
    for name in tensors:  # running statistics are updated, everything else left alone
        torch.testing.assert_close(tensors[name], theirs[name], rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_on_each_device(case: Case, handle: dnncore.Handle) -> None:
    arrays = case.arrays("float32")
    theirs = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    ours = {
        name: handle.upload(array.astype(np.int32) if name in case.classes else array) for name, array in arrays.items()
    }
    allowed = 64 * unit_roundoff(DType.FLOAT32)
    result, expected = case.ours(**ours, **case.settings), _expected(case, theirs)
    torch.testing.assert_close(torch.from_numpy(result.numpy()), expected, rtol=allowed, atol=allowed)
    for name in set(ours) - set(case.classes):
        torch.testing.assert_close(torch.from_numpy(ours[name].numpy()), theirs[name], rtol=allowed, atol=allowed)
    for tensor in ours.values():
        tensor.close()


@pytest.mark.parametrize("case", [case for case in CASES if len(case.operands["input"]) in (4, 5)], ids=str)
def test_what_is_channels_last_stays_so(case: Case) -> None:
    tensors = _tensors(case)
    ndim = tensors["input"].dim()
    last = torch.channels_last if ndim == 4 else torch.channels_last_3d
    tensors["input"] = tensors["input"].to(memory_format=last)
    theirs = {name: tensor.clone() for name, tensor in tensors.items()}
    result = case.ours(**tensors, **case.settings)
    _check(case, theirs, result)
    images = case.name.startswith(("conv", "avg_pool", "max_pool")) and f"{ndim - 2}d" in case.name
    if images or case.name.startswith(("batch_norm", "relu", "gelu")):
        assert torch.from_dlpack(result).is_contiguous(memory_format=last)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("case", [case for case in CASES if not case.settings], ids=str)
def test_results_have_the_dtype_of_the_operands(case: Case, dtype: str) -> None:
    narrow = {
        name: tensor if name in case.classes else tensor.to(getattr(torch, dtype))
        for name, tensor in _tensors(case).items()
    }
    result = case.ours(**narrow, **case.settings)
    assert result.dtype is DType(dtype)
    wide = {name: tensor if name in case.classes else tensor.double() for name, tensor in narrow.items()}
    allowed = 64 * unit_roundoff(DType(dtype))
    actual = torch.from_numpy(result.numpy().astype(np.float64))
    torch.testing.assert_close(actual, _expected(case, wide), rtol=allowed, atol=allowed)


def test_the_places_of_maxima_are_those_of_pytorch() -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 8, 7)))
    y, places = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    expected, expected_places = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    np.testing.assert_array_equal(y.numpy(), expected.numpy())
    np.testing.assert_array_equal(places.numpy(), expected_places.numpy())
    assert places.dtype is DType.INT32


def test_the_places_of_adaptive_maxima_are_those_of_pytorch() -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 8, 6)))
    y, places = F.adaptive_max_pool2d(x, (4, 3), return_indices=True)
    expected, expected_places = torch.nn.functional.adaptive_max_pool2d(x, (4, 3), return_indices=True)
    np.testing.assert_array_equal(y.numpy(), expected.numpy())
    np.testing.assert_array_equal(places.numpy(), expected_places.numpy())


@pytest.mark.parametrize("settings", [{"dilation": 2}, {"dilation": 2, "padding": 1, "stride": 2}], ids=str)
def test_not_a_number_is_the_maximum_of_dilated_windows_that_it_is_in(settings: dict[str, Any]) -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 2, 9, 8)))
    x[0, 0, 4:6, 4:6], x[0, 1] = torch.nan, -torch.inf
    expected = torch.nn.functional.max_pool2d(x, 3, **settings)
    assert expected.isnan().any()
    np.testing.assert_array_equal(F.max_pool2d(x, 3, **settings).numpy(), expected.numpy())


@pytest.mark.parametrize(("extent", "count", "launches"), [(8, 3, 3), (6, 4, 2), (60, 40, 2), (12, 9, 3), (5, 7, 7)])
def test_windows_of_one_kind_are_one_launch(extent: int, count: int, launches: int) -> None:
    x = TensorDescriptor.packed((2, 3, extent), "float32")
    (way,) = _adaptive(PoolingMode.MAX, 1, count, False, x).ways
    assert len(way) == launches


def test_averages_of_16_bits_are_rounded_once() -> None:
    """Averages along the first dimension that were rounded to float16 would show in those along both."""
    x = np.random.default_rng(0).standard_normal((1, 64, 7, 7)).astype(np.float16)
    expected = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(x).double(), 3).numpy()
    error = np.abs(F.adaptive_avg_pool2d(x, 3).numpy().astype(np.float64) - expected)
    assert (error <= np.spacing(np.abs(expected).astype(np.float16)).astype(np.float64) / 2 * 1.001).all()


def test_a_term_that_is_infinite_counts_where_it_is_the_labels() -> None:
    x, weight = torch.zeros(3, 4), torch.tensor([0.5, 2, 0, 3])
    x[1, 2] = -torch.inf
    for labels in ([0, 1, 3], [0, -100, 3], [0, 3, 2]):
        target = torch.tensor(labels)
        for reduction in ("none", "mean"):
            expected = torch.nn.functional.cross_entropy(x, target, weight, reduction=reduction)
            actual = F.cross_entropy(x, target, weight, reduction=reduction)
            np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-6)


def test_a_mean_by_weights_that_are_all_0_is_not_a_number() -> None:
    x, target = np.zeros((2, 3)), np.array([1, 1])
    assert np.isnan(F.cross_entropy(x, target, np.array([1.0, 0, 1])).numpy())
    assert F.cross_entropy(x, target, np.array([1.0, 0, 1]), reduction="sum").numpy() == 0


def test_weights_of_classes_are_of_any_floating_dtype() -> None:
    x, target = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float16), np.array([0, 2, 1, 1])
    weight = np.array([0.5, 2, 1])
    results = {F.cross_entropy(x, target, weight.astype(dtype)).numpy().item() for dtype in ("f2", "f4", "f8")}
    assert len(results) == 1


def test_cross_entropy_takes_its_settings_in_pytorchs_order() -> None:
    x, weight = np.random.default_rng(0).standard_normal((4, 3)), np.array([0.5, 2, 1])
    target = np.array([0, 2, 1, 1])
    given = (None, 1, None, "sum", 0.25)
    expected = torch.nn.functional.cross_entropy(*map(torch.from_numpy, (x, target, weight)), *given)
    np.testing.assert_allclose(F.cross_entropy(x, target, weight, *given).numpy(), expected.numpy(), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_softmax_is_of_what_its_input_is_converted_to(dtype: str) -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 4))).half()
    for name in ("softmax", "log_softmax"):
        result = getattr(F, name)(x, 1, dtype=dtype)
        assert result.dtype is DType(dtype)
        expected = getattr(torch.nn.functional, name)(x.double(), 1)
        actual = torch.from_numpy(result.numpy().astype(np.float64))
        allowed = 8 * unit_roundoff(DType(dtype))
        torch.testing.assert_close(actual, expected, rtol=allowed, atol=allowed)


def test_softplus_is_one_launch_as_it_is_usually_called() -> None:
    launches = {
        (dtype, beta, threshold): len(_softplus_of(beta, threshold, TensorDescriptor.packed((4,), dtype)).ways[0])
        for dtype, beta, threshold in (("float32", 1, 20), ("float32", 2, 20), ("float32", 1, 5), ("float64", 1, 20))
    }
    assert list(launches.values()) == [1, 6, 6, 6]


@pytest.mark.parametrize(("k", "dim"), [(3, -1), (1, 0), (4, 1), (0, 2)])
def test_the_largest_elements_are_those_of_pytorch(k: int, dim: int, handle: dnncore.Handle) -> None:
    array = np.random.default_rng(0).permutation(4 * 5 * 6).reshape(4, 5, 6).astype(np.float32)
    x = handle.upload(array)
    values, indices = F.topk(x, k, dim)
    expected, expected_indices = torch.topk(torch.from_numpy(array), k, dim)
    np.testing.assert_array_equal(values.numpy(), expected.numpy())
    np.testing.assert_array_equal(indices.numpy(), expected_indices.numpy())
    assert (values.dtype, indices.dtype) == (DType.FLOAT32, DType.INT32)
    x.close()


@pytest.mark.parametrize("bias", [None, np.array([0.5, -1, 0, 2])])
def test_an_activation_is_part_of_a_convolution(bias: np.ndarray | None) -> None:
    random = np.random.default_rng(1)
    x, w = random.standard_normal((2, 3, 5, 5)), random.standard_normal((4, 3, 3, 3))
    np.testing.assert_array_equal(
        F.conv2d(x, w, bias, activation=dnncore.RELU).numpy(), F.relu(F.conv2d(x, w, bias)).numpy()
    )


def test_a_convolution_takes_other_padding_before_than_behind() -> None:
    x, w = np.arange(16.0).reshape(1, 1, 4, 4), np.ones((1, 1, 2, 2))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2)))
    np.testing.assert_array_equal(F.conv2d(x, w, padding=[(1, 0), (0, 2)]).numpy(), F.conv2d(padded, w).numpy())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("classes", [1, 5])
def test_labels_that_do_not_count(reduction: str, classes: int) -> None:
    x = torch.from_numpy(np.random.default_rng(2).standard_normal((4, classes)))
    for labels in ([0, -100, classes - 1, -100], [-100] * 4):
        target = torch.tensor(labels)
        expected = torch.nn.functional.cross_entropy(x, target, reduction=reduction).numpy()
        actual = F.cross_entropy(x, target, reduction=reduction).numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_a_number_keeps_its_sign() -> None:
    x = np.ones(1)
    assert [F.div(x, zero).numpy()[0] for zero in (0.0, -0.0)] == [np.inf, -np.inf]


def test_a_loss_of_nothing() -> None:
    x, target = np.zeros((0, 3)), np.zeros(0, np.int32)
    assert np.isnan(F.cross_entropy(x, target).numpy()).all()
    assert np.isnan(F.cross_entropy(x, np.zeros((0, 3))).numpy()).all()
    assert F.cross_entropy(x, target, reduction="sum").numpy().tolist() == 0


def test_a_mean_of_float16_losses_does_not_overflow() -> None:
    x = np.zeros((3000, 2), np.float16)
    x[:, 0] = 200
    target = np.ones(3000, np.int32)
    assert F.cross_entropy(x, target).numpy().tolist() == 200


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_statistics_are_updated_in_their_dtype(dtype: torch.dtype) -> None:
    random = np.random.default_rng(3)
    x = torch.from_numpy(random.standard_normal((5, 4, 3))).half()
    ours = [torch.zeros(4, dtype=dtype), torch.ones(4, dtype=dtype)]
    theirs = [tensor.double() for tensor in ours]
    result = F.batch_norm(x, ours[0], ours[1], training=True)
    expected = torch.nn.functional.batch_norm(x.double(), *theirs, training=True)
    np.testing.assert_allclose(result.numpy(), expected.numpy(), rtol=1e-2, atol=1e-3)
    for mine, his in zip(ours, theirs, strict=True):
        assert not torch.equal(mine, torch.zeros(4, dtype=dtype))
        np.testing.assert_allclose(mine.numpy(), his.numpy(), rtol=1e-2, atol=1e-4)


def test_parameters_of_16_bits_are_read_where_they_lie() -> None:
    """Batch normalisation is then one launch; scale and bias of float64, which are copied, make it three."""
    x = TensorDescriptor.packed((5, 4, 3), "float16")
    half, double = (TensorDescriptor.packed((4,), dtype) for dtype in ("float16", "float64"))
    for parameter, launches in ((half, 1), (double, 3)):
        operation = _batch_norm(False, 0.1, 1e-5, x, half, half, parameter, parameter)
        assert [len(way) for way in operation.ways] == [launches]


class TestDropout:
    X = np.arange(1, 1001, dtype=np.float64)

    def test_a_seed_gives_the_same_elements_again_and_another_offset_others(self) -> None:
        first, again, other, next_step = (
            F.dropout(self.X, 0.5, seed=seed, offset=offset).numpy()
            for seed, offset in ((7, 0), (7, 0), (8, 0), (7, 1))
        )
        assert set(np.unique(first / self.X)) == {0, 2}
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()
        assert (first != next_step).any()

    def test_a_state_on_the_device_is_a_seed(self) -> None:
        state = dnncore.ops.dropout_state(7, 3)
        np.testing.assert_array_equal(
            F.dropout(self.X, 0.25, seed=state).numpy(), F.dropout(self.X, 0.25, seed=7, offset=3).numpy()
        )

    def test_outside_training_nothing_is_dropped(self) -> None:
        x = F.relu(self.X)
        assert F.dropout(x, training=False) is x
        copied = F.dropout(self.X, training=False)
        np.testing.assert_array_equal(copied.numpy(), self.X)
        assert not np.shares_memory(np.from_dlpack(copied), self.X)


def test_arguments_are_named_ordered_and_preset_as_those_of_pytorch() -> None:
    of_ours_alone = {"activation", "seed", "offset"}
    left_out = {"_stacklevel"}  # PyTorch's own
    theirs: Any = torch.nn.functional
    compared = set()
    for name in set(F.__all__) - _NOT_OF_PYTORCH:
        for other in (f"{name}_with_indices", name):
            if other in vars(theirs) and not inspect.isbuiltin(getattr(theirs, other)):
                parameters = inspect.signature(getattr(theirs, other)).parameters
                expected = {each: p.default for each, p in parameters.items() if each not in left_out}
                found = inspect.signature(getattr(F, name)).parameters
                actual = {each: p.default for each, p in found.items() if each not in of_ours_alone}
                if name in ("softmax", "log_softmax"):
                    expected["dim"] = inspect.Parameter.empty  # a dimension that PyTorch guesses, and warns of it
                assert list(actual.items()) == list(expected.items()), name
                compared.add(name)
                break
    assert compared >= {"max_pool2d", "relu", "cross_entropy", "batch_norm", "rms_norm", "unfold", "fold", "dropout"}


def test_bfloat16_of_numpy_is_copied() -> None:
    x = np.array([-1, 2], ml_dtypes.bfloat16)
    y = F.relu(x)
    assert y.dtype is DType.BFLOAT16
    assert y.numpy().tolist() == [0, 2]
