from __future__ import annotations

import threading

import numpy as np
import pytest

from dnncore import RELU, Handle, Preference, TensorDescriptor, devices, ops
from dnncore.errors import BadParamError, ClosedError, DeviceNotFoundError, NotSupportedError, OwnerError
from dnncore.problems import ActivationForwardProblem


def test_a_foreign_thread_is_refused_by_name(handle: Handle) -> None:
    errors: list[BaseException] = []

    def use() -> None:
        try:
            handle.synchronize()
        except OwnerError as error:
            errors.append(error)

    thread = threading.Thread(target=use, name="stranger")
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert "'stranger'" in str(errors[0])


def test_a_closed_handle_and_its_tensors_are_refused(handle: Handle) -> None:
    with Handle(handle.info.name) as own:
        tensor = own.upload(np.ones(3, np.float32))
    own.close()
    with pytest.raises(ClosedError):
        own.synchronize()
    with pytest.raises(ClosedError):
        tensor.numpy()


def test_tensors_of_another_handle_are_refused(handle: Handle) -> None:
    with Handle(handle.info.name) as other, handle.upload(np.ones(3, np.float32)) as x:
        y = other.tensor((3,))
        with pytest.raises(BadParamError, match="another handle"):
            ops.activation_forward(handle, RELU, 1.0, x, 0.0, y)


def test_assign_keeps_the_gaps_of_a_strided_tensor(handle: Handle) -> None:
    block = handle.upload(np.arange(10, dtype=np.float32))
    view = block.view(TensorDescriptor(block.descriptor.dtype, (2, 2), (5, 2)), 1)
    view.assign(np.array([[-1, -2], [-3, -4]], np.float32))
    assert block.numpy().tolist() == [0, -1, 2, -2, 4, 5, -3, 7, -4, 9]
    assert view.numpy().tolist() == [[-1, -2], [-3, -4]]
    block.close()


def test_a_view_beyond_its_memory_is_refused(handle: Handle) -> None:
    with handle.tensor((4,)) as tensor, pytest.raises(BadParamError, match="ends at 20"):
        tensor.view(tensor.descriptor, offset_elements=1)


def test_a_view_that_is_not_aligned_is_refused(handle: Handle) -> None:
    with handle.tensor((4,)) as tensor, pytest.raises(BadParamError, match="multiple of 8 bytes"):
        tensor.view(TensorDescriptor.packed((1,), "float64"), offset_elements=1)


def test_too_few_tensors_for_a_plan_are_counted(handle: Handle) -> None:
    with handle.tensor((3,)) as x:
        plan = handle.plan(ActivationForwardProblem(x.descriptor, x.descriptor, RELU))
        with pytest.raises(BadParamError, match="1 inputs and 0 outputs are given, the plan takes 1 and 1"):
            handle.run(plan, 1.0, [x], 0.0, [])


def test_a_host_array_with_gaps_is_refused_for_copies(handle: Handle) -> None:
    rows = np.zeros((4, 4), np.float32)[::2]
    with handle.tensor((2, 4)) as tensor:
        with pytest.raises(BadParamError, match="not contiguous"):
            handle.device.copy_to_host(handle.stream, rows, tensor.address)
        with pytest.raises(BadParamError, match="not contiguous"):
            handle.device.copy_to_device(handle.stream, tensor.address, rows)


def test_assign_refuses_another_shape_or_dtype(handle: Handle) -> None:
    with handle.tensor((4,)) as tensor:
        with pytest.raises(BadParamError, match=r"float32\[5\]"):
            tensor.assign(np.zeros(5, np.float32))
        with pytest.raises(BadParamError, match=r"float64\[4\]"):
            tensor.assign(np.zeros(4))


def test_a_recorded_program_runs_again_on_new_contents(handle: Handle) -> None:
    x, y = handle.upload(np.array([-1, 2], np.float32)), handle.upload(np.array([7, 7], np.float32))
    with handle.record() as program:
        ops.activation_forward(handle, RELU, 1.0, x, 0.0, y)
        ops.add(handle, 10.0, x, 1.0, y)
    assert y.numpy().tolist() == [7, 7]
    program.run()
    assert y.numpy().tolist() == [-10, 22]
    x.assign(np.array([3, -4], np.float32))
    program.run()
    assert y.numpy().tolist() == [33, -40]
    x.close()
    y.close()


def test_an_unknown_algorithm_is_refused_with_the_names_there_are(handle: Handle) -> None:
    t = TensorDescriptor.packed((3,))
    problem = ActivationForwardProblem(t, t, RELU)
    with pytest.raises(NotSupportedError, match="no algorithm 'magic' among"):
        handle.plan(problem, algorithm="magic")


def test_a_workspace_limit_is_never_exceeded() -> None:
    with pytest.raises(BadParamError):
        Preference(-1)
    assert Preference.NO_WORKSPACE.refuses(1) == "needs 1 B of workspace, the limit is 0 B"
    assert Preference.NO_WORKSPACE.refuses(0) is None
    assert Preference.PREFER_FASTEST.refuses(1 << 60) is None


@pytest.mark.parametrize("name", ["gpu", "cuda", "cuda:-1", "cuda:00", "CPU", "", "cuda:1x"])
def test_names_that_are_no_devices_are_refused(name: str) -> None:
    with pytest.raises(BadParamError, match="is not a device name"):
        devices.resolve(name)


@pytest.mark.cuda
def test_a_device_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(DeviceNotFoundError, match=r"cuda:977 does not exist; CUDA devices of this machine: cuda:0"):
        devices.resolve("cuda:977")


def test_the_same_device_may_be_asked_for_twice() -> None:
    assert devices.resolve("cpu,cpu") == ("cpu", "cpu")
