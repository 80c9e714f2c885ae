"""Rows that a device reads where front ends have put them: which, that answers are the same, and when that memory may change."""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pytest
from dnnserve.engine import slot
from dnnserve.engine.child import _Stager
from dnnserve.engine.messages import Map, Run
from dnnserve.engine.net import NetHost, NetInstance, ServedModel, Terms
from dnnserve.engine.page_locks import PageLocks
from dnnserve.engine.pipeline import LocalPipeline, Timing
from dnnserve.engine.slot import Slot, joined
from dnnserve.envelope import ModelKey
from dnnserve.processes.arena import Arena, ArenaBlock
from dnnserve.processes.link import Link
from dnnserve.signature import Signature, TensorSpec

from dnncore import Handle
from dnncore.backend import Device
from dnncore.cuda.runtime import driver
from dnncore.cuda.runtime.context import retained
from dnncore.dtypes import DType
from dnncore.errors import OutOfMemoryError
from dnncore.nn import BATCH, Model, NetBuilder
from dnncore.preprocessing import preset
from tests.conftest import CUDA_DEVICES, DEVICES
from tests.server.fakes import PATIENCE_S, FakeInstance, Lab, make_spec, run, wait_until
from tests.server.packages import make_package, served

KEY = ModelKey("digits", 1)
SHAPE = (1, 8, 8)
SOME_BYTES = 128
"""Two rows of pixels, and half a row of others: from so much on what these tests make stays where it is."""

needs_cuda = pytest.mark.skipif(not CUDA_DEVICES, reason="no CUDA device: run `make test`, or `make test-gpu` on a GPU")
on_cuda = pytest.mark.cuda


class Held(ArenaBlock):
    """A block that the test has held for the device."""

    def hold(self) -> None:
        pass

    def release(self) -> None:
        pass


class Store:
    """An arena in which blocks of a model lie at multiples of 64 KiB, locked for a device that can."""

    def __init__(self, signature: Signature, device: Device | None = None, nbytes: int = 1 << 22) -> None:
        self._signature = signature
        self.arena = Arena.of(nbytes)
        self.arena.page_locked = True
        self._unlock = device.lock_pages(self.arena.bytes) if device is not None and device.info.name != "cpu" else None
        self._end = 0

    def put(self, *inputs: np.ndarray) -> Held:
        pixels = inputs[0].dtype == np.uint8
        layout = self._signature.layout(len(inputs[0]), pixels=pixels, wanted=(0,))
        block = Held(self.arena, self._end, layout, pixels=pixels)
        block.fill(inputs)
        self._end += -(-layout.nbytes // (1 << 16)) << 16
        return block

    def close(self) -> None:
        if self._unlock is not None:
            self._unlock()


class Gate:
    """Holds up what is enqueued on a stream behind it until it is opened."""

    def __init__(self, handle: Handle) -> None:
        self._open = threading.Event()
        self.passed = False
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._wait)
        stream = ctypes.c_void_p(handle.stream.handle)
        with retained(0):
            assert ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc(stream, self._function, None) == 0

    def _wait(self, _data: int | None) -> None:
        assert self._open.wait(PATIENCE_S)
        self.passed = True

    def open(self) -> None:
        self._open.set()

    def open_soon(self) -> None:
        """Meanwhile the calling thread comes to wait for it, or, where it does not wait, to what it must not have come to."""
        threading.Timer(0.2, self.open).start()


@pytest.fixture
def some_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "_APART_BYTES", SOME_BYTES)


def pixels_of(rows: int, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, 8, 8, 1), np.uint8)


def run_blocks(pipeline: LocalPipeline, blocks: Sequence[Held]) -> tuple[np.ndarray, Timing]:
    pipeline.stage(blocks)
    pipeline.begin()
    timing = pipeline.finish()
    pipeline.deliver()
    return np.concatenate([block.outputs()[0] for block in blocks]), timing


def test_large_blocks_in_locked_memory_stay_where_they_are_and_others_are_copied() -> None:
    signature = Signature((TensorSpec("data", DType.FLOAT32, (8, 64, 64)),), (TensorSpec("out", DType.FLOAT32, (2,)),))
    store = Store(signature)
    made = np.random.default_rng(5)
    rows = [made.normal(size=(count, 8, 64, 64)).astype(np.float32) for count in (4, 3, 5)]  # of 128 KiB each
    blocks = [store.put(each) for each in rows]
    one = Slot(np.zeros(Slot.nbytes(12, signature), np.uint8), 12, signature, None)
    filled = one.fill(blocks)
    assert (filled.rows, filled.pixels, filled.slot_bytes, filled.apart_bytes) == (12, False, 3 << 17, 9 << 17)
    assert [first for first, _ in filled.apart[0]] == [0, 7]
    assert all(np.shares_memory(each.rows, store.arena.bytes) for each in filled.apart[0])
    assert np.array_equal(one.inputs[0][4:7], rows[1])
    assert not one.inputs[0][:4].any()
    assert not one.inputs[0][7:].any()
    store.arena.page_locked = False
    assert one.fill(blocks) == (12, False, [[]], 12 << 17)
    assert np.array_equal(one.inputs[0], np.concatenate(rows))


def test_pixels_beside_rows_are_normalised_into_the_slot_wherever_they_lie(some_bytes: None) -> None:
    signature = Signature((TensorSpec("data", DType.FLOAT32, (3, 8, 8)),), (TensorSpec("out", DType.FLOAT32, (2,)),))
    preprocessing, store = preset("torchvision", (3, 8, 8)), Store(signature)
    made = np.random.default_rng(6)
    pixels, rows = made.integers(0, 256, (2, 8, 8, 3), np.uint8), made.normal(size=(3, 3, 8, 8)).astype(np.float32)
    one = Slot(np.zeros(Slot.nbytes(8, signature), np.uint8), 8, signature, preprocessing)
    filled = one.fill([store.put(pixels), store.put(rows)])
    assert (filled.rows, filled.pixels, [first for first, _ in filled.apart[0]]) == (5, False, [2])
    assert (filled.slot_bytes, filled.apart_bytes) == (2 * 3 * 64 * 4, rows.nbytes)
    assert np.array_equal(one.inputs[0][:2], preprocessing.normalize(pixels))
    together = one.fill([store.put(pixels), store.put(pixels)])
    assert (together.rows, together.pixels, [first for first, _ in together.apart[0]]) == (4, True, [0, 2])


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_a_batch_lie_one_behind_the_other_with_padding_at_the_end(seed: int, some_bytes: None) -> None:
    made = np.random.default_rng(seed)
    signature = Signature((TensorSpec("data", DType.FLOAT32, (16,)),), (TensorSpec("out", DType.FLOAT32, (2,)),))
    store = Store(signature)
    rows = [made.normal(size=(count, 16)).astype(np.float32) for count in made.integers(1, 4, 6)]
    blocks = [store.put(each) for each in rows]  # of 64, 128 and 192 bytes
    one = Slot(np.zeros(Slot.nbytes(32, signature), np.uint8), 32, signature, None)
    filled = one.fill(blocks)
    one.inputs[0][filled.rows :] = 0
    whole = np.concatenate(joined(one.inputs[0], filled.apart[0]))
    assert np.array_equal(whole[: filled.rows], np.concatenate(rows))
    assert whole.shape == (32, 16)
    assert not whole[filled.rows :].any()


@pytest.mark.parametrize("device", DEVICES)
def test_answers_are_those_of_rows_that_were_copied(device: str, some_bytes: None) -> None:
    package = make_package()
    host = NetHost(device, {KEY: served(package)})
    pipeline = host.load(KEY, 8)
    instance = pipeline.instance
    assert isinstance(instance, NetInstance)
    store = Store(instance.signature, instance._handle.device)
    pixels = pixels_of(7)
    rows = package.of_images[0].normalize(pixels)
    for batch, apart_bytes in (
        ([rows[:3], rows[3:7]], 7 * 256),
        ([pixels[:1], pixels[1:4], pixels[4:5], pixels[5:7]], 5 * 64),
        ([pixels[:4], pixels[4:7]], 7 * 64),
        ([rows[:1], pixels[1:4], rows[4:5]], 2 * 256),
        ([pixels[:1]], 0),
    ):
        expected = run(pipeline, *batch)
        answers, timing = run_blocks(pipeline, [store.put(each) for each in batch])
        assert np.array_equal(answers, expected)
        assert timing.apart_bytes == apart_bytes
        row_bytes = 64 if all(each.dtype == np.uint8 for each in batch) else 256
        assert timing.slot_bytes + apart_bytes == sum(map(len, batch)) * row_bytes
    store.close()
    host.close()


@pytest.mark.parametrize("device", DEVICES)
def test_of_several_inputs_each_is_read_where_its_own_rows_are(device: str, some_bytes: None) -> None:
    net = NetBuilder("two")
    small, large = net.input("small", (BATCH, 1, 2, 2)), net.input("large", (BATCH, 1, 8, 8))
    parts = [net.inner_product(f"of_{name}", name, 3, bias=False) for name in (small, large)]
    graph = net.build(net.plus("scores", *parts))
    made = np.random.default_rng(7)
    weights = {
        name: made.normal(size=(3, n)).astype(np.float32)
        for name, n in (("of_small.weight", 4), ("of_large.weight", 64))
    }
    host = NetHost(device, {KEY: ServedModel(Model(graph, weights), None)})
    pipeline = host.load(KEY, 16)
    instance = pipeline.instance
    assert isinstance(instance, NetInstance)
    store = Store(instance.signature, instance._handle.device)
    brought = [[made.normal(size=(rows, 1, side, side)).astype(np.float32) for side in (2, 8)] for rows in (1, 9, 2)]
    blocks = [store.put(*inputs) for inputs in brought]
    answers, timing = run_blocks(pipeline, blocks)
    assert (timing.slot_bytes, timing.apart_bytes) == (3 * 16, 9 * 16 + 12 * 256)
    store.arena.page_locked = False
    copied, timing = run_blocks(pipeline, blocks)
    assert (timing.slot_bytes, timing.apart_bytes) == (12 * (16 + 256), 0)
    assert np.array_equal(answers, copied)
    whole = [np.concatenate(each).reshape(12, -1) for each in zip(*brought, strict=True)]
    expected = sum(rows @ weight.T for rows, weight in zip(whole, weights.values(), strict=True))
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-4)
    store.close()
    host.close()


@pytest.mark.parametrize("device", CUDA_DEVICES[:1])
@pytest.mark.parametrize("kind", ["pixels", "rows"])
def test_rows_are_read_when_the_device_comes_to_them_and_not_once_their_batch_has_ended(
    kind: str, device: str, some_bytes: None
) -> None:
    """So they may not change before, and may be another request's then."""
    package = make_package()
    host = NetHost(device, {KEY: served(package)}, terms=Terms(num_slots=2))
    pipeline = host.load(KEY, 8)
    instance = pipeline.instance
    assert isinstance(instance, NetInstance)
    assert instance._pixels is not None
    first, second = pixels_of(5, 3), pixels_of(5, 4)
    if kind == "rows":
        first, second = map(package.of_images[0].normalize, (first, second))
    expected = run(pipeline, second)
    store = Store(instance.signature, instance._handle.device)
    block = store.put(first)
    gate = Gate(instance._pixels._bringing if kind == "pixels" else instance._handle)
    pipeline.stage([block])
    pipeline.begin()
    block.fill([second])
    gate.open()
    pipeline.finish()
    block.fill([np.zeros_like(first)])
    pipeline.deliver()
    assert np.array_equal(block.outputs()[0], expected)
    store.close()
    host.close()


@pytest.mark.parametrize("device", CUDA_DEVICES[:1])
@pytest.mark.parametrize("kind", ["pixels", "pixels that cannot be read", "rows"])
def test_of_a_batch_that_cannot_be_begun_nothing_is_read_any_more(
    kind: str, device: str, some_bytes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks are put back, and may be another request's at once."""
    package = make_package()
    host = NetHost(device, {KEY: served(package)})
    pipeline = host.load(KEY, 8)
    instance = pipeline.instance
    assert isinstance(instance, NetInstance)
    assert instance._pixels is not None
    brought = pixels_of(5) if kind != "rows" else package.of_images[0].normalize(pixels_of(5))
    expected = run(pipeline, brought)
    store = Store(instance.signature, instance._handle.device)
    block = store.put(brought)

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OutOfMemoryError("no room for a launch")

    if kind == "pixels that cannot be read":
        monkeypatch.setattr(instance._pixels._bringing, "record_event", fail)
    else:
        monkeypatch.setattr(type(instance._executors[0]._open()), "run", fail)
    gate = Gate(instance._handle if kind == "rows" else instance._pixels._bringing)
    pipeline.stage([block])
    gate.open_soon()
    with pytest.raises(OutOfMemoryError, match="no room for a launch"):
        pipeline.begin()
    assert gate.passed
    monkeypatch.undo()
    monkeypatch.setattr(slot, "_APART_BYTES", SOME_BYTES)
    answers, timing = run_blocks(pipeline, [block])
    assert np.array_equal(answers, expected)
    assert timing.apart_bytes == brought.nbytes
    store.close()
    host.close()


def is_locked(address: int) -> bool:
    """Whether the driver knows this memory of the host."""
    kind = driver.bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    with retained(0):
        try:
            driver.call("cuPointerGetAttribute", kind, address)
        except driver.CudaCallError:
            return False
        return True


@on_cuda
@needs_cuda
def test_a_forgotten_arena_is_unlocked_and_its_memory_stays_until_nothing_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locks = PageLocks("cuda:0")
    arenas = [Arena.of(1 << 16) for _ in range(2)]
    addresses = [arena.bytes.ctypes.data for arena in arenas]
    for arena in arenas:
        locks.lock(arena)
    wait_until(lambda: all(arena.page_locked for arena in arenas))
    assert all(map(is_locked, addresses))
    with Handle("cuda:0") as handle:
        there = handle.tensor((1 << 16,), DType.UINT8)
        gate, unlocked = Gate(handle), []
        unregister = driver.unregister_host

        def watched(array: np.ndarray) -> None:
            unlocked.append(gate.passed)
            unregister(array)

        monkeypatch.setattr(driver, "unregister_host", watched)
        arenas[0].bytes[:] = 7
        handle.device.gather_to_device(handle.stream, there.address, [arenas[0].bytes])
        memory = weakref.ref(arenas[0].bytes)
        locks.unlock(arenas.pop(0))
        del arena
        assert memory() is not None
        gate.open_soon()
        handle.stream.synchronize()
        assert there.numpy().tolist() == [7] * (1 << 16)
    wait_until(lambda: memory() is None)
    assert unlocked == [True]
    assert list(map(is_locked, addresses)) == [False, True]
    locks.close()
    assert not is_locked(addresses[1])


@on_cuda
@needs_cuda
def test_a_device_that_refuses_an_arena_is_given_copies_of_all_rows_and_the_log_says_so_once(
    some_bytes: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    locks, host = PageLocks("cuda:0"), NetHost("cuda:0", {KEY: served()})
    pipeline = host.load(KEY, 8)
    expected = run(pipeline, pixels_of(5))
    stores = [Store(pipeline.instance.signature) for _ in range(3)]
    for store in stores:
        store.arena.page_locked = False
    locks.lock(stores[0].arena)
    wait_until(lambda: stores[0].arena.page_locked)

    def refuse(_array: np.ndarray) -> NoReturn:
        raise driver.CudaCallError("cuMemHostRegister", driver.bindings().CUresult.CUDA_ERROR_OUT_OF_MEMORY)

    monkeypatch.setattr(driver, "register_host", refuse)
    for store in stores[1:]:
        locks.lock(store.arena)
    locks.unlock(stores[0].arena)
    locks.close()  # after all that
    assert not any(store.arena.page_locked for store in stores)
    (said,) = [record for record in caplog.records if record.name == "dnnserve.engine.page_locks"]
    assert said.levelno == logging.WARNING
    assert "cuda:0 does not read rows where front ends put them" in said.getMessage()
    assert "OUT_OF_MEMORY" in said.getMessage()
    answers, timing = run_blocks(pipeline, [stores[1].put(pixels_of(5))])
    assert np.array_equal(answers, expected)
    assert (timing.slot_bytes, timing.apart_bytes) == (5 * 64, 0)
    host.close()


def test_on_the_cpu_rows_are_copied_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    locks, arenas = PageLocks("cpu"), [Arena.of(1 << 16) for _ in range(2)]
    for arena in arenas:
        locks.lock(arena)
    locks.close()
    assert not any(arena.page_locked for arena in arenas)
    assert [record.levelno for record in caplog.records if record.name == "dnnserve.engine.page_locks"] == [
        logging.INFO
    ]


def test_arenas_without_large_blocks_are_not_locked_and_others_with_their_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A locked arena has all its memory, also what no request has used."""
    asked: list[Arena] = []
    monkeypatch.setattr(PageLocks, "_lock", lambda _, arena: asked.append(arena))
    here, there = map(Link, Link.pair())
    stager = _Stager(there, "cuda:0")
    spec = make_spec()
    stager.pipelines[spec.key] = pipeline = LocalPipeline(FakeInstance(Lab(), "cpu", 8))
    monkeypatch.setattr(slot, "_APART_BYTES", 4 * 96)
    key = (spec.key.name, spec.key.version, spec.key.load)
    for number in (1, 2):
        arena = Arena.of(1 << 16)
        here.send(Map(number), [arena.fd])
    for rows, in_arenas in (((3, 3), (1, 2)), ((3, 4), (1, 2)), ((4,), (2,))):
        blocks = [
            field for number, count in zip(in_arenas, rows, strict=True) for field in (number, 0, count, False, (0,))
        ]
        here.note(tuple(Run(key, tuple(blocks))))
        order = stager.orders.get()
        assert order == (pipeline, ())
        pipeline.begin()
        pipeline.finish()
        pipeline.deliver()
    here.shut_down()
    stager.join()
    assert len(asked) == 1
    here.close()
    there.close()
