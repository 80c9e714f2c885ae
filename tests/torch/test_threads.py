"""What a thread opened for PyTorch's tensors is given back when it ends."""

from __future__ import annotations

import threading

import pytest
import torch

from dnncore.errors import ClosedError
from dnncore.handle import Handle
from dnncore.torch import bridge
from tests.conftest import CUDA_DEVICES, DEVICES
from tests.cuda.test_context import run_python


def test_a_threads_handles_end_with_it() -> None:
    opened: list[Handle] = []

    def work() -> None:
        opened.append(bridge.current_handle(torch.device("cpu")))
        opened[0].check_owner()

    here = bridge.current_handle(torch.device("cpu"))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (theirs,) = opened
    assert theirs is not here
    theirs._thread = threading.get_ident()  # so that not the thread is what is refused
    with pytest.raises(ClosedError):
        theirs.check_owner()
    here.check_owner()


# In a process of its own: this one may have gRPC's threads, with which it must not fork.
FORK = """
import ctypes, os, threading
if os.environ.get("DNN_EMU_LIB"):
    ctypes.CDLL(os.environ["DNN_EMU_LIB"])
import torch
from dnncore.handle import Handle
from dnncore.torch import bridge
opened, ready, end = [], threading.Event(), threading.Event()
def work():
    opened.append(Handle({name!r}))
    bridge._thread.opened[0, None] = bridge.Door(torch.device({name!r}), opened[0])
    ready.set()
    end.wait(60)
thread = threading.Thread(target=work)
thread.start()
assert ready.wait(60)
child = os.fork()
if child == 0:
    os._exit(1 if opened[0]._closed else 0)
_, status = os.waitpid(child, 0)
end.set()
thread.join()
print(os.waitstatus_to_exitcode(status), opened[0]._closed)
"""


@pytest.mark.parametrize("name", DEVICES)
def test_a_forked_child_leaves_the_parents_threads_what_they_have(name: str) -> None:
    run = run_python(FORK.format(name=name), PYTHONWARNINGS="ignore")
    assert (run.returncode, run.stdout) == (0, "0 True\n"), run.stderr


@pytest.mark.parametrize("name", [*CUDA_DEVICES[:1]])
def test_a_threads_device_memory_ends_with_it(name: str) -> None:
    opened: list[Handle] = []

    def work() -> None:
        own = Handle(name)
        bridge._thread.opened[0, None] = bridge.Door(torch.device(name), own)
        own._workspace.reserve(4096)
        users = own.device._context._users  # type: ignore[attr-defined]
        assert {own._workspace._memory, own.stream} <= users
        kept.extend([own._workspace._memory, own.stream])
        opened.append(own)

    kept: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (theirs,) = opened
    assert len(kept) == 2
    assert not theirs.device._context._users & set(kept)  # type: ignore[attr-defined]
    assert theirs.workspace_bytes == 0
