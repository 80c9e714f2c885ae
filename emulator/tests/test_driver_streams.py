"""Order between streams, events, host functions, and what waits for what."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np

from emulator.tests.driver_api import Gate, Session, needs_driver, run_python, session

pytestmark = needs_driver

NOT_READY, INVALID_HANDLE, NOT_PERMITTED = 600, 400, 800


def test_a_stream_runs_in_order_and_says_when_it_is_done() -> None:
    with session() as s:
        stream, x = s.stream(), s.ones(4)
        gate = Gate(s.cuda, stream)
        for factor in (2, 3, 5):
            assert s.scale(x, factor, 4, stream) == 0
        assert s.cuda.code("cuStreamQuery", stream) == NOT_READY
        gate.open()
        s.cuda.cuStreamSynchronize(stream)
        assert s.cuda.code("cuStreamQuery", stream) == 0
        assert s.floats(x, 4) == [30.0] * 4


def test_streams_do_not_wait_for_each_other_but_for_events() -> None:
    with session() as s:
        cuda, first, second, third, event, x = s.cuda, s.stream(), s.stream(), s.stream(), s.event(), s.ones(1)
        gate = Gate(cuda, first)
        s.scale(x, 3, 1, first)
        cuda.cuEventRecord(event, first)
        cuda.cuStreamWaitEvent(second, event, 0)
        s.scale(x, 5, 1, second)
        cuda.cuStreamSynchronize(third)
        assert cuda.code("cuEventQuery", event) == NOT_READY
        assert cuda.code("cuStreamQuery", second) == NOT_READY
        gate.open()
        cuda.cuStreamSynchronize(second)
        assert cuda.code("cuEventQuery", event) == 0
        assert s.floats(x, 1) == [15.0]


def test_legacy_stream_waits_for_blocking_streams_alone() -> None:
    with session() as s:
        cuda, blocking, free = s.cuda, s.cuda.handle("cuStreamCreate", 0), s.stream()
        first, second = s.ones(1), s.ones(1)
        gate = Gate(cuda, free)
        cuda.cuStreamSynchronize(0)  # returns
        gate.open()
        gate = Gate(cuda, blocking)
        cuda.cuMemsetD8(first, 0, 4)  # in the legacy stream
        assert cuda.code("cuStreamQuery", 0) == NOT_READY
        later = cuda.handle("cuStreamCreate", 0)
        cuda.cuMemsetD8Async(second, 0, 4, later)
        assert cuda.code("cuStreamQuery", later) == NOT_READY  # behind the legacy stream
        gate.open()
        cuda.cuCtxSynchronize()
        assert cuda.code("cuStreamQuery", later) == 0


def test_events_take_the_time() -> None:
    with session() as s:
        cuda, stream, start, end = s.cuda, s.stream(), s.event(), s.event()
        milliseconds = ctypes.c_float()
        assert cuda.code("cuEventElapsedTime", ctypes.byref(milliseconds), start, end) == INVALID_HANDLE
        cuda.cuEventRecord(start, stream)
        gate = Gate(cuda, stream)
        cuda.cuEventRecord(end, stream)
        assert cuda.code("cuEventElapsedTime", ctypes.byref(milliseconds), start, end) == NOT_READY
        time.sleep(0.05)
        gate.open()
        cuda.cuEventSynchronize(end)
        cuda.cuEventElapsedTime(ctypes.byref(milliseconds), start, end)
        assert 40 < milliseconds.value < 5000
        untimed = cuda.handle("cuEventCreate", 2)
        cuda.cuEventRecord(untimed, stream)
        assert cuda.code("cuEventElapsedTime", ctypes.byref(milliseconds), start, untimed) == INVALID_HANDLE


def test_host_functions_must_not_call_the_driver() -> None:
    with session() as s:
        seen: list[int] = []
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(s.cuda.code("cuCtxSynchronize")))
        s.cuda.cuLaunchHostFunc(0, function, None)
        s.cuda.cuCtxSynchronize()
        assert seen == [NOT_PERMITTED]


def test_after_a_sticky_error_callbacks_run_and_host_functions_do_not() -> None:
    with session() as s:
        cuda, stream = s.cuda, s.stream()
        host: list[int] = []
        status: list[int] = []
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: host.append(1))
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
            lambda _stream, code, _data: status.append(code)
        )
        gate = Gate(cuda, stream)
        assert s.launch(s.function("broken"), stream=stream) == 0
        cuda.cuLaunchHostFunc(stream, function, None)
        cuda.cuStreamAddCallback(stream, callback, None, 0)
        gate.open()
        code = cuda.code("cuStreamSynchronize", stream)
        assert code == 719
        assert (host, status) == ([], [719])
        assert "this kernel always fails" in cuda.last_error()
        assert cuda.code("cuMemAlloc", ctypes.byref(ctypes.c_size_t()), 4) == 719
        with session() as other:  # a new context works
            assert other.floats(other.ones(2), 2) == [1.0, 1.0]
            cuda.cuCtxPopCurrent(None)
            cuda.cuCtxPushCurrent(other.context)


def test_work_of_another_context_is_refused() -> None:
    with session() as first, session() as second:
        stream = second.stream()
        x = first.ones(1)
        arguments = (ctypes.c_uint64(x), ctypes.c_float(1), ctypes.c_int(1))
        function = first.cuda.handle("cuModuleGetFunction", first.module, b"scale")
        assert first.launch(function, arguments, stream=stream) == INVALID_HANDLE
        first.cuda.cuCtxPopCurrent(None)
        event = first.event()
        assert first.cuda.code("cuEventRecord", event, stream) == INVALID_HANDLE
        first.cuda.cuCtxPushCurrent(second.context)


def test_destroying_a_stream_lets_its_work_end() -> None:
    with session() as s:
        stream, x = s.stream(), s.ones(1)
        gate = Gate(s.cuda, stream)
        s.scale(x, 2, 1, stream)
        event = s.event()
        s.cuda.cuEventRecord(event, stream)
        s.cuda.cuStreamDestroy(stream)
        assert s.cuda.code("cuStreamQuery", stream) == INVALID_HANDLE
        gate.open()
        s.cuda.cuEventSynchronize(event)
        assert s.floats(x, 1) == [2.0]


def test_what_waits_for_a_context_waits_for_the_work_of_destroyed_streams_too() -> None:
    with session() as s:
        stream, x, y = s.cuda.handle("cuStreamCreate", 0), s.ones(1), s.ones(1)
        gate = Gate(s.cuda, stream)
        s.scale(x, 2, 1, stream)
        s.cuda.cuStreamDestroy(stream)
        s.cuda.cuMemsetD8Async(y, 0, 4, 0)  # the legacy stream waits for what was a blocking stream
        assert s.cuda.code("cuStreamQuery", 0) == NOT_READY
        threading.Timer(0.2, gate.open).start()
        s.cuda.cuModuleUnload(s.module)  # which the kernel needs
        assert s.floats(x, 1) == [2.0]


def test_a_process_ends_with_everything_alive() -> None:
    done = run_python(
        """
        s = Session(0)
        stream, x = s.stream(), s.ones(1000)
        for _ in range(2000):
            s.scale(x, 1, 1000, stream)
        print("end")
        """
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_a_forked_child_is_told() -> None:
    done = run_python(
        """
        import os
        s = Session(0)
        pid = os.fork()
        if pid == 0:
            os._exit(s.cuda.code("cuCtxSynchronize"))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert done.stdout == "3\n", done.stderr


def test_threads_share_a_device() -> None:
    results: list[float] = []

    def work(index: int) -> None:
        s = Session(0)
        x, stream = s.upload(np.full(32, index, np.float32)), s.stream()
        for _ in range(10):
            s.scale(x, 2, 32, stream)
        s.cuda.cuStreamSynchronize(stream)
        results.append(s.floats(x, 32)[31] / index)
        s.close()

    threads = [threading.Thread(target=work, args=(index + 1,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1024.0] * 4
