"""Injected faults: what EMU_FAULTS and emu_faults bring about, each in the form in which a GPU shows it."""

from __future__ import annotations

import ctypes
import time

import pytest

from emulator.tests.driver_api import Cuda, needs_driver, run_python, session

pytestmark = needs_driver

INVALID_VALUE, OUT_OF_MEMORY, DEINITIALIZED, NOT_READY = 1, 2, 4, 600


def test_out_of_memory_once_and_from_then_on() -> None:
    with session() as s:
        address = ctypes.c_size_t()

        def allocations() -> list[int]:
            return [s.cuda.code("cuMemAlloc", ctypes.byref(address), 4) for _ in range(4)]

        assert s.cuda.faults("cuda:0 alloc=2 oom") == 0
        assert allocations() == [0, OUT_OF_MEMORY, 0, 0]
        assert s.cuda.faults("cuda:0 alloc=3 oom+") == 0
        assert allocations() == [0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY]
        assert s.cuda.faults("") == 0
        assert allocations() == [0] * 4


def test_a_launch_for_which_there_is_no_memory_does_nothing_and_the_context_goes_on() -> None:
    with session() as s:
        x = s.ones(1)
        assert s.cuda.faults("cuda:0 enqueue=2 oom") == 0
        assert [s.scale(x, 2, 1) for _ in range(3)] == [0, OUT_OF_MEMORY, 0]
        assert s.floats(x, 1) == [4.0]
        assert s.cuda.faults("cuda:0 enqueue=2 oom+") == 0
        assert [s.scale(x, 2, 1) for _ in range(4)] == [0, OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY]
        assert s.floats(x, 1) == [8.0]


@pytest.mark.parametrize(("effect", "code"), [("sticky", 700), ("sticky=719", 719)])
def test_sticky_error(effect: str, code: int) -> None:
    with session() as s:
        x = s.ones(1)
        assert s.cuda.faults(f"cuda:0 launch=2 {effect}") == 0
        assert s.scale(x, 2, 1) == 0
        assert s.cuda.code("cuCtxSynchronize") == 0
        assert s.scale(x, 2, 1) == 0
        assert s.cuda.code("cuCtxSynchronize") == code
        assert s.scale(x, 2, 1) == code
        assert "planned fault" in s.cuda.last_error()
    with session() as s:
        assert s.floats(s.ones(1), 1) == [1.0]


def test_hang_for_a_while() -> None:
    with session() as s:
        stream, other, x = s.stream(), s.stream(), s.ones(1)
        assert s.cuda.faults("cuda:0 launch=1 hang=300ms") == 0
        begin = time.monotonic()
        s.scale(x, 2, 1, stream)
        time.sleep(0.05)
        assert s.cuda.code("cuStreamQuery", stream) == NOT_READY
        assert s.cuda.code("cuStreamSynchronize", other) == 0
        assert time.monotonic() - begin < 0.25
        assert s.cuda.code("cuStreamSynchronize", stream) == 0
        assert time.monotonic() - begin > 0.25
        assert s.floats(x, 1) == [2.0]


def test_hang_ends_with_its_context() -> None:
    with session() as s:
        stream, x = s.stream(), s.ones(1)
        assert s.cuda.faults("cuda:0 launch=1 hang") == 0
        s.scale(x, 2, 1, stream)
        time.sleep(0.1)
        assert s.cuda.code("cuStreamQuery", stream) == NOT_READY
        contexts = s.cuda.counter("contexts")
        s.close()
        assert s.cuda.counter("contexts") == contexts - 1


def test_process_ends_despite_a_hang() -> None:
    done = run_python(
        """
        class Late:
            def __init__(self, s): self.s = s; self.x = s.ones(1)
            def __del__(self): print("free:", self.s.cuda.code("cuMemFree", self.x), flush=True)
        s = Session(0)
        late = Late(s)
        stream = s.stream()
        s.scale(late.x, 2, 1, stream)
        time.sleep(0.1)
        print("query:", s.cuda.code("cuStreamQuery", stream))
        sys.modules["late"] = late  # freed when the interpreter takes its modules apart
        """,
        EMU_FAULTS="cuda:0 launch=1 hang",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[0] == "query: 600"
    assert lines[1] in (f"free: {DEINITIALIZED}", "")  # "": the interpreter did not get to it


def test_slow_device() -> None:
    with session() as s:
        x = s.ones(1)
        s.scale(x, 1, 1)
        s.cuda.cuCtxSynchronize()
        assert s.cuda.faults("cuda:0 launch_us=20000") == 0
        begin = time.monotonic()
        for _ in range(5):
            s.scale(x, 1, 1)
        s.cuda.cuCtxSynchronize()
        assert time.monotonic() - begin > 0.1


def test_a_device_disappears_for_good() -> None:
    done = run_python(
        """
        s = Session(1)
        x, stream = s.ones(1), s.stream()
        print([s.scale(x, 1, 1, stream), s.scale(x, 1, 1, stream)])
        codes = [s.cuda.code("cuStreamSynchronize", stream), s.cuda.code("cuMemFree", x), s.cuda.code("cuCtxSynchronize")]
        codes += [s.cuda.code("cuCtxDestroy", s.context), s.cuda.code("cuCtxCreate", ctypes.byref(ctypes.c_size_t()), 0, 1)]
        codes += [s.cuda.code("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_size_t()), 1)]
        print(codes, s.cuda.faults(""), s.cuda.code("cuCtxCreate", ctypes.byref(ctypes.c_size_t()), 0, 1))
        other = Session(0)
        print(other.floats(other.ones(1), 1))
        """,
        EMU_FAULTS="cuda:1 launch=2 disappear", EMU_DEVICES="2",
    )  # fmt: skip
    assert done.stdout.split("\n")[1:3] == ["[999, 999, 999, 999, 46, 46] 0 46", "[1.0]"], done.stderr


def test_a_device_disappears_after_a_time_also_under_a_hang() -> None:
    done = run_python(
        """
        s = Session(0)
        x, stream = s.ones(1), s.stream()
        begin = time.monotonic()  # before the half second, which does not wait for a machine that has other work
        s.cuda.faults("cuda:0 launch=1 hang, cuda:0 after=0.5s disappear")
        s.scale(x, 1, 1, stream)
        print(s.cuda.code("cuStreamSynchronize", stream), 0.5 <= time.monotonic() - begin < 10)
        """
    )
    assert done.stdout == "999 True\n", done.stderr


@pytest.mark.parametrize(
    "plan",
    [
        "nonsense", "cuda:99 alloc=1 oom", "cuda:0", "cuda:0 alloc=0 oom", "cuda:0 alloc=x oom", "cuda:0 oom",
        "cuda:0 launch=1", "cuda:0 launch=1 oom",
        "cuda:0 enqueue=0 oom", "cuda:0 enqueue=1 hang", "cuda:0 launch=1 hang sticky", "cuda:0 speed=0", "cuda:0 speed=fast",
        "cuda:0 launch=1 hang=3", "cuda:0 after=2 disappear", "cuda:0 alloc=1 oom extra", "cuda:0 alloc=1 oom,,",
    ],
)  # fmt: skip
def test_malformed_plans_are_refused(plan: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert Cuda().faults(plan) == INVALID_VALUE
    assert "EMU_FAULTS" in capfd.readouterr().err


def test_malformed_plan_in_the_environment() -> None:
    done = run_python("Cuda()", EMU_FAULTS="cuda:0 launch=often hang")
    assert done.returncode == 1
    assert "cuInit returned 1" in done.stderr
    assert 'EMU_FAULTS: "cuda:0 launch=often hang": launch needs a number' in done.stderr
