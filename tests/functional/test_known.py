"""Functions called like this before: one look-up leads to memory for the results and to launches; what was refused still is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dnncore import functional as F
from dnncore.errors import BadParamError, ClosedError
from dnncore.functional import operands
from dnncore.handle import Handle
from dnncore.plan import Preference
from dnncore.runner import Runner
from dnncore.tensor import Tensor
from tests.conftest import DEVICES
from tests.unit.foreign import Array, Device

X = np.random.default_rng(0).standard_normal((2, 4, 6, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 4, 3, 3)).astype(np.float32)
B = np.random.default_rng(2).standard_normal(4).astype(np.float32)


@pytest.fixture
def own(handle: Handle) -> Iterator[Handle]:
    """A handle on each device, that nothing else uses."""
    with Handle(handle.info.name) as opened:
        yield opened


def _functions(own: Handle) -> dict[str, Callable[[], Tensor]]:
    """Of one step and of several, with a view, with scratch memory, with tensors that are updated."""
    x, w, b, y = (own.upload(each) for each in (X, W, B, X[::-1]))
    mean, variance = own.upload(B), own.upload(B * B)
    return {
        "conv2d": lambda: F.conv2d(x, w, padding=1),
        "conv2d with a bias": lambda: F.conv2d(x, w, b, padding=(1, 1)),
        "conv_transpose2d": lambda: F.conv_transpose2d(x, w, b, stride=2),
        "add": lambda: F.add(x, y, alpha=2),
        "add a number": lambda: F.add(x, 0.5),
        "max_pool2d": lambda: F.max_pool2d(x, 2),
        "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(x, (4, 3)),
        "softmax": lambda: F.softmax(x, 1),
        "layer_norm": lambda: F.layer_norm(x, (8,)),
        "batch_norm": lambda: F.batch_norm(x, mean, variance, b, training=True, momentum=0.0),
    }


def _fail_if_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "_described", lambda *_: pytest.fail("an operation was described"))


def test_a_call_seen_before_describes_plans_and_checks_nothing_again(
    own: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = _functions(own)
    first = {name: call().numpy() for name, call in functions.items()}
    _fail_if_described(monkeypatch)
    if own.device.addresses_are_pointers:
        for name in ("execute", "plan", "launch", "run"):
            monkeypatch.setattr(Runner, name, lambda *_, name=name, **__: pytest.fail(f"{name} was called"))
    for name, call in functions.items():
        np.testing.assert_array_equal(call().numpy(), first[name], err_msg=name)


@pytest.mark.parametrize("name", DEVICES)
def test_tensors_of_another_library_are_described_once_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [np.ascontiguousarray(each) for each in (X, W, B)]
    given: list[Any] = arrays
    if name != "cpu":
        gpu = Device(0)
        stream = gpu.create_stream()
        given = [Array(each, gpu, stream) for each in arrays]
    x, w, b = given
    first = F.conv2d(x, w, b, padding=1).numpy()
    _fail_if_described(monkeypatch)
    np.testing.assert_array_equal(F.conv2d(x, w, b, padding=1).numpy(), first)
    if name != "cpu":
        operands.handle(name).synchronize()
        for each in given:
            each.free()
        gpu.destroy_stream(stream)


def test_another_preference_chooses_anew(own: Handle) -> None:
    x, w = own.upload(X), own.upload(W)
    F.conv2d(x, w, padding=1)
    before = dict(own.seen)
    with own.preferring(Preference.NO_WORKSPACE):
        assert not own.seen
        F.conv2d(x, w, padding=1)
    assert dict(own.seen) == before
    own.preference = Preference.NO_WORKSPACE
    assert not own.seen


def test_settings_of_another_type_are_another_call(own: Handle) -> None:
    x = own.upload(X)
    F.max_pool2d(x, 2)
    with pytest.raises(BadParamError, match="must be an integer"):
        F.max_pool2d(x, 2.0)  # type: ignore[call-overload]


def test_what_is_refused_is_refused_again_and_again(own: Handle) -> None:
    x, w, mean, variance = (own.upload(each) for each in (X, W, B, B * B))
    for _ in range(3):
        F.conv2d(x, w, padding=1)
        F.batch_norm(x, mean, variance, training=True)
    with own.record(), pytest.raises(BadParamError, match="no part of a recorded program"):
        F.conv2d(x, w, padding=1)
    with pytest.raises(BadParamError, match="shares memory"):
        F.batch_norm(x, mean, mean, training=True)
    fixed = Tensor(own, variance.descriptor, variance.memory, owned=False, read_only=True)
    with pytest.raises(BadParamError, match="read-only"):
        F.batch_norm(x, mean, fixed, training=True)
    with Handle(own.info.name) as other, pytest.raises(BadParamError, match="two handles"):
        F.conv2d(x, other.upload(W), padding=1)
    w.close()
    with pytest.raises(ClosedError):
        F.conv2d(x, w, padding=1)


def test_a_result_takes_the_memory_that_one_of_its_size_has_left(own: Handle) -> None:
    x = own.upload(X)
    y = F.relu(x)
    kept, where = F.mul(x, 2), y.pointer
    del y
    z = F.mul(x, 3)
    assert z.pointer == where or not own.device.addresses_are_pointers
    assert kept.pointer != z.pointer
    np.testing.assert_array_equal(kept.numpy(), X * 2)
    np.testing.assert_array_equal(z.numpy(), X * 3)


def test_memory_that_another_library_has_seen_is_not_used_again(own: Handle) -> None:
    y = F.relu(own.upload(X))
    where, held = y.pointer, y.memory.hold()
    del y
    assert F.relu(own.upload(X)).pointer != where
    held()
