"""The real instance over dnncore's CPU backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from dnnserve.config import PRECISIONS
from dnnserve.engine.net import NetHost, NetInstance, ServedModel, Terms
from dnnserve.engine.slot import Slot
from dnnserve.envelope import ModelKey
from dnnserve.signature import Signature, TensorSpec

from dnncore import Handle, ops
from dnncore.backend import Memory
from dnncore.dtypes import DType
from dnncore.errors import OutOfMemoryError
from dnncore.nn import Executor, Graph, Parameters
from dnncore.nn.calibration import calibrate
from dnncore.nn.footprint import footprint
from dnncore.nn.passes import for_inference
from dnncore.preprocessing import preset
from tests.conftest import DEVICES
from tests.server.fakes import block_of, run, wait_until
from tests.server.packages import make_package, probabilities, served

KEY = ModelKey("digits", 1)


@pytest.fixture
def host() -> Iterator[NetHost]:
    host = NetHost("cpu", {KEY: served()})
    yield host
    host.close()


def test_rows_have_the_same_answer_alone_in_a_batch_and_beside_padding(host: NetHost) -> None:
    rows = np.random.default_rng(11).normal(size=(7, 1, 8, 8)).astype(np.float32)
    pipeline = host.load(KEY, 8)
    together = run(pipeline, rows)
    assert together.shape == (7, 10)
    np.testing.assert_allclose(together.sum(axis=1), 1, rtol=1e-5)
    for index, row in enumerate(rows):
        np.testing.assert_allclose(run(pipeline, row[None])[0], together[index], rtol=1e-5, atol=1e-7)


def test_neither_loading_nor_serving_times_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("algorithms are timed beforehand")

    monkeypatch.setattr("dnncore.find.find_algorithms", refuse)
    host = NetHost("cpu", {KEY: served()})
    run(host.load(KEY, 8), np.ones((3, 1, 8, 8), np.float32))
    host.close()


def test_padding_holds_nothing_of_earlier_batches(host: NetHost) -> None:
    pipeline = host.load(KEY, 4)
    run(pipeline, np.full((4, 1, 8, 8), np.nan, np.float32))
    assert np.isfinite(run(pipeline, np.ones((3, 1, 8, 8), np.float32))).all()
    assert not pipeline.instance.slots[0].inputs[0][3:].any()


def test_buckets_that_do_not_fit_are_left_out_with_a_warning(
    host: NetHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def up_to(limit: int) -> Callable[..., Executor]:
        def bind(graph: Graph, handle: Handle, parameters: Parameters, batch: int, **more: Any) -> Executor:
            if batch > limit:
                raise OutOfMemoryError(f"a batch of {batch} does not fit")
            return Executor(graph, handle, parameters, batch, **more)

        return bind

    monkeypatch.setattr("dnnserve.engine.net.Executor", up_to(4))
    assert host.load(KEY, 16).max_batch_rows == 4
    assert "a batch of 8 does not fit" in caplog.text
    monkeypatch.setattr("dnnserve.engine.net.Executor", up_to(0))
    with pytest.raises(OutOfMemoryError):
        host.load(KEY, 16)


@pytest.mark.parametrize("device", DEVICES)
def test_buckets_take_turns_with_the_memory_of_the_largest_which_was_foretold(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, model = NetHost(device, {KEY: ServedModel(make_package().serving_model, None)}), make_package().serving_model
    with Handle(device) as handle:
        foretold = footprint(model.graph, handle, 16)
        kind = type(handle.device)
    allocate, taken = kind.allocate, []

    def counted(own: Any, nbytes: int) -> Memory:
        taken.append(nbytes)
        return allocate(own, nbytes)

    monkeypatch.setattr(kind, "allocate", counted)
    pipeline = host.load(KEY, 16)
    assert sum(taken) == foretold.nbytes
    assert isinstance(pipeline.instance, NetInstance)
    assert [executor.batch for executor in pipeline.instance._executors] == [1, 2, 4, 8, 16]
    host.close()


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_is_loaded_in_another_thread_and_runs_in_this_one(device: str) -> None:
    models = {KEY: served()}
    host, other = NetHost(device, models), ModelKey("digits", 2)
    serving = host.load(KEY, 4)
    models[other] = served(make_package(seed=7))
    rows = np.random.default_rng(11).normal(size=(4, 1, 8, 8)).astype(np.float32)
    expected = run(serving, rows)
    host.begin_load(other, 4, 10**8)
    while (fresh := host.loaded(other)) is None:
        assert np.array_equal(run(serving, rows), expected)
    host.unload(KEY)
    answers = run(fresh.pipeline, rows)
    np.testing.assert_allclose(answers, probabilities(make_package(seed=7), rows), rtol=1e-4, atol=1e-6)
    assert fresh.timings_ns[1] > 0
    host.close()


def test_what_does_not_fit_beside_others_is_refused_with_figures_and_leaves_nothing_behind(
    host: NetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Handle("cpu") as handle:
        kind, wanted = type(handle.device), footprint(served().model.graph, handle, 16).nbytes
    allocated: list[int] = []
    monkeypatch.setattr(kind, "allocate", lambda _own, nbytes: allocated.append(nbytes))
    monkeypatch.setattr(kind, "free_bytes", lambda _own: wanted - 1)
    host.begin_load(KEY, 16, 0)
    wait_until(lambda: host._loading[KEY].done())
    with pytest.raises(
        OutOfMemoryError, match=r"digits/1 needs .* MiB on cpu for batches of 16 rows .* may take .* MiB"
    ):
        host.loaded(KEY)
    assert not allocated


def test_answers_have_the_same_bits_in_any_batch_where_that_is_asked_for() -> None:
    host = NetHost("cpu", {KEY: served()}, terms=Terms(batch_invariant=True))
    rows = np.random.default_rng(11).normal(size=(7, 1, 8, 8)).astype(np.float32)
    pipeline = host.load(KEY, 8)
    together = run(pipeline, rows)
    for index, row in enumerate(rows):
        assert np.array_equal(run(pipeline, row[None])[0], together[index])
    host.close()


def test_in_16_and_8_bits_answers_are_near() -> None:
    rows = np.random.default_rng(11).normal(size=(4, 1, 8, 8)).astype(np.float32)
    model, answers = make_package().serving_model, []
    with Handle("cpu") as handle:
        calibration = calibrate(for_inference(model), [{"data": rows}], handle)
    for precision in PRECISIONS.values():
        changed = for_inference(model, precision, calibration=calibration)
        host = NetHost("cpu", {KEY: ServedModel(changed, None)})
        pipeline = host.load(KEY, 4)
        answers.append(run(pipeline, rows))
        host.close()
    wide, *narrow = answers
    for answer in narrow:
        assert answer.dtype == np.float32
        assert 0 < np.abs(answer - wide).max() < 0.02


@pytest.mark.parametrize("device", DEVICES)
def test_pixels_are_answered_as_the_rows_that_they_make_alone_and_beside_rows(device: str) -> None:
    package = make_package()
    pixels = np.random.default_rng(2).integers(0, 256, (5, 8, 8, 1), np.uint8)
    rows = package.of_images[0].normalize(pixels)
    host = NetHost(device, {KEY: served(package)})
    pipeline = host.load(KEY, 8)
    expected = run(pipeline, rows)
    assert np.array_equal(run(pipeline, pixels), expected)
    assert np.array_equal(run(pipeline, pixels[:2], rows[2:3], pixels[3:]), expected)
    host.close()


@pytest.mark.parametrize("device", DEVICES)
def test_batches_that_are_begun_before_others_have_ended_are_answered_as_alone(device: str) -> None:
    """Of pixels and of rows, as many as there are slots, and over and over in the same ones; finished by another thread."""
    package, slots = make_package(), 3
    made = np.random.default_rng(4)
    batches = [made.integers(0, 256, (1 + number % 8, 8, 8, 1), np.uint8) for number in range(8)]
    batches[2:5:2] = [package.of_images[0].normalize(each) for each in batches[2:5:2]]
    host = NetHost(device, {KEY: served(package)}, terms=Terms(num_slots=slots))
    pipeline = host.load(KEY, 8)
    alone = [run(pipeline, each) for each in batches]
    blocks = [block_of(each) for each in batches]
    with ThreadPoolExecutor(1) as finisher:
        for number in range(len(batches) + slots):
            if number >= slots:
                finisher.submit(pipeline.finish).result()
                finisher.submit(pipeline.deliver).result()
                assert np.array_equal(blocks[number - slots].outputs[0], alone[number - slots])
            if number < len(batches):
                pipeline.stage([blocks[number]])
                pipeline.begin()
    host.close()


def test_models_are_computed_in_turn_and_what_one_takes_is_not_counted_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[tuple[Any, Any]] = []

    class Watched(Handle):
        def wait(self, event: Any) -> None:
            waits.append((self, event))
            super().wait(event)

    now_ns = itertools.count(0, 10)
    monkeypatch.setattr("dnnserve.engine.net.Handle", Watched)
    monkeypatch.setattr("dnnserve.engine.net.time.monotonic_ns", lambda: next(now_ns))
    other = ModelKey("other", 1)
    host = NetHost("cpu", {KEY: served(), other: served()})
    first, second = host.load(KEY, 4).instance, host.load(other, 4).instance
    assert isinstance(first, NetInstance)
    assert isinstance(second, NetInstance)
    waits.clear()
    for instance in (first, second, second, first):  # begun at 0, 10, 20 and 30 from now
        instance.begin(0, 1, False, (0,))
    ends = [begun.end for begun in (*first._begun, *second._begun)]
    assert waits == [(second._handle, ends[0]), (first._handle, ends[3])]
    for instance in (first, second, second, first):  # finished at 40, 50, 60 and 70
        instance.finish()
    assert (first.computed_ns, second.computed_ns) == (10, 10)
    host.close()


def test_pixels_are_brought_when_those_before_were_read_and_read_when_they_were_brought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams wait for each other by events: as the log of both has it, from the third batch on, when both places are taken."""
    log: list[tuple[str, Any]] = []

    class Watched(Handle):
        def wait(self, event: Any) -> None:
            log.append(("wait", event))
            super().wait(event)

        def record_event(self) -> Any:
            log.append(("event", event := super().record_event()))
            return event

    kind = type(Handle("cpu").device)
    copy, normalize = kind.gather_to_device, ops.image_normalization

    def watched_copy(*arguments: Any) -> None:
        log.append(("copy", None))
        copy(*arguments)

    def watched_normalize(*arguments: Any, **more: Any) -> None:
        log.append(("normalize", None))
        normalize(*arguments, **more)

    for module in ("net", "pixels"):
        monkeypatch.setattr(f"dnnserve.engine.{module}.Handle", Watched)
    monkeypatch.setattr(kind, "gather_to_device", watched_copy)
    monkeypatch.setattr(ops, "image_normalization", watched_normalize)
    host = NetHost("cpu", {KEY: served()})
    pipeline = host.load(KEY, 4)
    read: list[Any] = []
    for _ in range(4):
        log.clear()
        run(pipeline, np.ones((2, 8, 8, 1), np.uint8))
        waited, copied, brought, waited_too, normalized, was_read, ended = log
        assert [name for name, _ in log] == ["wait", "copy", "event", "wait", "normalize", "event", "event"]
        assert (waited_too[1], copied[1], normalized[1]) == (brought[1], None, None)
        read.append(was_read[1])
        assert ended[1] is not was_read[1]
        if len(read) > 2:
            assert waited[1] is read[-3]
    host.close()


def test_a_batch_whose_pixels_cannot_be_brought_costs_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    host = NetHost("cpu", {KEY: served()})
    pipeline = host.load(KEY, 4)
    pixels = np.ones((2, 8, 8, 1), np.uint8)
    expected = run(pipeline, pixels)
    normalize = ops.image_normalization

    def fail(*_: Any, **__: Any) -> None:
        raise OutOfMemoryError("no room for an event")

    for _ in range(4):
        monkeypatch.setattr(ops, "image_normalization", fail)
        with pytest.raises(OutOfMemoryError):
            run(pipeline, pixels)
        monkeypatch.setattr(ops, "image_normalization", normalize)
        assert np.array_equal(run(pipeline, pixels), expected)
    host.close()


def test_two_threads_copy_a_large_batch_as_one_does() -> None:
    made = np.random.default_rng(3)
    pixels = [made.integers(0, 256, (rows, 256, 256, 3), np.uint8) for rows in (3, 1, 5, 2)]
    signature = Signature((TensorSpec("data", DType.FLOAT32, (3, 256, 256)),), ())
    preprocessing = preset("torchvision", (3, 256, 256))
    slots = [Slot(np.zeros(Slot.nbytes(12, signature), np.uint8), 12, signature, preprocessing) for _ in range(2)]
    blocks = [block_of(each) for each in pixels]
    with ThreadPoolExecutor(1) as copiers:
        assert slots[0].fill(blocks, copiers) == slots[1].fill(blocks) == (11, True, [[]], 11 * 256 * 256 * 3)
    assert np.array_equal(slots[0].pixels, slots[1].pixels)
    assert np.array_equal(slots[0].pixels[0][:11], np.concatenate(pixels))
