"""A handle's stream: set, exchanged, and given back by whoever is left."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dnncore import RELU, Handle, ops
from dnncore.errors import BadParamError, ClosedError
from tests.conftest import CUDA_DEVICES
from tests.unit.foreign import Device


def test_a_stream_can_be_exchanged_but_not_assigned(handle: Handle) -> None:
    with Handle(handle.info.name) as own, own.upload(np.array([-1, 2], np.float32)) as x:
        first = own.stream
        ops.activation_forward(own, RELU, 3.0, x, 0.0, x)
        own.set_stream(None)
        assert own.stream is not first
        ops.add(own, 1.0, x, 1.0, x)
        assert x.numpy().tolist() == [0, 12]
        with pytest.raises(AttributeError):
            own.stream = first  # type: ignore[misc]


def test_a_stream_is_not_exchanged_in_a_recording(handle: Handle) -> None:
    with Handle(handle.info.name) as own, own.record(), pytest.raises(BadParamError, match="a change of stream"):
        own.set_stream(None)


def test_a_recorded_program_runs_on_the_stream_of_the_moment(handle: Handle) -> None:
    with Handle(handle.info.name) as own, own.upload(np.array([-1, 2], np.float32)) as x:
        with own.record() as program:
            ops.activation_forward(own, RELU, 3.0, x, 0.0, x)
        own.set_stream(None)
        program.run()
        assert x.numpy().tolist() == [0, 6]


def test_the_cpu_has_no_streams_to_take() -> None:
    with Handle("cpu") as own:
        before = own.stream
        with pytest.raises(BadParamError, match="which has no streams"):
            own.set_stream(1)
        assert own.stream is before


@pytest.mark.parametrize("name", [*CUDA_DEVICES[:1]])
class TestOnCuda:
    def test_a_stream_of_its_own_is_closed_when_it_is_exchanged(self, name: str) -> None:
        with Handle(name) as own:
            first = own.stream
            own.set_stream(None)
            with pytest.raises(ClosedError):
                _ = first.handle

    @pytest.mark.parametrize("ours", [True, False])
    def test_the_new_stream_waits_for_the_work_of_the_old_and_the_host_does_not(self, name: str, *, ours: bool) -> None:
        gpu = Device(0)
        stream = None if ours else gpu.create_stream()
        with Handle(name, stream=stream) as own, own.upload(np.array([1, 2], np.float32)) as x:
            ops.add(own, 1.0, x, 1.0, x)  # the kernel is loaded before anything stands still
            own.synchronize()
            gate = gpu.create_stream()
            with gpu.blocked(gate) as opening, Handle(name, stream=gate) as behind:
                own.wait(behind.record_event())
                ops.add(own, 1.0, x, 1.0, x)
                own.set_stream(None)
                ops.add(own, 1.0, x, 1.0, x)
                event = own.record_event()
                assert not event.query()
                opening.set()
                event.synchronize()
            gpu.destroy_stream(gate)
            assert x.numpy().tolist() == [8, 16]
        if stream is not None:
            gpu.destroy_stream(stream)

    def test_a_stream_of_another_library_is_not_closed(self, name: str) -> None:
        gpu = Device(0)
        one, other = gpu.create_stream(), gpu.create_stream()
        with Handle(name, stream=one) as own:
            own.set_stream(other)
            assert own.stream.handle == other
            gpu.synchronize(one)
            own.set_stream(other)  # a stream need not wait for itself
            assert own.stream.handle == other
        for stream in (one, other):
            gpu.destroy_stream(stream)

    def test_the_workspace_grows_only_after_the_new_streams_work(self, name: str) -> None:
        with Handle(name) as own:
            own._workspace.reserve(256)
            own.set_stream(None)
            assert own._workspace._stream is own.stream
            own._workspace.reserve(1 << 16)
            assert own.workspace_bytes == 1 << 16

    def test_an_abandoned_handle_gives_its_memory_back_from_another_thread(self, name: str) -> None:
        opened: list[Handle] = []

        def work() -> None:
            own = Handle(name)
            own._workspace.reserve(4096)
            own.upload(np.ones(64, np.float32))
            opened.append(own)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        (own,) = opened
        users = own.device._context._users  # type: ignore[attr-defined]
        mine = [*own._belongings.memory.values(), own._workspace._memory, own._stream]
        assert all(one in users for one in mine)
        own.abandon()
        own.abandon()
        assert not any(one in users for one in mine)


def test_an_abandoned_handle_is_closed(handle: Handle) -> None:
    own = Handle(handle.info.name)
    x = own.tensor((3,))
    own.abandon()
    with pytest.raises(ClosedError):
        x.numpy()
    own.close()
