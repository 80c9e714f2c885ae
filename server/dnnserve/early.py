"""Processes that are begun before anything else, as copies of the server's own, so that what all import is imported once: all but
gRPC, which the server imports when its models are on their way to the devices, and front ends at the same time.

A copy is made while the server's process has one thread and has used neither gRPC nor a driver. Where it cannot be copied, front
ends are programs of their own, begun at once; engines are then begun when it is known which devices there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from dnnserve.config import ServerConfig
from dnnserve.front_ends import count_gpus
from dnnserve.processes.child import ENGINE, FRONT_END, Child, Children, can_fork

__all__ = ["EarlyProcesses", "likely_engines"]


@dataclass(frozen=True, slots=True)
class EarlyProcesses:
    """Processes that wait to be told what to do. The fields do not change; each is thread-safe.

    Args:
        fronts: Front ends.
        engines: Of devices, by their names.
    """

    fronts: Children = field(default_factory=lambda: Children(FRONT_END))
    engines: Mapping[str, Children] = field(default_factory=dict)

    @classmethod
    def begin(cls, config: ServerConfig) -> EarlyProcesses:
        """Those that a configuration asks for.

        Raises:
            OSError: no more processes, or descriptors, for now; none are left.
        """
        forks, names = can_fork(), likely_engines(config)
        fronts: list[Child] = []
        engines: dict[str, list[Child]] = {}
        try:
            if forks and names:
                from dnnserve.engine import child as engine

                for name in names:
                    engines.setdefault(name, []).append(Child.fork(partial(engine.main, name)))
            if config.num_front_ends:
                while len(fronts) < config.num_front_ends:
                    fronts.append(Child.fork(_front) if forks else Child.start(FRONT_END))
        except BaseException:
            cls._of(fronts, engines).close()
            raise
        return cls._of(fronts, engines)

    @classmethod
    def _of(cls, fronts: list[Child], engines: Mapping[str, list[Child]]) -> EarlyProcesses:
        return cls(
            Children(FRONT_END, begun=fronts),
            {name: Children(ENGINE, name, begun=begun) for name, begun in engines.items()},
        )

    def close(self) -> None:
        """End those that nobody took. A second call does nothing."""
        for children in (self.fronts, *self.engines.values()):
            children.close()


def _front(channel: str) -> int:
    """A front end, which imports gRPC itself, beside what the server does meanwhile: that has models read and loaded first."""
    try:
        from dnnserve.front import child
    except ModuleNotFoundError:
        return 1  # the server needs the same packages, and says which is missing
    return child.main(channel)


def likely_engines(config: ServerConfig) -> tuple[str, ...]:
    """Devices that will have processes of their own, as far as that can be told without a driver: their names, one for each."""
    if config.devices is None:
        names = tuple(f"cuda:{index}" for index in range(count_gpus(None)))
    else:
        names = tuple(name.strip() for name in config.devices.split(","))
    return names if config.engines == "process" or (config.engines == "auto" and "cpu" not in names) else ()
