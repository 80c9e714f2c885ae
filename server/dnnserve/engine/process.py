"""A device in a process of its own: whatever happens to its context or hangs on it, this process goes on and starts another one.

The kernels are launched without the interpreter lock of the front end, and a CUDA error that no context survives costs one process,
not the server. The process reads rows where the front end has put them, and writes outputs there.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from dnncore import errors
from dnncore.errors import DeviceFaultError, DnncoreError
from dnnserve.engine.host import Fresh
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
    Message,
    Opened,
    Run,
    TimeBatches,
    Timings,
    Unload,
    Unloaded,
    Unmap,
)
from dnnserve.engine.pipeline import Timing
from dnnserve.envelope import Block, ModelKey
from dnnserve.processes.arena import Arena, ArenaBlock
from dnnserve.processes.child import ENGINE, Child, Children
from dnnserve.processes.parcel import Parcel
from dnnserve.processes.receiver import Receiver
from dnnserve.processes.signs_of_life import SignsOfLife

__all__ = ["EngineProcesses", "ProcessHost", "ProcessPipeline"]

_log = logging.getLogger(__name__)

_OPENING_S = 300.0
"""For which a process may take to start and open its device; one that takes longer hangs, and is killed."""

_Wanted = TypeVar("_Wanted")

_GONE = frozenset({errno.EBADF, errno.ENOTCONN})
"""Beside the errors that are a ConnectionError: what a link that this process has closed says."""

_Placed = tuple[Arena, int, int, bool, tuple[int, ...]]
"""A block: its arena, its offset there, its rows, whether they are pixels, and the outputs that are wanted."""


class EngineProcesses:
    """Opens devices in processes of their own: a `HostFactory`, once it is `told`. Thread-safe.

    Args:
        names: Devices whose processes are begun at once, so that their start goes on beside everything else; each name once for
            each time that it will be opened.
        begun: Processes that were, by the names of their devices; those of others are ended.
    """

    def __init__(self, names: Sequence[str] = (), begun: Mapping[str, Children] = MappingProxyType({})) -> None:
        self._lock = threading.Lock()
        for name in begun.keys() - set(names):
            begun[name].close()
        self._ready = {name: begun.get(name) or _begun(name, names.count(name)) for name in set(names)}
        self._assignment: Assignment | None = None
        self._parcel: Parcel | None = None
        self._hosts: weakref.WeakSet[ProcessHost] = weakref.WeakSet()
        self._ahead: dict[str, ProcessHost] = {}
        self._models: dict[ModelKey, Parcel] = {}
        self._receiver = Receiver("dnnserve-engines")

    def tell(self, assignment: Assignment) -> None:
        """Say what each of them does, from now on; those that run do what they were told."""
        parcel = Parcel(assignment)
        with self._lock:
            before, self._assignment, self._parcel = self._parcel, assignment, parcel
            if before is not None:
                before.close()

    def set_log_level(self, level: str) -> None:
        """Have them log from this level up, those to come and those that run."""
        assert self._assignment is not None
        self.tell(replace(self._assignment, log_level=level))
        with self._lock:
            hosts = list(self._hosts)
        for host in hosts:
            host.set_log_level(level)

    def put(self, model: ModelKey, served: object) -> None:
        """Keep a model to be loaded; packed once, so that all processes and their successors share one copy of the weights."""
        self._models[model] = Parcel(served)

    def drop(self, model: ModelKey) -> None:
        """Keep a model no more. A second call does nothing."""
        parcel = self._models.pop(model, None)
        if parcel is not None:
            parcel.close()

    def load_ahead(self, device: str, models: Mapping[ModelKey, int]) -> None:
        """Have a device's process load models before anybody opens it: whoever does loads these first, in this order.

        Args:
            device: Its name; opened once.
            models: What was put, with the rows of a batch.
        """
        host = self._begin(device)
        with self._lock:
            self._ahead[device] = host
        host.load_ahead(models)

    def __call__(self, device: str) -> ProcessHost:
        """Take a process that was begun, or begin one, and wait until it has its device.

        Raises:
            DnncoreError: it cannot open it.
        """
        with self._lock:
            ahead = self._ahead.pop(device, None)
        host = self._begin(device) if ahead is None else ahead
        host.wait_opened()
        return host

    def _begin(self, device: str) -> ProcessHost:
        with self._lock:
            child = self._ready.setdefault(device, Children(ENGINE, device)).take()
            try:
                host = ProcessHost(device, child, self._models, self._receiver)
            except BaseException:
                child.close()
                raise
            self._hosts.add(host)
            assert self._parcel is not None
            host.tell(self._parcel)
        return host

    def close(self) -> None:
        """End the processes that were not needed, and give the parcels back; no device can be opened any more.

        Those that were opened are closed, or are never to be heard of again.
        """
        with self._lock:
            ahead, self._ahead = list(self._ahead.values()), {}
        for host in ahead:
            host.shut_down()  # so that all of them end side by side
        for host in ahead:
            host.close()
        for children in self._ready.values():
            children.close()
        self._receiver.close()
        if self._parcel is not None:
            self._parcel.close()
        for model in list(self._models):
            self.drop(model)


def _begun(device: str, count: int) -> Children:
    return Children(ENGINE, device, begun=[Child.start(ENGINE, device) for _ in range(count)])


class ProcessHost:
    """A device behind an engine process. Owned by one thread, but for `look` and `kill`.

    Args:
        device: What the process opens.
        child: The process.
        models: What may be loaded beside what its assignment has; others may be added to it later.
        receiver: Hears what the process says.
    """

    def __init__(self, device: str, child: Child, models: Mapping[ModelKey, Parcel], receiver: Receiver) -> None:
        self._device = device
        self._child = child
        self._models = models
        self._pipelines: dict[ModelKey, ProcessPipeline] = {}
        self._mapped: set[Arena] = set()
        self._signs = SignsOfLife()
        self._answers: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._on_end: Callable[[], None] = lambda: None
        self._on_loss: Callable[[], None] = lambda: None
        self._silent = threading.Event()  # nothing more is heard of the process
        self._ahead: deque[tuple[ModelKey, int]] = deque()  # what it was asked to load, and nobody has waited for yet
        receiver.add(child.link, self._hear, self._end)

    def tell(self, parcel: Parcel) -> None:
        """Hand its assignment over."""
        with contextlib.suppress(OSError):  # it has ended, as its answer will say
            self._child.tell(parcel)

    def wait_opened(self) -> None:
        """Wait until it has its device.

        Raises:
            DeviceFaultError: the process ended.
            DnncoreError: it cannot open the device.
        """
        hangs = threading.Timer(_OPENING_S, self._child.kill)
        hangs.daemon = True
        hangs.start()
        try:
            self.answer(Opened)
        except BaseException:
            self.close()
            raise
        finally:
            hangs.cancel()

    def set_log_level(self, level: str) -> None:
        """Have the process log from this level up; from any thread."""
        with contextlib.suppress(OSError):  # it has ended, and its successor knows
            self._child.link.send(LogLevel(level))

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    @property
    def has_answered(self) -> bool:
        """Whether an answer is there, or the process has ended, so that `answer` does not wait."""
        return not self._answers.empty()

    def load_ahead(self, models: Mapping[ModelKey, int]) -> None:
        """Have the process load models, with these rows of a batch; `load` of the same, in this order, waits for them."""
        with contextlib.suppress(DnncoreError):  # which comes again, to be told, when it is opened or asked once more
            for model, rows in models.items():
                self._send_with_parcel(Load(model, rows))
                self._ahead.append((model, rows))

    def load(self, model: ModelKey, max_batch_rows: int) -> ProcessPipeline:
        """Have the process load a model and warm it up.

        Raises:
            DeviceFaultError: the process ended.
            DnncoreError: it cannot load the model.
        """
        if self._ahead:
            asked = self._ahead.popleft()
            if asked != (model, max_batch_rows):
                raise DnncoreError(f"{asked} was asked for ahead, and then {model} of {max_batch_rows} rows")
        else:
            self._send_with_parcel(Load(model, max_batch_rows))
        return self._enter(model, self.answer(Loaded))

    def begin_load(self, model: ModelKey, max_batch_rows: int, warm_up_ns: int) -> None:
        """Have the process begin to load a model, in another thread of it."""
        self._send_with_parcel(BeginLoad(model, max_batch_rows, warm_up_ns))
        self.answer(Loading)

    def loaded(self, model: ModelKey) -> Fresh | None:
        """Ask the process whether it is there.

        Raises:
            DeviceFaultError: the process ended.
            DnncoreError: it cannot load the model.
        """
        self.ask(Look(model))
        answer = self.answer((Loaded, Loading))
        return Fresh(self._enter(model, answer), answer.timings_ns) if isinstance(answer, Loaded) else None

    def unload(self, model: ModelKey) -> None:
        """Have the process give a model's memory back."""
        self._pipelines.pop(model).close()
        self.ask(Unload(model))
        self.answer(Unloaded)
        self._forget_arenas()

    def ask(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message, and files with it.

        Raises:
            DeviceFaultError: the process ended.
            DnncoreError: it could not be sent, and nothing of it was.
        """
        try:
            self._child.link.send(message, fds)
        except OSError as error:
            raise self._unsent(error) from error

    def run(self, model: ModelKey, blocks: Sequence[_Placed]) -> None:
        """Have the process run a batch of blocks.

        Raises:
            DeviceFaultError: the process ended.
            DnncoreError: it could not be told; the batch is lost, and the process has not heard of it.
        """
        flat: list[Any] = []
        for arena, *fields in blocks:
            if arena not in self._mapped:
                self._map(arena)
            flat += arena.number, *fields
        try:
            self._child.link.note(tuple(Run((model.name, model.version, model.load), tuple(flat))))
        except OSError as error:
            raise self._unsent(error) from error

    def answer(self, wanted: type[_Wanted] | tuple[type[_Wanted], ...]) -> _Wanted:
        """Wait for the answer to the oldest question.

        Raises:
            DeviceFaultError: the process ended.
            DnncoreError: what was asked for failed; of the class that the process says.
        """
        message = self._answers.get()
        if message is None:
            raise self._ended()
        if isinstance(message, Failed):
            kind = getattr(errors, message.error, DnncoreError)
            raise kind(message.text)
        if not isinstance(message, wanted):
            raise DnncoreError(f"the engine process of {self._device} answered {message} where {wanted} was due")
        return message

    def watch(self, on_end: Callable[[], None], on_loss: Callable[[], None]) -> None:
        """Act when the process has answered, and when it ends."""
        self._on_end, self._on_loss = on_end, on_loss

    def look(self) -> None:
        """Ask the process for a sign of life, which its thread gives that reads; one that has given none at the last looks is
        killed: stopped, or kept from running.
        """
        if not self._signs.look():
            _log.error("the engine process %d of %s does not answer: it is killed", self.pid, self._device)
            self._child.kill()
        with contextlib.suppress(OSError):  # it has ended, as the listener finds out
            self._child.link.note(SIGN, wait=False)  # a link that is full is no sign of life

    def kill(self) -> bool:
        """Kill the process."""
        self._child.kill()
        return True

    def shut_down(self) -> None:
        """Let the process end, without waiting for that; `close` does. A second call does nothing."""
        self._child.link.shut_down()

    def close(self) -> None:
        """Let the process close its device and end; one that does not is killed. A second call does nothing."""
        self.shut_down()
        self._silent.wait()
        self._child.close()
        for pipeline in self._pipelines.values():
            pipeline.close()

    def _send_with_parcel(self, message: Load | BeginLoad) -> None:
        parcel = self._models.get(message.model)
        self.ask(message, () if parcel is None else (parcel.fd,))

    def _enter(self, model: ModelKey, loaded: Loaded) -> ProcessPipeline:
        pipeline = self._pipelines[model] = ProcessPipeline(self, model, loaded)
        return pipeline

    def _forget_arenas(self) -> None:
        """Have the process forget those that are closed, which may hold page-locked memory there."""
        for gone in [each for each in self._mapped if each.closed]:
            self.ask(Unmap(gone.number))
            self._mapped.remove(gone)

    def _map(self, arena: Arena) -> None:
        self._forget_arenas()
        self.ask(Map(arena.number), [arena.fd])
        self._mapped.add(arena)

    def _hear(self, message: Any, _fds: Sequence[int]) -> None:
        self._signs.seen()
        if message == SIGN:
            return
        self._answers.put(Done(*message) if type(message) is tuple else message)
        self._on_end()

    def _end(self, failure: Exception | None) -> None:
        if failure is not None:
            _log.error("the engine process %d of %s is given up", self.pid, self._device, exc_info=failure)
            self._child.kill()
        self._answers.put(None)
        self._on_loss()
        self._silent.set()

    def _unsent(self, error: OSError) -> DnncoreError:
        """What it means that nothing could be sent: the other end has gone, or this process lacks what it takes."""
        if isinstance(error, ConnectionError) or error.errno in _GONE:
            return self._ended()
        return DnncoreError(
            f"the engine process {self.pid} of {self._device} cannot be told anything: {error.strerror}"
        )

    def _ended(self) -> DeviceFaultError:
        self.close()  # waits: when this is told, nobody there reads or writes a block any more
        return DeviceFaultError(f"the engine process {self.pid} of {self._device} ended by {self._child.wait()}")


class ProcessPipeline:
    """A model in an engine process. Owned by its host's thread.

    Blocks that lie in an arena are read and written there by the process. Those of this process alone are copied into an arena of
    the pipeline's, and their outputs out of it.

    Args:
        host: The process.
        model: Which.
        loaded: What the process said of it.
    """

    def __init__(self, host: ProcessHost, model: ModelKey, loaded: Loaded) -> None:
        self._host = host
        self._model = model
        self.depth = loaded.depth
        self.max_batch_rows = loaded.max_batch_rows
        self._signature = loaded.signature
        self._arenas: list[Arena] = []  # made as they are needed, as many as there are batches
        self._free: list[Arena] = []  # those of them that no batch has
        self._staged: deque[_Staged] = deque()
        self._begun: deque[_Staged] = deque()
        self._finished: _Staged | None = None

    @property
    def ended(self) -> bool:
        """Whether the oldest batch has ended."""
        return self._host.has_answered

    def time(self, budget_ns: int) -> Mapping[int, int]:
        """Have the process find out."""
        self._host.ask(TimeBatches(self._model, budget_ns))
        return self._host.answer(Timings).timings_ns

    def stage(self, batch: Sequence[Block]) -> None:
        """Copy into an arena what does not lie in one."""
        staged = _Staged([])
        position = 0
        for block in batch:
            place = block.place
            if place is None:
                if staged.arena is None:
                    staged.arena = self._take_arena()
                layout = self._signature.layout(len(block), pixels=block.pixels, wanted=block.wanted)
                copy = ArenaBlock(staged.arena, position, layout, pixels=block.pixels)
                copy.fill(block.read())
                staged.copies.append((block, copy))
                place = copy.place
                position += layout.nbytes
            staged.places.append((*place, len(block), block.pixels, block.wanted))
        self._staged.append(staged)

    def begin(self) -> None:
        """Have the process stage and run the batch, after what was begun before; returns at once."""
        staged = self._staged.popleft()
        try:
            self._host.run(self._model, staged.places)
        except BaseException:
            self._give_back(staged)
            raise
        self._begun.append(staged)

    def finish(self) -> Timing:
        """Wait until the process has run the oldest batch."""
        staged = self._begun.popleft()
        try:
            done = self._host.answer(Done)
        except BaseException:
            self._give_back(staged)
            raise
        self._finished = staged
        return Timing(*done)

    def deliver(self) -> None:
        """Copy the outputs of those blocks that were copied."""
        assert self._finished is not None
        for block, copy in self._finished.copies:
            block.write(copy.outputs())
        self._give_back(self._finished)
        self._finished = None

    def close(self) -> None:
        """Give its arenas back; nothing runs."""
        for arena in self._arenas:
            arena.leave()

    def _give_back(self, staged: _Staged) -> None:
        if staged.arena is not None:
            self._free.append(staged.arena)

    def _take_arena(self) -> Arena:
        if not self._free:
            # Enough for a batch of blocks of one row each, which take the most.
            one = self._signature.layout(1, pixels=False, wanted=self._signature.all_outputs)
            self._arenas.append(Arena.of(self.max_batch_rows * one.nbytes))
            self._free.append(self._arenas[-1])
        return self._free.pop()


@dataclass(slots=True)
class _Staged:
    """A batch on its way. Owned by one thread.

    Args:
        places: Of its blocks, as `ProcessEngine.run` takes them.
        copies: Blocks of this process alone, with their copies.
        arena: Where these are.
    """

    places: list[_Placed]
    copies: list[tuple[Block, ArenaBlock]] = field(default_factory=list)
    arena: Arena | None = None
