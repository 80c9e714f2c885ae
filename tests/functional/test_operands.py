"""What may be given to a function, on which handle it then runs, and when memory goes back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import dnncore
from dnncore import functional as F
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError, OwnerError
from dnncore.handle import Handle
from tests.conftest import EMULATOR
from tests.unit.foreign import Array, Device

X = np.random.default_rng(0).standard_normal((2, 3, 6, 5)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
B = np.random.default_rng(2).standard_normal(4).astype(np.float32)


@pytest.fixture
def own(handle: Handle) -> Iterator[Handle]:
    """A handle on each device, that nothing else uses."""
    with Handle(handle.info.name) as opened:
        yield opened


def in_thread(work: Callable[[], object]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (for the thread that waits)
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def of_pytorch(values: Any) -> Any:
    return torch.from_numpy(values.copy())


class TestTensors:
    def test_run_on_their_handle(self, own: Handle) -> None:
        x, w, b = (own.upload(array) for array in (X, W, B))
        y = F.conv2d(x, w, b, stride=2, padding=1)
        assert y.handle is own
        expected = torch.nn.functional.conv2d(*map(of_pytorch, (X, W, B)), stride=2, padding=1)
        np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)

    def test_a_small_net_computes_what_it_does_in_pytorch(self, own: Handle) -> None:
        def loss(f: Any, tensor: Callable[[np.ndarray], Any], labels: np.dtype | type, statistics: list[Any]) -> Any:
            x = f.conv2d(tensor(X), tensor(W), tensor(B), padding=1)
            x = f.max_pool2d(f.relu(f.batch_norm(x, *statistics, training=True)), 2)
            x = f.adaptive_avg_pool2d(f.conv_transpose2d(x, tensor(W[:, :, :2, :2]), stride=2), (3, 2))
            x = f.linear(f.layer_norm(f.group_norm(f.gelu(x), 3), (2,)), tensor(W[0, 0, :, :2]))
            return f.cross_entropy(x, tensor(np.array([[[0, 2, 1]] * 3] * 2, labels)), label_smoothing=0.1)

        statistics = np.zeros(4, np.float32), np.ones(4, np.float32)
        ours, theirs = (list(map(tensor, statistics)) for tensor in (own.upload, of_pytorch))
        expected = loss(torch.nn.functional, of_pytorch, np.int64, theirs)
        np.testing.assert_allclose(loss(F, own.upload, np.int32, ours).numpy(), expected.item(), rtol=1e-4)
        for mine, his in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine.numpy(), his.numpy(), rtol=1e-4, atol=1e-5)

    def test_memory_goes_back_when_nobody_refers_to_a_result(self, own: Handle) -> None:
        x, w, target = own.upload(X), own.upload(W), own.upload(np.array([0, 1], np.int32))
        held = own._belongings.memory
        y = F.relu(F.conv2d(x, w))
        assert len(held) == 3 + 1, "what went into relu is gone"
        loss = F.cross_entropy(F.sum(y, (2, 3)), target)
        del y
        assert len(held) == 3 + 1, "and so is scratch"
        assert loss.numpy() > 0
        del loss
        assert len(held) == 3

    def test_two_handles_are_refused(self, own: Handle) -> None:
        with Handle(own.info.name) as other:
            x, w = own.upload(X), other.upload(W)
            with pytest.raises(BadParamError, match="operands belong to two handles"):
                F.conv2d(x, w)
            with pytest.raises(BadParamError, match="operands belong to two handles"):
                F.batch_norm(X, x, w)

    def test_a_foreign_thread_is_refused(self, own: Handle) -> None:
        x = own.upload(X)
        with pytest.raises(OwnerError):
            in_thread(lambda: F.relu(x))

    def test_they_say_what_they_are(self, own: Handle) -> None:
        x = own.upload(X)
        assert (x.dtype, x.ndim, x.size) == (dnncore.DType.FLOAT32, 4, 180)


class TestWithoutDimensions:
    def test_a_result_is_one_for_other_libraries_too(self, own: Handle) -> None:
        x = own.upload(X)
        mean = F.mean(x)
        assert (mean.shape, mean.ndim, mean.size, mean.nbytes) == ((), 0, 1, 4)
        np.testing.assert_allclose(float(mean.numpy()), X.mean(), rtol=1e-4, atol=1e-6)
        if own.info.name == "cpu":
            assert np.from_dlpack(mean).shape == torch.from_dlpack(mean).shape == ()

    def test_an_operand_is_read_where_it_lies(self, own: Handle) -> None:
        one = own.upload(np.array(-2, np.float32))
        assert F.relu(F.neg(one)).numpy() == 2
        assert F.add(one, own.upload(np.ones(3, np.float32))).numpy().tolist() == [-1, -1, -1]
        assert F.where(F.lt(one, 0), one, F.mul(one, 0)).numpy() == -2
        assert F.dropout(one, 0, seed=0).numpy() == -2
        assert F.dropout(one.numpy(), training=False).shape == ()
        values, indices = F.topk(one, 1)
        assert (values.shape, indices.shape, values.numpy().item(), indices.numpy().item()) == ((), (), -2, 0)
        assert F.matmul(own.upload(np.ones(3, np.float32)), own.upload(np.ones(3, np.float32))).numpy() == 3

    def test_an_operation_on_descriptors_says_how_to_see_it(self, own: Handle) -> None:
        x, y = own.upload(np.array(2, np.float32)), own.tensor(())
        with pytest.raises(BadParamError, match=r"has 0 dimensions; see it as one of \[1\]"):
            dnncore.ops.unary(own, "square", 1, x, 0, y)
        dnncore.ops.unary(own, "square", 1, x.reshape(1), 0, y.reshape(1))
        assert y.numpy() == 4


class TestArrays:
    def test_results_are_of_the_threads_own_handle(self) -> None:
        assert F.relu(X).handle is F.handle() is F.handle("cpu")
        others: list[Handle] = []
        in_thread(lambda: others.append(F.relu(X).handle))
        assert others[0] is not F.handle()

    def test_they_go_with_tensors_of_a_handle_on_the_cpu(self) -> None:
        with Handle("cpu") as own:
            assert F.conv2d(own.upload(X), W, of_pytorch(B)).handle is own

    def test_they_are_let_go_of(self) -> None:
        x, w = X.copy(), W.copy()
        before = sys.getrefcount(x), sys.getrefcount(w), len(F.handle()._belongings.memory)
        F.conv2d(x, w)
        with pytest.raises(BadParamError):
            F.conv2d(x, w, groups=2)
        assert (sys.getrefcount(x), sys.getrefcount(w), len(F.handle()._belongings.memory)) == before

    def test_statistics_are_updated_where_they_lie(self) -> None:
        mean, variance = np.zeros(3, np.float32), np.ones(3, np.float32)
        F.batch_norm(X, mean, variance, training=True, momentum=1)
        np.testing.assert_allclose(mean, X.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(variance, X.var((0, 2, 3), ddof=1), rtol=1e-4)

    def test_statistics_that_cannot_be_updated_are_refused(self) -> None:
        one = np.ones(3, np.float32)
        with pytest.raises(BadParamError, match="updated in place, but memory of this kind cannot be shared"):
            F.batch_norm(X, one, one[::-1], training=True)
        fixed = one.copy()
        fixed.flags.writeable = False
        with pytest.raises(BadParamError, match="read-only"):
            F.batch_norm(X, fixed, one, training=True)
        F.batch_norm(X, fixed, one[::-1])  # outside training they are only read

    @pytest.mark.parametrize(
        "array",
        [
            X[::-1],
            X.astype(">f4"),
            np.zeros(X.nbytes + 1, np.uint8)[1:].view(np.float32),
            np.zeros(5, [("skipped", "i2"), ("value", "f4")])["value"],
            np.array([1, -2], ml_dtypes.bfloat16),
        ],
        ids=["negative-stride", "big-endian", "unaligned", "odd-stride", "bfloat16"],
    )
    def test_what_cannot_be_shared_is_copied(self, array: np.ndarray) -> None:
        np.testing.assert_array_equal(F.relu(array).numpy().astype(np.float32), np.maximum(array, 0).astype(np.float32))

    @pytest.mark.parametrize("shape", [(0, 3, 6, 5), (2, 3, 0, 5)])
    def test_without_elements_they_have_results_without_elements(self, shape: tuple[int, ...]) -> None:
        """NumPy's strides are all 0 then, as they are of an array that repeats one element."""
        x = np.zeros(shape, np.float32)
        assert {F.relu(x).shape, F.add(x, x).shape, F.softmax(x, 1).shape, F.layer_norm(x, (5,)).shape} == {shape}

    def test_integers_are_labels_of_any_width(self) -> None:
        logits = F.sum(X, (2, 3))
        expected = F.cross_entropy(logits, np.array([2, 0], np.int32)).numpy()
        for dtype in (np.int64, np.uint8, np.int16):
            np.testing.assert_array_equal(F.cross_entropy(logits, np.array([2, 0], dtype)).numpy(), expected)
        for dtype in (torch.int64, torch.uint8):
            labels = torch.tensor([2, 0], dtype=dtype)
            np.testing.assert_array_equal(F.cross_entropy(logits, labels).numpy(), expected)
        with pytest.raises(BadParamError, match="elements beyond int32"):
            F.cross_entropy(logits, np.array([2, 1 << 40]))

    @pytest.mark.parametrize(
        ("operand", "message"),
        [
            ([1.0, 2.0], "list is no tensor"),
            (1.0, "float is no tensor"),
            (np.float32(1), "float32 is no tensor"),
            (np.zeros(3, complex), "dtype .*complex128.* is not supported"),
            (np.zeros((1,) * 9), "9 dimensions"),
            (Array(np.zeros(3, np.float32), place=(10, 1)), r"on DLPack device \(10, 1\), neither cpu nor cuda"),
        ],
    )
    def test_what_is_no_operand_is_refused(self, operand: Any, message: str) -> None:
        with pytest.raises(BadParamError, match=message):
            F.relu(operand)

    def test_a_gradient_is_not_dropped_in_silence(self) -> None:
        with pytest.raises(BufferError, match="detach"):
            F.relu(torch.ones(3, requires_grad=True))

    def test_devices_are_not_mixed(self) -> None:
        there = Array(np.zeros(3, np.float32), place=(2, 1))
        with pytest.raises(BadParamError, match=r"on cpu and on cuda:1.*handle\.upload"):
            F.add(np.zeros(3, np.float32), there)


@pytest.mark.cuda
class TestOnADevice:
    @pytest.fixture
    def gpu(self) -> Device:
        return Device(0)

    def test_other_libraries_memory_is_used_where_it_lies(self, gpu: Device) -> None:
        x, w = Array(X, gpu), Array(W, gpu)
        y = F.conv2d(x, w, padding=1)
        assert y.handle is F.handle("cuda:0")
        np.testing.assert_allclose(y.numpy(), F.conv2d(X, W, padding=1).numpy(), rtol=1e-4, atol=1e-5)
        for array in (x, w):
            array.free()

    def test_it_is_kept_until_the_stream_has_passed(self, gpu: Device) -> None:
        x, later = Array(X, gpu), Array(X, gpu)
        stream = F.handle("cuda:0").stream.handle
        assert stream is not None
        F.relu(later).numpy()  # compiles
        with gpu.blocked(stream):
            y = F.relu(x)
            assert x.deleted == 0
        y.numpy()
        F.relu(later).numpy()
        assert x.deleted == 1
        for array in (x, later):
            array.free()

    def test_the_host_is_not_mixed_in(self) -> None:
        with Handle("cuda:0") as own, pytest.raises(BadParamError, match=r"on cpu and on cuda:0.*handle\.upload"):
            F.add(own.upload(X), X)

    def test_pool_memory_goes_back_in_the_order_of_the_stream(self, gpu: Device) -> None:
        with Handle("cuda:0") as own:
            x = own.upload(np.zeros(1 << 18, np.float32))
            F.relu(x).numpy()
            free = gpu.free_bytes()
            for _ in range(8):
                x = F.relu(x)
            own.synchronize()
            if EMULATOR:  # other processes of the run take memory of a real GPU
                assert gpu.free_bytes() >= free - 2 * x.nbytes
            assert len(own._belongings.memory) == 2


class TestCaching:
    def test_a_call_seen_before_describes_nothing(self, own: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
        x, w, b = (own.upload(array) for array in (X, W, B))

        def net() -> dnncore.Tensor:
            y = F.max_pool2d(F.relu(F.conv2d(x, w, b, stride=[1, 1], padding=1)), 2)
            return F.cross_entropy(F.mean(y, (2, 3)), labels)

        labels = own.upload(np.array([0, 3], np.int32))
        first = net().numpy()
        made: list[object] = []
        monkeypatch.setattr(TensorDescriptor, "__post_init__", made.append)
        second = net()
        monkeypatch.undo()
        np.testing.assert_array_equal(first, second.numpy())
        assert not made

    def test_settings_may_be_any_numbers_and_sequences(self) -> None:
        expected = F.conv2d(X, W, stride=(2, 1), padding=1).numpy()
        for stride, padding in (([2, 1], np.int64(1)), (np.array([2, 1]), [1, 1]), ((2, 1), ([1, 1], (1, 1)))):
            given: Any = {"stride": stride, "padding": padding}
            np.testing.assert_array_equal(F.conv2d(X, W, **given).numpy(), expected)
