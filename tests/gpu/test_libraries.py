"""Memory and streams shared with the libraries that are installed on a GPU host; a test's name says which, of what version."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from dnncore import RELU, DType, Handle, TensorDescriptor, ops
from tests.conftest import CUDA_DEVICES
from tests.gpu.libraries import MISSING, STREAMED, USABLE, Library
from tests.unit.foreign import Device

pytestmark = pytest.mark.cuda

LARGE = 1 << 24
"""Elements of arrays whose work takes long enough that a missing wait is seen."""

every = pytest.mark.parametrize("library", USABLE, ids=lambda library: library.name)
streamed = pytest.mark.parametrize("library", STREAMED, ids=lambda library: library.name)


@pytest.fixture
def on_gpu() -> Iterator[Handle]:
    with Handle("cuda:0") as handle:
        yield handle


@pytest.mark.parametrize("missing", [", ".join(MISSING) or "nothing"])
def test_a_library_to_share_with_is_here_and_this_is_missing(missing: str) -> None:
    assert USABLE, missing


@every
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int32"])
def test_they_read_what_we_wrote(on_gpu: Handle, library: Library, dtype: str) -> None:
    values = np.arange(24).astype(dtype).reshape(2, 3, 4)
    with on_gpu.upload(values) as tensor:
        theirs = library.from_dlpack(tensor)
        assert np.array_equal(library.download(theirs), values)
        del theirs
        gc.collect()


@every
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int32"])
def test_we_read_what_they_wrote(on_gpu: Handle, library: Library, dtype: str) -> None:
    values = np.arange(24).astype(dtype).reshape(2, 3, 4)
    theirs = library.upload(values)
    with on_gpu.from_dlpack(theirs) as tensor:
        assert tensor.descriptor == TensorDescriptor.of(values)
        assert np.array_equal(tensor.numpy(), values)
    with on_gpu.from_cuda_array(theirs) as tensor:
        assert np.array_equal(tensor.numpy(), values)


@streamed
def test_both_write_the_same_memory(on_gpu: Handle, library: Library) -> None:
    theirs = library.upload(np.arange(12, dtype=np.float32).reshape(3, 4))
    for share in (on_gpu.from_dlpack, on_gpu.from_cuda_array):
        with share(theirs[:, 1:3]) as ours:
            assert ours.descriptor == TensorDescriptor(DType.FLOAT32, (3, 2), (4, 1))
            ops.activation_forward(on_gpu, RELU, 2.0, ours, 0.0, ours)
    assert library.download(theirs).tolist() == [[0, 4, 8, 3], [4, 20, 24, 7], [8, 36, 40, 11]]

    with on_gpu.upload(np.arange(12, dtype=np.float32)) as ours:
        view = ours.view(TensorDescriptor(DType.FLOAT32, (3, 2), (4, 2)), 1)
        for take in (library.from_dlpack, library.from_cuda_array):
            seen = take(view)
            seen += 100
            assert library.download(seen).shape == (3, 2)
        assert ours.numpy().reshape(3, 4)[:, 1::2].tolist() == [[201, 203], [205, 207], [209, 211]]
        assert ours.numpy()[0::2].tolist() == [0, 2, 4, 6, 8, 10]
        del seen
        gc.collect()


def test_pytorch_shares_bfloat16(on_gpu: Handle) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.arange(-4, 4, device="cuda").to(torch.bfloat16)
    with on_gpu.from_dlpack(theirs) as ours:
        ops.activation_forward(on_gpu, RELU, 2.0, ours, 0.0, ours)
        assert torch.from_dlpack(ours).dtype is torch.bfloat16
        on_gpu.synchronize()
    assert theirs.tolist() == [0, 0, 0, 0, 0, 2, 4, 6]


@streamed
def test_nobody_waits_on_the_host_and_everybody_sees_the_other_ones_work(on_gpu: Handle, library: Library) -> None:
    stream = library.new_stream()
    with library.on(stream), on_gpu.tensor((LARGE,)) as ours:
        for round_ in range(10):
            theirs = library.upload(np.zeros(LARGE, np.float32))
            for _ in range(20):
                theirs += 1
            with on_gpu.from_dlpack(theirs) as x:  # our stream waits for theirs
                ops.activation_forward(on_gpu, RELU, 1.0 + round_, x, 0.0, ours)
                seen = library.from_dlpack(ours)  # their stream waits for ours
                result = seen * 2
                del seen
            assert set(library.download(result[:: LARGE // 64]).tolist()) == {40.0 * (1 + round_)}


@streamed
@pytest.mark.parametrize("own", [False, True], ids=["default-stream", "stream-of-its-own"])
def test_a_handle_on_their_stream_takes_turns_with_them(library: Library, own: bool) -> None:
    theirs = library.upload(np.zeros(LARGE, np.float32))
    expected = 0.0
    if not own:
        with Handle("cuda:0", stream=0) as handle:
            expected = take_turns(library, handle, theirs)
    else:
        stream = library.new_stream()
        library.download(theirs[:1])
        with library.on(stream), Handle("cuda:0", stream=library.handle_of(stream)) as handle:
            assert handle.stream.handle == library.handle_of(stream)
            expected = take_turns(library, handle, theirs)
    assert set(library.download(theirs[:: LARGE // 64]).tolist()) == {expected}


def take_turns(library: Library, handle: Handle, theirs: object) -> float:
    expected = 0.0
    with handle.from_dlpack(theirs) as ours:
        for _ in range(8):
            theirs += 1  # type: ignore[operator]
            ops.activation_forward(handle, RELU, 2.0, ours, 0.0, ours)
            expected = (expected + 1) * 2
    return expected


@every
def test_memory_goes_back_to_where_it_came_from(on_gpu: Handle, library: Library) -> None:
    device = Device(0)
    tensor = on_gpu.upload(np.arange(1 << 20, dtype=np.float32))
    address, _ = tensor.__cuda_array_interface__["data"]
    theirs = library.from_dlpack(tensor)
    tensor.close()
    assert device.knows(address)
    assert float(library.download(theirs)[-1]) == (1 << 20) - 1
    del theirs
    gc.collect()
    assert not device.knows(address)


def test_pytorch_frees_what_we_give_back(on_gpu: Handle) -> None:
    torch = pytest.importorskip("torch")
    before = torch.cuda.memory_allocated()
    theirs = torch.zeros(LARGE, device="cuda")
    for share in (on_gpu.from_dlpack, on_gpu.from_cuda_array):
        ours = share(theirs)
        ours.close()
    ours = on_gpu.from_dlpack(theirs)
    del theirs
    assert torch.cuda.memory_allocated() > before
    ours.close()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("name", CUDA_DEVICES[1:])
def test_using_another_gpu_leaves_pytorchs_current_device_alone(name: str) -> None:
    before = torch.cuda.current_device()
    with Handle(name) as handle, handle.upload(np.arange(8, dtype=np.float32)) as x:
        ops.activation_forward(handle, RELU, 1.0, x, 0.0, x)
        x.numpy()
        assert torch.cuda.current_device() == before
    assert torch.cuda.current_device() == before
    assert torch.zeros(1, device="cuda").device.index == before
