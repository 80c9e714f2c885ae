"""An engine process: python -m dnnserve.engine.child DEVICE SOCKET, started by `process.py` with this descriptor.

It opens a device by the factory that it is told of and does what the runner at the other end of the socket asks for, one thing
after another, until that end is closed. Whatever ends this process ends its device's context with it, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import dataclass

import numpy as np

from dnncore import devices
from dnncore.errors import DeviceFaultError, DnncoreError
from dnnserve.engine.host import Host, HostFactory, Instance
from dnnserve.engine.messages import Assignment, Done, Failed, Load, Loaded, Opened, Run
from dnnserve.envelope import ModelKey
from dnnserve.logs import configure_logging
from dnnserve.processes.child import begin, told
from dnnserve.processes.link import Link
from dnnserve.processes.shared_buffer import SharedBuffer

__all__ = ["main", "serve"]

_log = logging.getLogger(__name__)


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
        configure_logging(assignment.log_format)
        serve(device, assignment.open_host, link)
    return 0


def serve(device: str, open_host: HostFactory, link: Link) -> None:
    """Open the device and answer what is asked, until the other end is closed or the device is lost."""
    host: Host | None = None
    try:
        host = open_host(device)
        link.send(Opened())
        models: dict[ModelKey, _Model] = {}
        while (received := link.receive()) is not None:
            question, _ = received
            try:
                if isinstance(question, Load):
                    models[question.model] = _load(host, question, link)
                elif isinstance(question, Run):
                    model = models[question.model]
                    _run(model, question)
                    link.send(Done(model.instance.computed_ns))
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


def _load(host: Host, wanted: Load, link: Link) -> _Model:
    buffers: list[SharedBuffer] = []

    def buffer(nbytes: int) -> np.ndarray:
        buffers.append(SharedBuffer.of(nbytes))
        return buffers[-1].bytes

    instance = host.load(wanted.model, wanted.max_batch_rows, buffer)
    slots = instance.slots
    shape = (len(slots), instance.max_batch_rows, *instance.output_shape)
    buffers.append(SharedBuffer.of(4 * int(np.prod(shape))))
    outputs = buffers[-1].view(shape)
    rows, preprocessing = slots[0].row_shape, slots[0].preprocessing
    answer = Loaded(instance.max_batch_rows, rows, instance.output_shape, len(slots), preprocessing)
    link.send(answer, [one.fd for one in buffers])
    for one in buffers:
        one.close()
    return _Model(instance, outputs)


def _run(model: _Model, wanted: Run) -> None:
    model.instance.begin(wanted.slot, wanted.rows, wanted.pixels)
    model.outputs[wanted.slot, : wanted.rows] = model.instance.finish()


def _failure(error: Exception) -> Failed:
    return Failed(type(error).__name__, str(error)[:4096])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
