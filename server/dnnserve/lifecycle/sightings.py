"""What of a repository counts: pure, told of looks at it and of the time.

Whoever copies a model into the repository does so file by file. A version counts once it has looked the same for a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dnnserve.lifecycle.versions import Stamp

__all__ = ["Look", "Seen", "Sight", "Sightings"]

Seen = Mapping[str, Mapping[int, tuple[Path, Stamp]]]
"""The packages of a repository and what they look like, by model and version."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look at a repository finds. Immutable.

    Args:
        seen: What is there.
        misfits: What does not fit, or cannot be read, each told in a line.
        hidden: Models whose folders cannot be read: nobody knows what has become of them.
    """

    seen: Seen
    misfits: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Look:
    """What counts after a look. Immutable.

    Args:
        counted: Versions that have settled; of those that are changing, the last that had.
        settling: Whether there are others, which may count soon.
    """

    counted: Seen
    settling: bool


class Sightings:
    """Remembers looks at a repository. Owned by one thread; not checked.

    Args:
        settle_s: How long a version must look the same.
        counted: What counts from the beginning.
    """

    def __init__(self, settle_s: float, counted: Seen) -> None:
        self._settle_s = settle_s
        self._counted = {(name, number): place for name, found in counted.items() for number, place in found.items()}
        self._since_s: dict[tuple[str, int], tuple[tuple[Path, Stamp], float]] = {}

    def look(self, sight: Sight, now_s: float) -> Look:
        """Take a look into account. A model that is hidden counts as it did: it has not gone."""
        there = {(name, number): place for name, found in sight.seen.items() for number, place in found.items()}
        there |= {key: place for key, place in self._counted.items() if key[0] in sight.hidden}
        self._counted = {key: place for key, place in self._counted.items() if key in there}
        self._since_s = {key: since for key, since in self._since_s.items() if key in there}
        settling = False
        for key, place in there.items():
            if self._counted.get(key) == place:
                self._since_s.pop(key, None)
                continue
            last, since_s = self._since_s.get(key, (None, now_s))
            if last != place:
                since_s = now_s
            self._since_s[key] = place, since_s
            if now_s - since_s >= self._settle_s:
                self._counted[key] = place
                del self._since_s[key]
            else:
                settling = True
        counted: dict[str, dict[int, tuple[Path, Stamp]]] = {}
        for (name, number), place in sorted(self._counted.items()):
            counted.setdefault(name, {})[number] = place
        return Look(counted, settling)
