"""The CUDA Array Interface both ways, and handles on streams of another library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dnncore import RELU, DType, Handle, TensorDescriptor, ops
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.runtime.stream import CudaStream
from dnncore.cuda.unit import Unit
from dnncore.errors import BadParamError, ClosedError
from tests.conftest import CUDA_DEVICES
from tests.cuda.test_context import fixed_call
from tests.unit.foreign import Array, Device, open_capsule


@pytest.fixture
def gpu() -> Device:
    return Device(0)


@pytest.fixture
def on_gpu() -> Iterator[Handle]:
    with Handle("cuda:0") as handle:
        yield handle


def last_shared_word(entry: str) -> Unit:
    """A kernel that passes a number through the last word of its shared memory."""
    return Unit(
        "struct Params { int* out; long long words; };\n"
        f'extern "C" __global__ void {entry}(const __grid_constant__ Params params) {{\n'
        "  extern __shared__ int shared[];\n"
        "  if (threadIdx.x == 0) shared[params.words - 1] = 77;\n"
        "  __syncthreads();\n"
        "  if (threadIdx.x == 1) *params.out = shared[params.words - 1];\n}\n",
        entry,
    )


class Says:
    """An array that says what a test wants it to say."""

    def __init__(self, array: Array, **more: Any) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **more}


def test_host_memory_has_no_cuda_interface() -> None:
    with Handle("cpu") as handle, handle.tensor((3,)) as tensor:
        assert not hasattr(tensor, "__cuda_array_interface__")
        with pytest.raises(BadParamError, match="cannot be shared with cpu"):
            handle.from_cuda_array(tensor)


@pytest.mark.cuda
class TestExport:
    def test_the_interface_says_where_a_strided_view_lies(self, on_gpu: Handle) -> None:
        with on_gpu.tensor((40,), DType.FLOAT16) as block:
            start = open_capsule(block.__dlpack__())
            view = block.view(TensorDescriptor(DType.FLOAT16, (2, 3), (10, 2)), 5)
            assert view.__cuda_array_interface__ == {
                "version": 3,
                "shape": (2, 3),
                "strides": (20, 4),
                "typestr": "<f2",
                "data": (start.pointer + 10, False),
                "stream": on_gpu.stream.handle,
            }
            assert block.__cuda_array_interface__["strides"] is None
            assert block.__cuda_array_interface__["stream"] > 2
            start.delete()

    def test_no_elements_are_at_address_0(self, on_gpu: Handle) -> None:
        with on_gpu.tensor((0, 3)) as tensor:
            assert tensor.__cuda_array_interface__["data"] == (0, False)

    def test_bfloat16_and_closed_tensors_have_none(self, on_gpu: Handle) -> None:
        with on_gpu.tensor((3,), DType.BFLOAT16) as tensor, pytest.raises(AttributeError, match="use DLPack"):
            _ = tensor.__cuda_array_interface__
        with pytest.raises(ClosedError):
            _ = tensor.__cuda_array_interface__


@pytest.mark.cuda
class TestImport:
    @pytest.mark.parametrize("stream", [1, 2, "own"])
    def test_what_the_producer_has_is_seen_in_place(self, gpu: Device, on_gpu: Handle, stream: int | str) -> None:
        theirs = stream if isinstance(stream, int) else gpu.create_stream()
        values = np.arange(12, dtype=np.int32).reshape(3, 4)
        array = Array(values[:, 1:3], gpu, theirs)
        with on_gpu.from_cuda_array(array) as x:
            assert x.descriptor == TensorDescriptor(DType.INT32, (3, 2), (4, 1))
            assert x.numpy().tolist() == values[:, 1:3].tolist()
            x.assign(np.full((3, 2), 7, np.int32))
        assert gpu.read(array.pointer, 2, np.int32, theirs).tolist() == [7, 7]
        array.free()
        if isinstance(stream, str):
            gpu.destroy_stream(theirs)

    def test_packed_and_read_only_memory_is_understood(self, gpu: Device, on_gpu: Handle) -> None:
        array = Array(np.arange(6, dtype=np.float32), gpu, read_only=True)
        with on_gpu.from_cuda_array(Says(array, strides=None, shape=(2, 3))) as x:
            assert x.descriptor == TensorDescriptor.packed((2, 3))
            assert x.read_only
            assert x.__cuda_array_interface__["data"] == (array.pointer, True)
            assert x.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        array.free()

    def test_the_producer_lives_as_long_as_the_tensor(self, gpu: Device, on_gpu: Handle) -> None:
        import gc
        import weakref

        array = Array(np.zeros(3, np.float32), gpu)
        producer = Says(array)
        alive = weakref.ref(producer)
        tensor = on_gpu.from_cuda_array(producer)
        del producer
        gc.collect()
        assert alive() is not None
        tensor.close()
        gc.collect()
        assert alive() is None
        array.free()

    @pytest.mark.parametrize(
        ("says", "message"),
        [
            ({"stream": 0}, "stream 0, which is ambiguous"),
            ({"typestr": "<c8"}, "dtype .* is not supported"),
            ({"typestr": ">f4"}, "other byte order"),
            ({"strides": (6,)}, "not whole elements of 4 bytes"),
            ({"strides": (-4,)}, "must not be negative"),
            ({"mask": object()}, "has a mask"),
        ],
        ids=["stream-0", "dtype", "byte-order", "stride", "negative-stride", "mask"],
    )
    def test_what_a_tensor_cannot_be_is_refused(
        self, gpu: Device, on_gpu: Handle, says: dict[str, Any], message: str
    ) -> None:
        array = Array(np.zeros(3, np.float32), gpu)
        with pytest.raises(BadParamError, match=message):
            on_gpu.from_cuda_array(Says(array, **says))
        array.free()

    def test_an_array_without_dimensions_is_seen_in_place(self, gpu: Device, on_gpu: Handle) -> None:
        array = Array(np.full(3, 2, np.float32), gpu)
        tensor = on_gpu.from_cuda_array(Says(array, shape=(), strides=()))
        assert (tensor.shape, tensor.numpy().item()) == ((), 2)
        tensor.close()
        array.free()

    def test_an_odd_address_is_refused(self, gpu: Device, on_gpu: Handle) -> None:
        array = Array(np.zeros(3, np.float32), gpu)
        with pytest.raises(BadParamError, match="not aligned"):
            on_gpu.from_cuda_array(Says(array, data=(array.pointer + 1, False)))
        array.free()

    def test_memory_that_is_not_this_devices_is_refused(self, gpu: Device, on_gpu: Handle) -> None:
        array = Array(np.zeros(3, np.float32), gpu)
        host = np.zeros(3, np.float32)
        with pytest.raises(BadParamError, match="in no device's memory"):
            on_gpu.from_cuda_array(Says(array, data=(host.ctypes.data, False)))
        with pytest.raises(BadParamError, match="ndarray has no __cuda_array_interface__"):
            on_gpu.from_cuda_array(host)
        for name in CUDA_DEVICES[1:2]:
            with Handle(name) as other, pytest.raises(BadParamError, match=r"is in cuda:0's memory, .* of cuda:1"):
                other.from_cuda_array(array)
        array.free()


@pytest.mark.cuda
class TestExternalStream:
    def test_work_is_enqueued_on_it_and_it_is_not_destroyed(self, gpu: Device) -> None:
        theirs = gpu.create_stream()
        x = np.arange(-6, 6, dtype=np.float32)
        with Handle("cuda:0", stream=theirs) as handle:
            assert handle.stream.handle == theirs
            tensor = handle.upload(x)
            ops.activation_forward(handle, RELU, 1.0, tensor, 0.0, tensor)
            with gpu.blocked(theirs) as gate:
                ops.activation_forward(handle, RELU, 3.0, tensor, 0.0, tensor)
                event = handle.record_event()
                assert not event.query()
                gate.set()
                assert tensor.numpy().tolist() == (3 * np.maximum(x, 0)).tolist()
                assert event.query()
        assert gpu.is_idle(theirs)
        gpu.destroy_stream(theirs)

    def test_results_are_those_of_a_stream_of_our_own(self, gpu: Device) -> None:
        random = np.random.default_rng(0)
        a, b = random.standard_normal((130, 70), np.float32), random.standard_normal((70, 140), np.float32)
        results = []
        for stream in (None, 0, 1, 2, gpu.create_stream()):
            with Handle("cuda:0", stream=stream) as handle:
                c = handle.tensor((130, 140))
                ops.matmul(handle, 1.0, handle.upload(a), handle.upload(b), 0.0, c)
                results.append(c.numpy())
        assert all(np.array_equal(result, results[0]) for result in results)

    @pytest.mark.parametrize(
        "launches",
        [[("outside", 1), ("outside", 64), ("inside", 64)], [("inside", 64), ("outside", 64)]],
        ids=["outside-first", "inside-first"],
    )
    def test_a_kernel_with_much_shared_memory_runs_on_it(self, gpu: Device, launches: list[tuple[str, int]]) -> None:
        unit = last_shared_word(f"{launches[0][0]}_first")
        with Handle("cuda:0", stream=1) as outside, Handle("cuda:0") as inside:
            for where, kib in launches:
                handle = outside if where == "outside" else inside
                assert isinstance(handle.device, CudaDevice)
                assert isinstance(handle.stream, CudaStream)
                out = handle.upload(np.zeros(1, np.int32))
                params = np.array((out.address, kib * 256), [("out", "<u8"), ("words", "<i8")])
                handle.device.bind(fixed_call(unit, 1, 32, params, kib << 10))(handle.stream, 1.0, 0.0, ())
                assert out.numpy().tolist() == [77]

    def test_an_object_may_say_its_stream(self, gpu: Device) -> None:
        class Stream:
            handle = gpu.create_stream()

            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, self.handle

        with Handle("cuda:0", stream=Stream()) as handle:
            assert handle.stream.handle == Stream.handle
        gpu.destroy_stream(Stream.handle)

    def test_a_stream_of_another_device_is_refused(self) -> None:
        if len(CUDA_DEVICES) < 2:
            return
        other = Device(1)
        stream = other.create_stream()
        with pytest.raises(BadParamError, match=f"stream {stream:#x} belongs to another device than cuda:0"):
            Handle("cuda:0", stream=stream)
        other.destroy_stream(stream)


def test_the_cpu_has_no_streams() -> None:
    with pytest.raises(BadParamError, match="cpu, which has no streams"):
        Handle("cpu", stream=1)
