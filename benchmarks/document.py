"""What a benchmark writes: rows, each with the commit that it was measured at, under the machine that all were measured on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import environment

__all__ = ["Document"]

Row = dict[str, Any]


def _comparable(head: dict[str, Any]) -> dict[str, Any]:
    """What two measurements must have in common: one GPU is used, however many there are beside it, and one thread."""
    found = dict(head["environment"])
    found.pop("cpus")
    return head | {"environment": found | {"gpus": sorted(set(found["gpus"]))}}


class Document:
    """A JSON file that measurements go into one by one. Owned by one thread.

    What was measured before stays, but for rows of the same key; of another GPU, driver or version nothing does.

    Args:
        path: The file.
        keys: Fields that tell rows apart.
        facts: What holds for all rows, such as the dtype.
    """

    def __init__(self, path: Path, keys: Sequence[str], **facts: object) -> None:
        self._path = path
        self._keys = tuple(keys)
        found = environment()
        self._commit = found.pop("commit")
        self._head = {"environment": found, **facts}
        self.dropped = (
            0  # rows that the file has of another machine, version or method, and loses to the first that comes
        )
        self._rows = self._kept()

    def _kept(self) -> list[Row]:
        if not self._path.is_file():
            return []
        before = json.loads(self._path.read_text())
        rows: list[Row] = before.pop("results")
        if _comparable(before) == _comparable(self._head) and all(set(self._keys) <= row.keys() for row in rows):
            return rows
        self.dropped = len(rows)
        return []

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[key] for key in self._keys)

    def has(self, row: Row) -> bool:
        """Whether there is a row of the same key that was measured at this commit."""
        return any(self._key(one) == self._key(row) and one["commit"] == self._commit for one in self._rows)

    def add(self, rows: Sequence[Row]) -> None:
        """Put rows in the place of those of the same key, and write the file."""
        keys = {self._key(row) for row in rows}
        self._rows = [row for row in self._rows if self._key(row) not in keys]
        self._rows += [row | {"commit": self._commit} for row in rows]
        self._path.write_text(json.dumps(self._head | {"results": self._rows}, indent=1) + "\n")
