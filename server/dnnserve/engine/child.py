"""An engine process: python -m dnnserve.engine.child DEVICE SOCKET, started by `process.py` with this descriptor, or a copy of the
server's own process that runs `main` (`early.py`).

It opens a device by the factory that it is told of and does what the runner at the other end of the socket asks for, in its order,
until that end is closed. Batches pass three threads: one brings rows into a slot (NumPy gives the interpreter's lock up while it
copies), one begins the batch, one waits for its end and answers. Whatever ends this process ends its device's context with it, and
nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from dnncore import devices
from dnncore.errors import DeviceFaultError, DnncoreError
from dnnserve.engine.host import Fresh, Host
from dnnserve.engine.messages import (
    SIGN,
    Assignment,
    BeginLoad,
    Done,
    Failed,
    Load,
    Loaded,
    Loading,
    LogLevel,
    Look,
    Map,
    Opened,
    Run,
    TimeBatches,
    Timings,
    Unload,
    Unloaded,
    Unmap,
)
from dnnserve.engine.page_locks import PageLocks
from dnnserve.engine.pipeline import LocalPipeline
from dnnserve.engine.slot import may_stay
from dnnserve.envelope import ModelKey
from dnnserve.garbage import collect_seldom
from dnnserve.logs import configure_logging, set_log_level
from dnnserve.processes.arena import Arena, ArenaBlock
from dnnserve.processes.child import begin, told
from dnnserve.processes.link import Link
from dnnserve.processes.parcel import unpack
from dnnserve.signature import Signature

__all__ = ["main", "serve"]

_log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S = 1e-4  # the thread that runs batches must not wait 5 ms for one that loads a model, or brings rows


class _MappedBlock(ArenaBlock):
    """A block as this process has it, for as long as its batch is here. Owned by one thread at a time; not checked."""

    __slots__ = ()

    def hold(self) -> None:
        """The scheduler's process does."""

    def release(self) -> None:
        """As `hold`."""


class _Stager:
    """Reads what the runner sends, in a thread of its own, and brings rows into slots. Owned by that thread, but for attributes.

    Args:
        link: To the runner.
        device: "cpu" or "cuda:N".

    Attributes:
        pipelines: By model; written by who takes the orders, before the runner can name them.
        orders: What is left to do, in order: a message and its files, or, for a batch, its pipeline, where it is staged, or the
            error that kept it from that; last a DeviceFaultError, where nothing more can be received, or None: the other end is
            closed.
    """

    def __init__(self, link: Link, device: str) -> None:
        self._link = link
        self._arenas: dict[int, Arena] = {}
        self._locks = PageLocks(device)
        self._copiers = ThreadPoolExecutor(1, "dnnserve-copier")
        self.pipelines: dict[ModelKey, LocalPipeline] = {}
        self.orders: queue.SimpleQueue[tuple[object, Sequence[int]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="dnnserve-stager", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, whose link has been shut down, and unlock arenas; no batch runs."""
        self._thread.join()
        self._copiers.shutdown()
        self._locks.close()

    def _read(self) -> None:
        try:
            self._receive()
        except Exception as error:  # noqa: BLE001 - nobody reads any more: told in its turn, it ends this process
            _log.exception("what the server sends cannot be received")
            self.orders.put((DeviceFaultError(f"its process cannot receive what it is sent: {error}"), ()))
        else:
            self.orders.put(None)

    def _receive(self) -> None:
        while (received := self._link.receive()) is not None:
            message, fds = received
            if message == SIGN:
                with contextlib.suppress(OSError):  # the runner has gone, as the next look at the link says
                    self._link.note(SIGN)  # it always reads, so that this does not wait for long
            elif type(message) is tuple:
                self.orders.put((self._stage(Run(*message)), ()))
            elif isinstance(message, Map):
                if not fds:
                    raise OSError(errno.EMFILE, "no descriptor for an arena")
                self._arenas[message.arena] = arena = Arena(fds[0])
                arena.close()
            elif isinstance(message, Unmap):
                self._locks.unlock(self._arenas.pop(message.arena))
            elif isinstance(message, LogLevel):
                set_log_level(message.level)
            else:
                self.orders.put(received)

    def _stage(self, wanted: Run) -> LocalPipeline | Exception:
        try:
            pipeline = self.pipelines[ModelKey(*wanted.model)]
            pipeline.stage(self._blocks(pipeline.instance.signature, wanted.blocks), self._copiers)
        except Exception as error:  # noqa: BLE001 - told in its turn
            return error
        return pipeline

    def _blocks(self, signature: Signature, flat: Sequence[Any]) -> Sequence[_MappedBlock]:
        fields = iter(flat)
        blocks = []
        for arena, offset, rows, pixels, wanted in zip(fields, fields, fields, fields, fields, strict=True):
            layout = signature.layout(rows, pixels=pixels, wanted=wanted)
            memory = self._arenas[arena]
            if not memory.page_locked and may_stay(layout.largest_input_bytes):
                self._locks.lock(memory)
            blocks.append(_MappedBlock(memory, offset, layout, pixels=pixels))
        return blocks


def main(device: str, channel: str) -> int:
    """Serve until the runner closes its end; the exit status."""
    link = begin(channel, "dnnserve-engine")
    devices.limit_cpu_threads(1)
    with contextlib.suppress(DnncoreError):  # which comes again, to be told, when the device is opened
        devices.resolve(device)  # begins to use the driver, which takes a while, before there is anything to load
    assignment: Assignment | None = told(link)
    if assignment is not None:
        configure_logging(assignment.log_format, assignment.log_level)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        collect_seldom()
        serve(device, assignment, link)
    return 0


def serve(device: str, assignment: Assignment, link: Link) -> None:
    """Open the device and answer what is asked, until the other end is closed or the device is lost."""
    host: Host | None = None
    stager, finisher = _Stager(link, device), _Finisher(link, device)
    try:
        host = assignment.open_host(device)
        link.send(Opened())
        desk = _Desk(host, assignment.models, stager.pipelines, link, finisher)
        while (order := stager.orders.get()) is not None:
            question, fds = order
            try:
                if isinstance(question, LocalPipeline | Exception):
                    desk.run(question)
                else:
                    desk.answer(question, fds)
            except DeviceFaultError:
                raise
            except OSError:
                return  # the runner has gone
            except Exception as error:  # noqa: BLE001 - whatever was asked, what is asked next gets its chance
                _log.exception("%s failed on %s", type(question).__name__.lower(), device)
                link.send(_failure(error))
    except Exception as error:  # noqa: BLE001 - the runner is told, and this process ends
        if not isinstance(error, OSError):
            with contextlib.suppress(OSError):  # it was told of a batch before that failed likewise
                link.send(_failure(error))
    finally:
        finisher.close()
        link.shut_down()
        stager.join()
        if host is not None:
            host.close()


class _Finisher:
    """Waits for batches in the order in which they were begun, delivers their outputs, and says so, in a thread of its own, while
    the next one is begun.

    Args:
        link: To the runner.
        device: What the log calls it.
    """

    def __init__(self, link: Link, device: str) -> None:
        self._link = link
        self._device = device
        self._begun: queue.Queue[LocalPipeline | Exception | None] = queue.Queue()
        self._thread = threading.Thread(target=self._finish, name="dnnserve-finisher", daemon=True)
        self._thread.start()

    def put(self, begun: LocalPipeline | Exception) -> None:
        """Finish the oldest batch of a pipeline that was begun, or say in its turn why there is none."""
        self._begun.put(begun)

    def wait(self) -> None:
        """Wait until all there is has been said."""
        self._begun.join()

    def close(self) -> None:
        """Finish what there is, and end the thread."""
        self._begun.put(None)
        self._thread.join()

    def _finish(self) -> None:
        while (begun := self._begun.get()) is not None:
            try:
                self._link.note(_finished(begun))
            except OSError:
                self._link.shut_down()  # the runner has gone, as the stager finds out
            except DeviceFaultError as error:
                with contextlib.suppress(OSError):
                    self._link.send(_failure(error))
                self._link.shut_down()  # the runner is told, and this process ends
            except Exception as error:  # noqa: BLE001 - whatever a batch does, the next one gets its chance
                _log.exception("run failed on %s", self._device)
                with contextlib.suppress(OSError):
                    self._link.send(_failure(error))
            finally:
                begun = None  # before waiting: it may be the last reference to a model that is unloaded
                self._begun.task_done()


class _Desk:
    """Answers questions about models. Owned by one thread.

    Args:
        host: Of the device.
        store: Where it finds models.
        pipelines: Where the stager finds them.
        link: To the runner.
        finisher: Of batches.
    """

    def __init__(
        self,
        host: Host,
        store: dict[ModelKey, Any],
        pipelines: dict[ModelKey, LocalPipeline],
        link: Link,
        finisher: _Finisher,
    ) -> None:
        self._host = host
        self._store = store
        self._pipelines = pipelines
        self._link = link
        self._finisher = finisher

    def run(self, staged: LocalPipeline | Exception) -> None:
        """Begin a batch, which is answered when it has ended, or be told why there is none.

        Raises:
            DeviceFaultError: the device is lost, or nothing more can be received; what was begun before has been answered.
        """
        failure = staged if isinstance(staged, Exception) else _failure_to_begin(staged)
        if isinstance(failure, DeviceFaultError):
            self._finisher.wait()
            raise failure
        self._finisher.put(failure or staged)

    def answer(self, question: object, fds: Sequence[int]) -> None:
        """Do what is asked, and say so, after what was asked before."""
        self._finisher.wait()
        match question:
            case Load(model=key):
                with self._forgetting(key):
                    self._unpack(key, fds)
                    loaded = self._host.load(key, question.max_batch_rows)
                self._enter(key, Fresh(loaded, {}))
            case BeginLoad(model=key):
                with self._forgetting(key):
                    self._unpack(key, fds)
                    self._host.begin_load(key, question.max_batch_rows, question.warm_up_ns)
                self._link.send(Loading())
            case Look(model=key):
                with self._forgetting(key):
                    fresh = self._host.loaded(key)
                if fresh is None:
                    self._link.send(Loading())
                else:
                    self._enter(key, fresh)
            case TimeBatches(model=key):
                self._link.send(Timings(self._pipelines[key].time(question.budget_ns)))
            case Unload(model=key):
                del self._pipelines[key]
                self._host.unload(key)
                self._store.pop(key, None)
                self._link.send(Unloaded())

    @contextmanager
    def _forgetting(self, model: ModelKey) -> Iterator[None]:
        """Keep nothing of a model that cannot be loaded: its weights are mapped."""
        try:
            yield
        except BaseException:
            self._store.pop(model, None)
            raise

    def _unpack(self, model: ModelKey, fds: Sequence[int]) -> None:
        for fd in fds:
            self._store[model] = unpack(fd)
            os.close(fd)

    def _enter(self, model: ModelKey, fresh: Fresh) -> None:
        """Tell the runner of a model, which may run from now on."""
        pipeline = fresh.pipeline
        assert isinstance(pipeline, LocalPipeline)
        self._pipelines[model] = pipeline
        signature = pipeline.instance.signature
        self._link.send(Loaded(pipeline.depth, pipeline.max_batch_rows, signature, fresh.timings_ns))


def _failure_to_begin(staged: LocalPipeline) -> Exception | None:
    try:
        staged.begin()
    except Exception as error:  # noqa: BLE001 - whatever it is, the runner is told in its turn
        return error
    return None


def _finished(begun: LocalPipeline | Exception) -> tuple[Any, ...]:
    if isinstance(begun, Exception):
        raise begun
    timing = begun.finish()
    begun.deliver()
    return tuple(Done(*timing))


def _failure(error: Exception) -> Failed:
    return Failed(type(error).__name__, str(error)[:4096])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
