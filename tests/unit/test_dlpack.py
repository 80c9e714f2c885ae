"""Memory shared with other libraries: DLPack both ways, with NumPy, PyTorch's CPU build and a library of our own."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest
import torch

from dnncore import RELU, DType, Handle, TensorDescriptor, ops
from dnncore.errors import BadParamError, ClosedError, OwnerError
from tests.conftest import CUDA_DEVICES
from tests.unit.foreign import Array, Capsule, Device, open_capsule

MIB = 1 << 20
DTYPE_CODES = dict.fromkeys(("float16", "float32", "float64"), 2) | {
    "bfloat16": 4,
    "int8": 0,
    "uint8": 1,
    "int32": 0,
    "bool": 6,
}


@pytest.fixture
def device(handle: Handle) -> Device | None:
    """The library's view of the handle's device; None for "cpu"."""
    return None if handle.info.name == "cpu" else Device(0)


@pytest.fixture
def gpu() -> Device:
    return Device(0)


@pytest.fixture
def on_gpu() -> Iterator[Handle]:
    with Handle("cuda:0") as handle:
        yield handle


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class TestExport:
    @pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.value)
    def test_a_capsule_says_where_a_strided_view_lies(self, handle: Handle, dtype: DType) -> None:
        with handle.tensor((40,), dtype) as block:
            view = block.view(TensorDescriptor(dtype, (2, 3), (10, 2)), 5)
            found = open_capsule(view.__dlpack__(max_version=(1, 1)))
            start = open_capsule(block.__dlpack__())
            assert (found.name, start.name) == ("dltensor_versioned", "dltensor")
            assert found.pointer == start.pointer + 5 * dtype.itemsize
            assert (found.shape, found.strides) == ((2, 3), (10, 2))
            assert found.device == start.device == view.__dlpack_device__()
            assert found.dtype == start.dtype == (DTYPE_CODES[dtype.value], 8 * dtype.itemsize, 1)
            assert found.flags == 0
            found.delete()
            start.delete()

    def test_numpy_and_pytorch_write_where_the_tensor_reads(self) -> None:
        with Handle("cpu") as handle, handle.upload(np.zeros((2, 3), np.float32)) as tensor:
            np.from_dlpack(tensor)[0, 1] = 5
            torch.from_dlpack(tensor)[1, 2] = 7
            torch.utils.dlpack.from_dlpack(tensor)[1, 0] = 9
            assert tensor.numpy().tolist() == [[0, 5, 0], [9, 0, 7]]

    def test_pytorch_sees_bfloat16_and_int8_and_gaps(self) -> None:
        with Handle("cpu") as handle:
            values = np.arange(6, dtype=ml_dtypes.bfloat16)
            assert torch.from_dlpack(handle.upload(values)).tolist() == [0, 1, 2, 3, 4, 5]
            tensor = handle.upload(np.arange(-6, 6, dtype=np.int8))
            seen = torch.from_dlpack(tensor.view(TensorDescriptor(DType.INT8, (2, 3), (1, 4)), 1))
            assert seen.tolist() == [[-5, -1, 3], [-4, 0, 4]]

    def test_what_the_owner_closes_stays_with_the_consumer(self) -> None:
        handle = Handle("cpu")
        tensor = handle.upload(np.arange(4, dtype=np.float32))
        array = np.from_dlpack(tensor)
        tensor.close()
        with pytest.raises(ClosedError):
            np.from_dlpack(tensor)
        handle.close()
        assert array.tolist() == [0, 1, 2, 3]

    def test_a_closed_tensor_and_a_foreign_thread_are_refused(self, handle: Handle) -> None:
        tensor = handle.tensor((3,))
        errors: list[BaseException] = []

        def share() -> None:
            try:
                tensor.__dlpack__()
            except OwnerError as error:
                errors.append(error)

        in_thread(share)
        assert len(errors) == 1
        tensor.close()
        with pytest.raises(ClosedError):
            tensor.__dlpack__()

    def test_a_copy_is_the_consumers_alone(self, handle: Handle, device: Device | None) -> None:
        with handle.upload(np.arange(4, dtype=np.float32)) as tensor:
            original, copied = tensor.__dlpack__(), tensor.__dlpack__(copy=True, max_version=(1, 0))
            first, second = open_capsule(original), open_capsule(copied)
            assert (second.flags, second.device) == (2, first.device)
            assert first.pointer != second.pointer
            tensor.assign(np.zeros(4, np.float32))
            assert read(second, device).tolist() == [0, 1, 2, 3]
            first.delete()
            second.delete()

    def test_the_host_gets_a_copy_of_device_memory(self, handle: Handle) -> None:
        with handle.upload(np.arange(4, dtype=np.float32)) as tensor:
            array = np.from_dlpack(tensor, device="cpu")
            assert array.tolist() == [0, 1, 2, 3]
            if tensor.__dlpack_device__() != (1, 0):
                with pytest.raises(BufferError, match="without a copy"):
                    np.from_dlpack(tensor, device="cpu", copy=False)
            with pytest.raises(BufferError, match=r"given for \(2, 9\)"):
                tensor.__dlpack__(dl_device=(2, 9))

    def test_a_stream_is_refused_for_host_memory(self) -> None:
        with Handle("cpu") as handle, handle.tensor((3,)) as tensor:
            tensor.__dlpack__(stream=-1)
            with pytest.raises(BadParamError, match="which has no streams"):
                tensor.__dlpack__(stream=1)

    def test_a_tensor_without_elements_is_shared(self, handle: Handle) -> None:
        with handle.tensor((0, 3)) as tensor:
            found = open_capsule(tensor.__dlpack__(max_version=(1, 0)))
            assert found.shape == (0, 3)
            found.delete()
        with Handle("cpu") as cpu:
            assert torch.from_dlpack(cpu.tensor((0, 3))).shape == (0, 3)


def read(found: Capsule, device: Device | None) -> np.ndarray:
    """The float32 numbers of a capsule, as its consumer reads them."""
    count = int(np.prod(found.shape))
    if device is not None:
        return device.read(found.pointer, count, np.float32, 1)
    return np.frombuffer(ctypes.string_at(found.pointer, 4 * count), np.float32)


@pytest.mark.cuda
class TestExportFromAGpu:
    def test_memory_is_freed_with_its_last_consumer_in_whichever_thread(self, gpu: Device, on_gpu: Handle) -> None:
        tensor = on_gpu.tensor((MIB,))
        first, second = (open_capsule(tensor.__dlpack__(max_version=(1, 0))) for _ in range(2))
        tensor.close()
        tensor.close()
        first.delete()
        assert gpu.knows(second.pointer)
        in_thread(second.delete)
        assert not gpu.knows(second.pointer)

    def test_closing_the_handle_leaves_memory_to_its_consumer(self, gpu: Device) -> None:
        with Handle("cuda:0") as handle:
            held = open_capsule(handle.upload(np.arange(MIB, dtype=np.float32)).__dlpack__())
        assert gpu.read(held.pointer, MIB, np.float32, 1)[-1] == MIB - 1
        in_thread(held.delete)
        assert not gpu.knows(held.pointer)

    @pytest.mark.parametrize("version", [None, (1, 0)], ids=["unversioned", "versioned"])
    def test_a_capsule_that_nobody_takes_holds_nothing_when_it_is_gone(
        self, gpu: Device, on_gpu: Handle, version: tuple[int, int] | None
    ) -> None:
        tensor = on_gpu.tensor((MIB,))
        address, _ = tensor.__cuda_array_interface__["data"]
        made = tensor.__dlpack__(max_version=version)
        tensor.close()
        assert gpu.knows(address)
        del made
        assert not gpu.knows(address)

    def test_an_error_of_the_consumer_is_the_one_that_is_seen(self, gpu: Device, on_gpu: Handle) -> None:
        tensor = on_gpu.tensor((MIB,))
        address, _ = tensor.__cuda_array_interface__["data"]
        with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
            np.from_dlpack(tensor)  # NumPy drops the capsule with its own exception under way
        tensor.close()
        assert not gpu.knows(address)

    @pytest.mark.parametrize("stream", [None, 1, 2, "own"])
    def test_the_consumers_stream_waits_for_ours(self, gpu: Device, on_gpu: Handle, stream: int | str | None) -> None:
        with on_gpu.upload(np.zeros(4, np.float32)) as x, on_gpu.upload(np.ones(4, np.float32)) as one:
            ours = on_gpu.stream.handle
            assert ours is not None
            theirs = gpu.create_stream() if stream == "own" else 1 if stream is None else stream
            assert isinstance(theirs, int)
            asked = None if stream is None else theirs
            ops.add(on_gpu, 1.0, one, 1.0, x)  # the kernel is loaded before anything stands still
            with gpu.blocked(ours) as gate:
                ops.add(on_gpu, 1.0, one, 1.0, x)
                found = open_capsule(x.__dlpack__(stream=asked))
                assert not gpu.is_idle(theirs)
                gate.set()
                assert gpu.read(found.pointer, 4, np.float32, theirs).tolist() == [2, 2, 2, 2]
            found.delete()
            if stream == "own":
                gpu.destroy_stream(theirs)

    def test_nothing_waits_where_the_consumer_asks_for_that(self, gpu: Device, on_gpu: Handle) -> None:
        with on_gpu.tensor((4,)) as x:
            theirs, ours = gpu.create_stream(), on_gpu.stream.handle
            assert ours is not None
            with gpu.blocked(ours):
                found = open_capsule(x.__dlpack__(stream=-1))
                assert gpu.is_idle(theirs)
                found.delete()
            gpu.destroy_stream(theirs)

    @pytest.mark.parametrize("stream", [0, -2])
    def test_numbers_that_are_no_streams_are_refused(self, on_gpu: Handle, stream: int) -> None:
        with on_gpu.tensor((4,)) as x, pytest.raises(BufferError, match=f"stream {stream} names none"):
            x.__dlpack__(stream=stream)


class TestImport:
    @pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "unversioned"])
    def test_what_the_producer_has_is_seen_and_written_in_place(
        self, handle: Handle, device: Device | None, versioned: bool
    ) -> None:
        whole = np.arange(24, dtype=np.float32)
        values = whole[3:].reshape(3, 7).T[1::2]
        array, expected = Array(values, device, versioned=versioned), 10 * values
        with handle.from_dlpack(array) as x:
            assert x.descriptor == TensorDescriptor(DType.FLOAT32, (3, 3), (2, 7))
            assert x.numpy().tolist() == values.tolist()
            ops.activation_forward(handle, RELU, 10.0, x, 0.0, x)
            found = open_capsule(x.__dlpack__())
            assert found.pointer == array.pointer
            found.delete()
            assert array.asked == [handle.stream.handle]
            assert array.deleted == 0
            assert x.numpy().tolist() == expected.tolist()
        assert array.deleted == 1
        array.free()

    def test_the_producers_memory_is_given_back_with_the_handle(self, handle: Handle, device: Device | None) -> None:
        array = Array(np.zeros(3, np.float32), device)
        with Handle(handle.info.name) as own:
            own.from_dlpack(array)
            gc.collect()
            assert array.deleted == 0
        assert array.deleted == 1
        array.free()

    def test_what_is_shared_onwards_is_given_back_once_the_last_lets_go(
        self, handle: Handle, device: Device | None
    ) -> None:
        array = Array(np.arange(3, dtype=np.float32), device)
        tensor = handle.from_dlpack(array)
        found = open_capsule(tensor.__dlpack__())
        tensor.close()
        assert array.deleted == 0
        assert read(found, device).tolist() == [0, 1, 2]
        in_thread(found.delete)
        assert array.deleted == 1
        array.free()

    def test_read_only_memory_is_read_and_never_written(self, handle: Handle, device: Device | None) -> None:
        array = Array(np.arange(3, dtype=np.float32), device, read_only=True)
        with handle.from_dlpack(array) as x, handle.tensor((3,)) as y:
            assert x.read_only
            ops.activation_forward(handle, RELU, 2.0, x, 0.0, y)
            assert y.numpy().tolist() == [0, 2, 4]
            writes: tuple[Callable[[], None], ...] = (
                lambda: ops.activation_forward(handle, RELU, 1.0, y, 0.0, x),
                lambda: x.assign(np.zeros(3, np.float32)),
                lambda: x.reshape(3, 1).assign(np.zeros((3, 1), np.float32)),
            )
            for write in writes:
                with pytest.raises(BadParamError, match="is read-only"):
                    write()
            found = open_capsule(x.__dlpack__(max_version=(1, 0)))
            assert found.flags == 1
            found.delete()
            with pytest.raises(BufferError, match="read-only"):
                x.__dlpack__()
            copied = open_capsule(x.__dlpack__(copy=True))
            copied.delete()
        assert array.deleted == 1
        array.free()

    def test_numpy_and_pytorch_are_seen_in_place(self) -> None:
        with Handle("cpu") as handle:
            array = np.arange(6, dtype=np.float64).reshape(2, 3)
            handle.from_dlpack(array.T).assign(np.ones((3, 2)))
            assert array.tolist() == [[1, 1, 1], [1, 1, 1]]
            values = torch.zeros(2, 3, dtype=torch.bfloat16)
            handle.from_dlpack(values).assign(np.full((2, 3), 2, ml_dtypes.bfloat16))
            assert values.tolist() == [[2, 2, 2], [2, 2, 2]]
            frozen = np.arange(3, dtype=np.float32)
            frozen.setflags(write=False)
            assert handle.from_dlpack(frozen).read_only

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.zeros(3, np.complex64), r"\(5, 64, 1\) is not supported; use one of"),
            (np.zeros(3, np.uint16), r"\(1, 16, 1\) is not supported"),
            (np.arange(6, dtype=np.float32)[::-1], "must not be negative"),
            (np.zeros((1,) * 9, np.float32), "9 dimensions"),
            (np.zeros(9, np.uint8)[1:].view(np.float32), "not aligned"),
        ],
        ids=["complex", "unsigned", "negative-stride", "many-dimensions", "odd-address"],
    )
    def test_what_a_tensor_cannot_be_is_refused_and_given_back(
        self, handle: Handle, device: Device | None, array: np.ndarray, message: str
    ) -> None:
        theirs = Array(array, device)
        with pytest.raises(BadParamError, match=message):
            handle.from_dlpack(theirs)
        gc.collect()
        assert theirs.deleted == 1
        theirs.free()

    def test_an_array_without_dimensions_is_seen_in_place(self, handle: Handle, device: Device | None) -> None:
        theirs = Array(np.array(3, np.float32), device)
        tensor = handle.from_dlpack(theirs)
        assert (tensor.shape, tensor.numpy().shape, tensor.numpy().item()) == ((), (), 3)
        tensor.close()
        theirs.free()

    def test_a_newer_dlpack_is_refused_and_given_back(self, handle: Handle, device: Device | None) -> None:
        theirs = Array(np.zeros(3, np.float32), device, major=2)
        with pytest.raises(BadParamError, match=r"DLPack 2.0; 1.x"):
            handle.from_dlpack(theirs)
        assert theirs.deleted == 1
        theirs.free()

    def test_another_device_is_refused_before_anything_is_exported(self, handle: Handle) -> None:
        class Elsewhere:
            def __dlpack_device__(self) -> tuple[int, int]:
                return 2, 7

            def __dlpack__(self, **_: object) -> object:
                raise AssertionError

        with pytest.raises(BadParamError, match=f"on cuda:7, this handle on {handle.info.name}"):
            handle.from_dlpack(Elsewhere())

    @pytest.mark.parametrize("kind", [3, 13], ids=["page-locked", "managed"])
    def test_memory_that_the_host_reads_too_is_the_hosts(self, kind: int) -> None:
        with Handle("cpu") as handle:
            array = Array(np.arange(3, dtype=np.float32), place=(kind, 0))
            assert handle.from_dlpack(array).numpy().tolist() == [0, 1, 2]

    @pytest.mark.cuda
    def test_managed_memory_is_every_gpus(self, gpu: Device, on_gpu: Handle) -> None:
        array = Array(np.arange(3, dtype=np.float32), gpu, place=(13, 5))
        with on_gpu.from_dlpack(array) as tensor:
            assert tensor.numpy().tolist() == [0, 1, 2]
        array.free()

    def test_host_memory_is_refused_by_a_gpu_and_the_other_way_round(self, handle: Handle) -> None:
        if handle.info.name != "cpu":
            with pytest.raises(BadParamError, match=r"on cpu, this handle on cuda:0; .* upload"):
                handle.from_dlpack(np.zeros(3, np.float32))
        for name in CUDA_DEVICES[:1]:
            with (
                Handle(name) as other,
                other.tensor((3,)) as tensor,
                Handle("cpu") as cpu,
                pytest.raises(BadParamError, match="on cuda:0, this handle on cpu"),
            ):
                cpu.from_dlpack(tensor)

    def test_what_has_no_dlpack_is_named(self, handle: Handle) -> None:
        with pytest.raises(BadParamError, match="list has no __dlpack__"):
            handle.from_dlpack([1.0])

    def test_a_tensor_of_another_handle_is_shared(self, handle: Handle) -> None:
        with Handle(handle.info.name) as other, other.upload(np.arange(3, dtype=np.float32)) as theirs:
            with handle.from_dlpack(theirs) as ours:
                ops.activation_forward(handle, RELU, 2.0, ours, 0.0, ours)
                handle.synchronize()
            assert theirs.numpy().tolist() == [0, 2, 4]


@pytest.mark.cuda
def test_our_stream_waits_for_the_producers(gpu: Device, on_gpu: Handle) -> None:
    theirs, ours = gpu.create_stream(), on_gpu.stream.handle
    assert ours is not None
    for share in (on_gpu.from_dlpack, on_gpu.from_cuda_array):
        array = Array(np.zeros(4, np.float32), gpu, theirs)
        gpu.synchronize(theirs)
        with gpu.blocked(theirs) as gate:
            gpu.write(array.pointer, np.full(4, 3, np.float32), theirs)
            x = share(array)
            assert not gpu.is_idle(ours)
            gate.set()
            assert x.numpy().tolist() == [3, 3, 3, 3]
        x.close()
        array.free()
    gpu.destroy_stream(theirs)
