"""An engine process: python -m dnnserve.engine.child DEVICE SOCKET, started by `process.py` with this descriptor.

It opens a device by the factory that it is told of and does what the runner at the other end of the socket asks for, one thing
after another, until that end is closed. Whatever ends this process ends its device's context with it, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore import devices
from dnncore.errors import DeviceFaultError, DnncoreError
from dnnserve.engine.host import Buffers, Host, Instance
from dnnserve.engine.messages import (
    Assignment,
    BeginLoad,
    Done,
    Failed,
    Load,
    Loaded,
    Loading,
    Look,
    Opened,
    Run,
    Unload,
)
from dnnserve.envelope import ModelKey
from dnnserve.logs import configure_logging
from dnnserve.processes.child import begin, told
from dnnserve.processes.link import Link
from dnnserve.processes.parcel import unpack
from dnnserve.processes.shared_buffer import SharedBuffer

__all__ = ["main", "serve"]

_log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S = 1e-4  # the thread that runs batches must not wait 5 ms for one that loads a model


@dataclass(frozen=True, slots=True)
class _Model:
    """An instance, and what its runner sees of it. Immutable."""

    instance: Instance
    outputs: np.ndarray


def main(device: str, channel: str) -> int:
    """Serve until the runner closes its end; the exit status."""
    link = begin(channel)
    devices.limit_cpu_threads(1)
    with contextlib.suppress(DnncoreError):  # which comes again, to be told, when the device is opened
        devices.resolve(device)  # begins to use the driver, which takes a while, before there is anything to load
    assignment: Assignment | None = told(link)
    if assignment is not None:
        configure_logging(assignment.log_format, assignment.log_level)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        serve(device, assignment, link)
    return 0


def serve(device: str, assignment: Assignment, link: Link) -> None:
    """Open the device and answer what is asked, until the other end is closed or the device is lost."""
    host: Host | None = None
    try:
        host = assignment.open_host(device)
        link.send(Opened())
        desk = _Desk(host, assignment.models, link)
        while (received := link.receive()) is not None:
            question, fds = received
            try:
                desk.answer(question, fds)
            except DeviceFaultError:
                raise
            except OSError:
                return  # the runner has gone
            except Exception as error:  # noqa: BLE001 - whatever a batch does, the next one gets its chance
                _log.exception("%s failed on %s", type(question).__name__.lower(), device)
                link.send(_failure(error))
    except Exception as error:  # noqa: BLE001 - the runner is told, and this process ends
        if not isinstance(error, OSError):
            link.send(_failure(error))
    finally:
        if host is not None:
            host.close()


class _Desk:
    """Answers questions about models. Owned by one thread.

    Args:
        host: Of the device.
        store: Where it finds models.
        link: To the runner.
    """

    def __init__(self, host: Host, store: dict[ModelKey, Any], link: Link) -> None:
        self._host = host
        self._store = store
        self._link = link
        self._models: dict[ModelKey, _Model] = {}
        self._buffers: dict[ModelKey, list[SharedBuffer]] = {}  # of those that are being loaded

    def answer(self, question: object, fds: Sequence[int]) -> None:
        """Do what is asked, and say so."""
        match question:
            case Run(model=key):
                model = self._models[key]
                _run(model, question)
                self._link.send(Done(model.instance.computed_ns))
            case Load(model=key):
                self._unpack(key, fds)
                self._enter(key, self._host.load(key, question.max_batch_rows, self._buffer_of(key)), {})
            case BeginLoad(model=key):
                self._unpack(key, fds)
                self._host.begin_load(key, question.max_batch_rows, question.warm_up_ns, self._buffer_of(key))
                self._link.send(Loading())
            case Look(model=key):
                fresh = self._host.loaded(key)
                if fresh is None:
                    self._link.send(Loading())
                else:
                    self._enter(key, fresh.instance, fresh.timings_ns)
            case Unload(model=key):
                del self._models[key]
                self._host.unload(key)
                self._store.pop(key, None)
                self._link.send(Done())

    def _unpack(self, model: ModelKey, fds: Sequence[int]) -> None:
        for fd in fds:
            self._store[model] = unpack(fd)
            os.close(fd)

    def _buffer_of(self, model: ModelKey) -> Buffers:
        buffers = self._buffers[model] = []

        def buffer(nbytes: int) -> np.ndarray:
            buffers.append(SharedBuffer.of(nbytes))
            return buffers[-1].bytes

        return buffer

    def _enter(self, model: ModelKey, instance: Instance, timings_ns: Mapping[int, int]) -> None:
        """Tell the runner of an instance, which may run from now on."""
        slots, buffers = instance.slots, self._buffers.pop(model)
        shape = (len(slots), instance.max_batch_rows, *instance.output_shape)
        buffers.append(SharedBuffer.of(4 * int(np.prod(shape))))
        self._models[model] = _Model(instance, buffers[-1].view(shape))
        rows, preprocessing = slots[0].row_shape, slots[0].preprocessing
        answer = Loaded(instance.max_batch_rows, rows, instance.output_shape, len(slots), preprocessing, timings_ns)
        self._link.send(answer, [one.fd for one in buffers])
        for one in buffers:
            one.close()


def _run(model: _Model, wanted: Run) -> None:
    model.instance.begin(wanted.slot, wanted.rows, wanted.pixels)
    model.outputs[wanted.slot, : wanted.rows] = model.instance.finish()


def _failure(error: Exception) -> Failed:
    return Failed(type(error).__name__, str(error)[:4096])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
