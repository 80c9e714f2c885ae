"""What batches took, kept from one start of a server to the next: a file beside the cache of compiled kernels.

A curve of costs belongs to a kind of device, a net as it is run, and the rows of its largest batch; not to weights, which take the
same time whatever they are, so that a net that was trained anew begins with what is known of the one before. A file that cannot be
used is as good as none: costs begin with the warm-up's then.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dnncore.cache import write_atomically
from dnncore.version import __version__
from dnnserve.envelope import ModelKey
from dnnserve.scheduling.costs import Curve, Learned

__all__ = ["FILE_NAME", "SavedCosts"]

_log = logging.getLogger(__name__)

FILE_NAME = "serving-costs.json"

_FORMAT = 1
_MOST_CURVES = 256
"""Those that were saved last are kept: 1 KB each."""
_MOST_BYTES = 1 << 20
_MOST_POINTS = 64
_MOST_NS = 3600 * 10**9
_MOST_SCATTER = 1e3
_MOST_NUMBER = 1 << 62


class _Key(NamedTuple):
    """Whose batches they are: they take about as long wherever this is the same. Immutable."""

    version: str
    device: str
    terms: str
    net: str
    max_batch_rows: int


@dataclass(frozen=True, slots=True)
class _Saved:
    """What is known, and when it was saved: seconds since 1970. Immutable."""

    learned: Learned
    saved_s: int


class SavedCosts:
    """What is known of batches from earlier starts, and what this one will leave. Thread-safe: `_lock` guards `_nets` and `_known`,
    `_saving` the file, `_told` and `_unwritten`.

    Two servers that write in the same moment leave a whole file, in which the curves of one of them are missing until it writes
    again.

    Args:
        path: The file; it need not be there.
        devices: What the hardware of each device calls itself, by the device's label.
        terms: What else batches depend on, in words.
        clock: Seconds since 1970; only compared with what other starts have written.
    """

    def __init__(
        self, path: Path, devices: Mapping[str, str], terms: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._devices = dict(devices)
        self._terms = terms
        self._clock = clock
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._nets: dict[ModelKey, str] = {}
        self._told: set[tuple[str, int | None]] = set()
        self._unwritten = False  # something has been learned since the file was written
        self._known = self._read()
        others = sum(key.version != __version__ for key in self._known)
        if others:
            _log.info("%s: %d curves of other versions of dnncore are left alone", path, others)

    def enter(self, model: ModelKey, net: str) -> None:
        """A version is there: its net's digest, as `ServedModel` has it; an empty one keeps it out of here."""
        if net:
            with self._lock:
                self._nets[model] = net

    def leave(self, model: ModelKey) -> None:
        """It is gone. A second call does nothing."""
        with self._lock:
            self._nets.pop(model, None)

    def recall(
        self, device: str, model: ModelKey, max_batch_rows: int, timings_ns: Mapping[int, int]
    ) -> Learned | None:
        """What was learned of a model's batches on a device, as `dnnserve.scheduling.costs.Recall` has it."""
        with self._lock:
            key = self._key(device, model, max_batch_rows)
            saved = None if key is None else self._known.get(key)
        if saved is None:
            return None
        if saved.learned.contradicted(timings_ns):
            _log.warning(
                "what batches of %s took on %s before holds no more: they take twice as long; costs begin with the warm-up's",
                *(model, device),
            )
            return None
        return saved.learned

    def save(self, curves: Mapping[ModelKey, Mapping[str, Curve]]) -> None:
        """Keep what batches in service have said, beside what others have saved meanwhile.

        A file that cannot be written is logged, once for each reason.

        Args:
            curves: By model and device, as the scheduler has them.
        """
        now_s = int(self._clock())
        fresh: dict[_Key, _Saved] = {}
        with self._saving:
            with self._lock:
                for model, by_device in curves.items():
                    for device, curve in by_device.items():
                        key, learned = self._key(device, model, curve.sizes[-1]), curve.learned()
                        if key is None or learned is None:
                            continue
                        there = fresh.get(key)  # of another device of this kind
                        if there is None or _batches(there.learned) < _batches(learned):
                            fresh[key] = _Saved(learned, now_s)
                self._unwritten |= any(_differs(self._known.get(key), saved) for key, saved in fresh.items())
                self._known |= fresh
            if self._unwritten:
                self._write(fresh)

    def _write(self, fresh: Mapping[_Key, _Saved]) -> None:
        merged = self._read() | dict(fresh)
        newest = sorted(merged, key=lambda key: (merged[key].saved_s, key in fresh), reverse=True)[:_MOST_CURVES]
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path, _written({key: merged[key] for key in newest}))
            self._unwritten = False
        except OSError as error:
            self._complain("what batches take cannot be saved", error)

    def _key(self, device: str, model: ModelKey, max_batch_rows: int) -> _Key | None:
        net = self._nets.get(model)
        if net is None or device not in self._devices:
            return None
        return _Key(__version__, self._devices[device], self._terms, net, max_batch_rows)

    def _read(self) -> dict[_Key, _Saved]:
        """What the file has; nothing where it cannot be used."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
            return _parsed(data)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._complain("what batches took before cannot be read, and costs begin with the warm-up's", error)
        except (ValueError, RecursionError) as error:
            self._complain(f"{self._path} is damaged and will be replaced, and costs begin with the warm-up's", error)
        return {}

    def _complain(self, trouble: str, error: Exception) -> None:
        kind = trouble, getattr(error, "errno", None)  # not its text, which may have another name of a file each time
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("%s (--no-save-costs does without): %s", trouble, error)


def _batches(learned: Learned) -> int:
    return sum(batches for _, _, batches in learned.points)


def _differs(before: _Saved | None, now: _Saved) -> bool:
    return before is None or before.learned != now.learned


def _written(curves: Mapping[_Key, _Saved]) -> bytes:
    entries = [
        key._asdict() | {"saved_s": saved.saved_s, "scatter": saved.learned.scatter, "points": saved.learned.points}
        for key, saved in curves.items()
    ]
    return json.dumps({"format": _FORMAT, "curves": entries}).encode()


def _parsed(data: bytes) -> dict[_Key, _Saved]:
    """The curves of a file.

    Raises:
        ValueError: it is not one that `_written` has made; the message says what is wrong with it.
    """
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} B")
    document = json.loads(data)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(f"it has not the format {_FORMAT}")
    entries = document.get("curves")
    if not isinstance(entries, list) or len(entries) > _MOST_CURVES:
        raise ValueError(f"it has no list of at most {_MOST_CURVES} curves")
    return dict(_entry(number, entry) for number, entry in enumerate(entries))


def _entry(number: int, entry: Any) -> tuple[_Key, _Saved]:
    try:
        version, device, terms, net = (_text(entry[name]) for name in ("version", "device", "terms", "net"))
        key = _Key(version, device, terms, net, int(_number(entry["max_batch_rows"], 1)))
        learned = Learned(_points(entry["points"]), _number(entry["scatter"], 0, _MOST_SCATTER))
        return key, _Saved(learned, int(_number(entry["saved_s"], 0)))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"curve {number} is malformed: {type(error).__name__}: {error}") from error


def _points(points: Any) -> tuple[tuple[int, float, int], ...]:
    if not 0 < len(points) <= _MOST_POINTS:
        raise ValueError(f"it has {len(points)} points, which must be 1 to {_MOST_POINTS}")
    return tuple(
        (int(_number(rows, 1)), _number(mean_ns, 1, _MOST_NS), int(_number(batches, 1)))
        for rows, mean_ns, batches in points
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")  # noqa: TRY004 - as all that is malformed
    return value


def _number(value: Any, low: float, high: float = _MOST_NUMBER) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    if not low <= value <= high:
        raise ValueError(f"{value} is not within {low} to {high}")
    return value
