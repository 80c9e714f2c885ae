from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from dnncore import RELU, ConvolutionDescriptor, Handle, Preference, TensorDescriptor, devices, ops
from dnncore.backend import Memory, Offer
from dnncore.errors import (
    BadParamError,
    ClosedError,
    DeviceError,
    DeviceNotFoundError,
    NotSupportedError,
    OwnerError,
)
from dnncore.figures import H200
from dnncore.plan import rank
from dnncore.problems import ActivationForwardProblem, ConvolutionProblem, Direction
from dnncore.program import CapturedProgram
from dnncore.tensor import Tensor
from tests.conftest import CUDA_DEVICES
from tests.unit.foreign import Device


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


def test_what_a_thread_has_made_is_run_by_the_one_that_adopts_it(handle: Handle) -> None:
    made: list[tuple[Handle, Tensor, CapturedProgram]] = []

    def prepare() -> None:
        own = Handle(handle.info.name)
        x = own.upload(np.array([-1.0, 2.0], np.float32))
        with own.record() as program:
            ops.activation_forward(own, RELU, 1.0, x, 0.0, x)
        captured = program.capture()
        made.append((own, x, captured))

    thread = threading.Thread(target=prepare)
    thread.start()
    thread.join()
    ((own, x, captured),) = made
    for use in (own.synchronize, captured.run, x.numpy):
        with pytest.raises(OwnerError):
            use()
    own.adopt()
    captured.run()
    assert x.numpy().tolist() == [0.0, 2.0]
    own.close()
    with pytest.raises(ClosedError):
        own.adopt()


def test_a_tensor_that_a_foreign_thread_could_not_close_is_whole(handle: Handle) -> None:
    with handle.upload(np.ones(3, np.float32)) as tensor:
        refused: list[bool] = []

        def close() -> None:
            with pytest.raises(OwnerError):
                tensor.close()
            refused.append(True)

        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        assert refused == [True]
        assert tensor.numpy().tolist() == [1, 1, 1]


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


def test_a_views_offset_is_a_whole_number_that_does_not_wrap(handle: Handle) -> None:
    with handle.tensor((4,)) as tensor:
        one = TensorDescriptor.packed((1,))
        assert tensor.view(one, np.int64(3)).pointer == tensor.pointer + 12  # type: ignore[arg-type]
        with pytest.raises(BadParamError, match="the memory has 16 bytes"):
            tensor.view(one, np.int64(2**62))  # type: ignore[arg-type]
        with pytest.raises(BadParamError, match=r"offset_elements 1\.5 must be an integer"):
            tensor.view(one, 1.5)  # type: ignore[arg-type]


def test_numpy_takes_a_copy_of_a_tensor(handle: Handle) -> None:
    with handle.upload(np.array([[1, 2], [3, 4]], np.float32)) as x:
        array = np.asarray(x.view(TensorDescriptor(x.descriptor.dtype, (2, 2), (1, 2))))
        array64 = np.array(x, np.float64)
        ops.set_tensor(handle, 0.0, x)
        assert (str(array.dtype), array.tolist()) == ("float32", [[1, 3], [2, 4]])
        assert (str(array64.dtype), array64.tolist()) == ("float64", [[1, 2], [3, 4]])
        with pytest.raises(ValueError, match="without a copy"):
            x.__array__(copy=False)


def test_copies_from_and_to_the_host_are_no_part_of_a_program(handle: Handle) -> None:
    one = np.ones(3, np.float32)
    with handle.upload(one) as x:
        with handle.record():
            for copy in (x.numpy, lambda: x.assign(2 * one), lambda: np.asarray(x), lambda: handle.upload(one)):
                with pytest.raises(BadParamError, match="no part of a recorded program"):
                    copy()
        assert x.numpy().tolist() == [1, 1, 1]


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


def test_a_plan_of_another_handle_is_refused(handle: Handle) -> None:
    with Handle(handle.info.name) as other, handle.upload(np.ones(3, np.float32)) as x:
        plan = other.plan(ActivationForwardProblem(x.descriptor, x.descriptor, RELU))
        with pytest.raises(
            BadParamError, match=rf"planned by another handle, on {handle.info.name}; plan\(plan.problem\)"
        ):
            handle.run(plan, 1.0, [x], 0.0, [x])


@pytest.fixture
def convolution() -> ConvolutionProblem:
    """A problem that several algorithms solve, those by transforms, whose launches take the emulator a second, not among them."""
    x, w, y = (TensorDescriptor.packed(shape) for shape in ((1, 3, 5, 6), (4, 3, 3, 3), (1, 4, 2, 2)))
    return ConvolutionProblem(Direction.FORWARD, x, w, y, ConvolutionDescriptor.make(2, stride=2))


class TestFind:
    def test_what_can_be_used_comes_first_and_is_what_plan_takes(
        self, handle: Handle, convolution: ConvolutionProblem
    ) -> None:
        ranked = handle.get_algorithms(convolution, preference=Preference.NO_WORKSPACE)
        usable = [algorithm for algorithm in ranked if algorithm.status is None]
        assert ranked[: len(usable)] == usable
        assert usable[0].name == handle.plan(convolution, preference=Preference.NO_WORKSPACE).algorithm
        assert all(algorithm.workspace_bytes == 0 for algorithm in usable)
        assert {a.name for a in ranked} == {a.name for a in handle.device.algorithms(convolution)}
        assert all(algorithm.time_ms is None for algorithm in ranked)

    def test_every_usable_algorithm_is_timed_and_the_fastest_is_first(
        self, handle: Handle, convolution: ConvolutionProblem
    ) -> None:
        found = handle.find_algorithms(convolution)
        usable = [a.name for a in handle.get_algorithms(convolution) if a.status is None]
        timed = [a for a in found if a.time_ms is not None]
        assert sorted(a.name for a in timed) == sorted(usable)
        assert [a.time_ms for a in timed] == sorted(a.time_ms or 0 for a in timed)
        assert all(a.status is None and a.time_ms is not None and a.time_ms > 0 for a in timed)
        assert found[: len(timed)] == timed
        assert handle.plan(convolution, algorithm=timed[0].name).workspace_bytes == timed[0].workspace_bytes

    def test_scratch_memory_is_given_back(
        self, handle: Handle, convolution: ConvolutionProblem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Handle(handle.info.name) as own:
            allocated: list[Memory] = []

            def allocate(nbytes: int, real: Callable[[int], Memory] = own.device.allocate) -> Memory:
                allocated.append(real(nbytes))
                return allocated[-1]

            monkeypatch.setattr(own.device, "allocate", allocate)
            own.find_algorithms(convolution)
            assert allocated
            for memory in allocated:
                with pytest.raises(ClosedError):
                    memory.at(0)

    def test_tensors_of_the_caller_are_used(self, handle: Handle) -> None:
        with handle.upload(np.array([-1, 2], np.float32)) as x, handle.upload(np.array([7, 7], np.float32)) as y:
            problem = ActivationForwardProblem(x.descriptor, y.descriptor, RELU)
            found = handle.find_algorithms(problem, [x], [y])
            assert found[0].time_ms is not None
            assert y.numpy().tolist() == [0, 2]
            with pytest.raises(BadParamError, match="1 inputs and 0 outputs are given"):
                handle.find_algorithms(problem, [x])

    def test_an_algorithm_that_fails_is_listed_with_its_error(
        self, handle: Handle, convolution: ConvolutionProblem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Handle(handle.info.name) as own:
            figures = own.device.figures
            victim = next(
                a for a in own.device.algorithms(convolution) if not isinstance(a.offer(convolution, figures), str)
            )

            def fail() -> None:
                raise DeviceError("the launch was refused")

            offer = Offer(1e-9, fail)
            monkeypatch.setattr(
                type(victim), "offer", lambda self, *args: offer if self is victim else "another instance"
            )
            found = own.find_algorithms(convolution)
            failed = next(a for a in found if a.name == victim.name)
            assert (failed.status, failed.time_ms) == ("DeviceError: the launch was refused", None)

    def test_a_handle_may_choose_by_timing(self, handle: Handle, convolution: ConvolutionProblem) -> None:
        with Handle(handle.info.name, autotune=True) as own:
            plan = own.plan(convolution)
            assert plan.algorithm in {a.name for a in own.get_algorithms(convolution) if a.status is None}
            assert own.plan(convolution) is plan

    def test_what_is_not_deterministic_is_out_where_that_is_demanded(
        self, handle: Handle, convolution: ConvolutionProblem
    ) -> None:
        class Careless:
            name = "careless"

            def offer(self, problem: object, figures: object) -> Offer:
                return Offer(1e-6, lambda: None, deterministic=False)

        class Device:
            figures = H200

            def algorithms(self, problem: object) -> tuple[object, ...]:
                return (Careless(),)

        (allowed,) = rank(convolution, Device(), Preference())  # type: ignore[arg-type]
        (refused,) = rank(convolution, Device(), Preference(deterministic=True))  # type: ignore[arg-type]
        assert (allowed.status, refused.status) == (None, "is not deterministic, which the preference demands")
        assert handle.plan(convolution, preference=Preference(deterministic=True)).deterministic

    def test_another_preference_holds_in_a_block(self, handle: Handle, convolution: ConvolutionProblem) -> None:
        usual = handle.plan(convolution)
        with handle.preferring(Preference.NO_WORKSPACE):
            assert handle.preference is Preference.NO_WORKSPACE
            assert handle.plan(convolution).workspace_bytes == 0
        assert handle.preference is Preference.PREFER_FASTEST
        assert handle.plan(convolution) is usual


class TestEvents:
    def test_the_time_between_two_is_the_works(self, handle: Handle) -> None:
        with handle.tensor((64, 64)) as x:
            x.assign(np.ones(x.shape, np.float32))
            start = handle.record_event()
            ops.activation_forward(handle, RELU, 1.0, x, 0.0, x)
            end = handle.record_event()
            assert end.elapsed_ms(start) > 0
            assert end.elapsed_ms(end) == 0
            assert start.query()
            end.synchronize()

    def test_an_event_may_be_waited_for_in_another_thread(self, handle: Handle) -> None:
        with handle.upload(np.arange(4, dtype=np.float32)) as x:
            ops.activation_forward(handle, RELU, 2.0, x, 0.0, x)
            event = handle.record_event()
            seen: list[bool] = []

            def read() -> None:
                with Handle(handle.info.name) as other:
                    other.wait(event)
                    event.synchronize()
                    seen.append(event.query())

            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
            assert seen == [True]
            assert x.numpy().tolist() == [0, 2, 4, 6]

    @pytest.mark.parametrize("name", [*CUDA_DEVICES[:2]])
    def test_a_stream_stands_still_until_the_event_has_passed(self, name: str) -> None:
        gpu = Device(0)
        with Handle("cuda:0") as first, Handle(name) as second:
            stream = first.stream.handle
            assert stream is not None
            with gpu.blocked(stream) as gate:
                event = first.record_event()
                second.wait(event)
                after = second.record_event()
                assert not event.query()
                assert not after.query()
                gate.set()
                second.synchronize()
                assert event.query()
                assert after.query()

    @pytest.mark.cuda
    def test_events_of_different_devices_have_no_time_between_them(self, handle: Handle) -> None:
        with Handle("cpu") as cpu, Handle(CUDA_DEVICES[-1]) as gpu:
            here, there = cpu.record_event(), gpu.record_event()
            for one, other in ((here, there), (there, here)):
                with pytest.raises(BadParamError, match="not of one device"):
                    one.elapsed_ms(other)
            with pytest.raises(BadParamError, match="of another backend"):
                cpu.wait(there)
            with pytest.raises(BadParamError, match="of another backend"):
                gpu.wait(here)

    def test_they_are_no_part_of_a_program(self, handle: Handle) -> None:
        event = handle.record_event()
        with handle.record():
            with pytest.raises(BadParamError, match="no part of a recorded program"):
                handle.record_event()
            with pytest.raises(BadParamError, match="no part of a recorded program"):
                handle.wait(event)


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
