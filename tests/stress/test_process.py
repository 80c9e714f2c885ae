"""How a process ends with live objects, and what a forked child may do."""

from __future__ import annotations

import pytest

from tests.conftest import CUDA_DEVICES
from tests.cuda.test_context import run_python

PRELUDE = """
import ctypes, os, sys, threading
import numpy as np
if os.environ.get("DNN_EMU_LIB"):
    ctypes.CDLL(os.environ["DNN_EMU_LIB"])
from dnncore import RELU, Handle, ops
from dnncore.errors import DeviceFaultError
NAME = {name!r}
"""

LIVE = """
from tests.unit.foreign import Array, Device, open_capsule
kept = []
device = None if NAME == "cpu" else Device(0)
def work():
    handle = Handle(NAME)
    other = Handle(NAME, stream=device.create_stream() if device else None)
    x = handle.upload(np.arange(16, dtype=np.float32))
    ops.activation_forward(handle, RELU, 1.0, x, 0.0, x)
    event = handle.record_event()
    other.wait(event)
    foreign = Array(np.ones(16, np.float32), device)
    y = other.from_dlpack(foreign)
    z = other.from_dlpack(x)
    ops.add(other, 1.0, y, 1.0, z)
    capsule, taken = x.__dlpack__(max_version=(1, 0)), open_capsule(x.__dlpack__())
    more = handle.device.host_buffer(64), handle.plan
    closed = handle.upload(np.arange(16, dtype=np.float32))
    held = open_capsule(closed.__dlpack__())
    closed.close()
    kept.append((handle, other, x, event, foreign, y, z, capsule, taken, more, held))
    if device is None:
        import torch
        kept.append((np.from_dlpack(x), torch.from_dlpack(x)))
"""

END = {
    "main thread": "work()\n",
    "worker threads": """
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
work()
""",
    "cycle": "work()\nkept.append(kept)\ndel work, kept\n",
    "error": "work()\ntry:\n    raise SystemExit(0)\nfinally:\n    work()\n",
}


@pytest.mark.parametrize("end", END)
@pytest.mark.parametrize("name", ["cpu", *CUDA_DEVICES[:1]])
def test_it_ends_quietly_with_live_objects(name: str, end: str) -> None:
    run = run_python(PRELUDE.format(name=name) + LIVE + END[end])
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.cuda
def test_a_forked_child_is_told_what_it_may_not_do_and_ends_quietly() -> None:
    run = run_python(
        PRELUDE.format(name="cuda:0")
        + """
from tests.unit.foreign import open_capsule
handle = Handle(NAME)
x = handle.upload(np.arange(16, dtype=np.float32))
ops.activation_forward(handle, RELU, 1.0, x, 0.0, x)
buffer, event = handle.device.host_buffer(64), handle.record_event()
closed = handle.tensor((4,))
held = open_capsule(closed.__dlpack__())
closed.close()
child = os.fork()
if child == 0:
    for use in (
        lambda: Handle(NAME), lambda: handle.tensor((4,)), x.numpy, handle.synchronize, event.synchronize, handle.record_event,
        lambda: ops.activation_forward(handle, RELU, 1.0, x, 0.0, x),
    ):
        try:
            use()
        except DeviceFaultError as error:
            assert "forked" in str(error) and "spawn" in str(error), error
            print("refused")
    held.delete()
    del buffer, event
    with Handle("cpu") as cpu:
        print(cpu.upload(np.ones(2, np.float32)).numpy())
    sys.exit(0)
print("child ended with", os.waitpid(child, 0)[1])
print(x.numpy()[-1])
""",
        PYTHONWARNINGS="ignore",
    )
    assert run.stdout.split("\n") == [*["refused"] * 7, "[1. 1.]", "child ended with 0", "15.0", ""], run.stderr
    assert (run.returncode, run.stderr) == (0, "")
