"""A front end's process: python -m dnnserve.front.child SOCKET, started by `processes.py` with this descriptor.

It knows the protocol and no device: requests go to the scheduler's process, whose word it waits for in every other matter.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from dnncore.errors import DnncoreError
from dnnserve.allocator import keep_freed_memory
from dnnserve.catalog import shorten
from dnnserve.channel import messages
from dnnserve.channel.remote import RemoteControl, RemoteScheduler, RemoteStatistics
from dnnserve.config import ServerConfig
from dnnserve.connections import of_front_end
from dnnserve.front.front_end import Behind, LocalFrontEnd
from dnnserve.garbage import collect_seldom
from dnnserve.logs import configure_logging, set_log_level
from dnnserve.processes.arena import Arena
from dnnserve.processes.child import begin, told
from dnnserve.processes.link import Link
from dnnserve.processes.outbox import Outbox
from dnnserve.shared_memory.requests import Registration

__all__ = ["FrontAssignment", "main"]

_log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S = 1e-4  # the thread that polls must not wait 5 ms for one that decodes


@dataclass(frozen=True, slots=True)
class FrontAssignment:
    """What a front end's process is told at its start. Immutable.

    Args:
        config: The server's, with the port that is shared.
        arena_bytes: Shared memory for rows that wait or run, a power of two.
    """

    config: ServerConfig
    arena_bytes: int


class _Process:
    """The front end and the messages for it. Thread-safe.

    What takes time (starting, draining) is done by a thread of its own, in order, so that completions go on.
    """

    def __init__(self, link: Link, assignment: FrontAssignment) -> None:
        self._link = link
        self._outbox = Outbox(link, "dnnserve-outbox")
        self._serving = False
        arena = Arena.of(assignment.arena_bytes)
        link.send(messages.Arena(assignment.arena_bytes), [arena.fd])
        arena.close()
        self._scheduler = RemoteScheduler(link, arena, time.monotonic_ns)
        self._statistics = RemoteStatistics(link)
        self._control = RemoteControl(link)
        behind = Behind(
            self._scheduler,
            self._statistics,
            self._statistics.record_calls,
            lambda: self._serving,
            self._control,
            time.monotonic_ns,
            self._statistics.record_refused_connections,
        )
        config = assignment.config
        self._front = LocalFrontEnd(config, behind, of_front_end(config), reuse_port=True)
        self._orders: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="dnnserve-orders", daemon=True)
        self._worker.start()

    def run(self) -> None:
        """Do what comes until the other end is closed. It sends nothing itself: it must go on reading."""
        while (received := self._link.receive()) is not None:
            message, fds = received
            if type(message) is tuple:
                self._scheduler.complete(message)
            elif isinstance(message, messages.SnapshotOf):
                self._statistics.deliver(message)
            elif isinstance(message, messages.Ping):
                self._outbox.send(messages.Pong())
            elif isinstance(message, messages.Count):
                self._outbox.send(messages.Inside(self._front.inside))
            elif isinstance(message, messages.Serve):
                self._scheduler.serve(message.models)
                self._front.serve([spec for _, spec in message.models])
                self._outbox.send(messages.Served())
            elif isinstance(message, messages.Holds):
                self._outbox.send(messages.Held(message.model, self._front.holds(message.model)))
            elif isinstance(message, messages.AddRegion):
                self._outbox.send(messages.Known(message.ticket, self._add_region(message.registration, fds)))
            elif isinstance(message, messages.RemoveRegion):
                self._front.remove_region(message.name)
                self._outbox.send(messages.Known(message.ticket))
            elif isinstance(message, messages.Forget):
                self._scheduler.forget(message.model)
            elif isinstance(message, messages.Told):
                self._control.deliver(message)
            elif isinstance(message, messages.LogLevel):
                set_log_level(message.level)
            elif isinstance(message, messages.Announce):
                self._serving = message.serving
                self._front.announce(message.serving, final=message.final)
            else:
                self._orders.put(message)
        self._scheduler.lose("the server has ended")

    def _add_region(self, registration: Registration, fds: Sequence[int]) -> str:
        """Let requests speak of a region; why they cannot, or nothing."""
        failure = "" if fds else os.strerror(errno.EMFILE)  # for want of descriptors the file has not come
        for fd in fds:
            try:
                self._front.add_region(registration, fd)
            except OSError as error:
                failure = str(error)
            finally:
                os.close(fd)
        if failure:
            _log.error("shared memory: %s cannot be registered here: %s", shorten(registration.name), failure)
        return failure

    def _work(self) -> None:
        while True:
            order = self._orders.get()
            if isinstance(order, messages.Start):
                self._scheduler.serve(order.models)
                self._front.start([spec for _, spec in order.models])
                collect_seldom()
                self._link.send(messages.Started(self._front.kind))
            elif isinstance(order, messages.ClosePort):
                self._front.close_port(order.grace_s)
            elif isinstance(order, messages.Stop):
                self._front.stop(order.grace_s)
                self._statistics.close()
                self._link.send(messages.Stopped())


def main(channel: str) -> int:
    """Serve until the server closes its end; the exit status."""
    link = begin(channel, "dnnserve-front")
    assignment: FrontAssignment | None = told(link)
    if assignment is None:
        return 0
    configure_logging(assignment.config.log_format, assignment.config.log_level)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    keep_freed_memory()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        _Process(link, assignment).run()
    except DnncoreError as error:
        link.send(messages.CannotStart(str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
