"""Reports: what a run found, as JSON, and how two runs differ."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.conformance.checks import as_words, digest
from emulator.conformance.scalar import show
from emulator.conformance.values import WIDTHS, WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from emulator.conformance.checks import Check
    from emulator.conformance.values import Array

PASSED, FAILED, RECORDED, ERROR, SKIPPED = "passed", "failed", "recorded", "error", "skipped"
BAD = (FAILED, ERROR)
SLACK = 2  # a recorded output may be off by the tolerance in one direction, a later one in the other
Record = dict[str, Any]


class SkippedCheck(Exception):  # noqa: N818 - not an error: the machine lacks what the check needs
    """The machine cannot run a check."""


@dataclass(frozen=True)
class Reference:
    """A recorded report, to compare with."""

    title: str
    records: dict[tuple[str, str], Record]

    def find(self, family: str, check: str) -> Record | None:
        """What was recorded of a check; None if nothing that can be compared with."""
        found = self.records.get((family, check))
        return found if found and "sha256" in found else None


def pack(words: Array) -> str:
    """An output as text."""
    return base64.b64encode(zlib.compress(words.tobytes(), 9)).decode()


def unpack(text: str, kind: str) -> Array:
    """An output from its text."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=WORDS[WIDTHS[kind]])


def judge(family: str, check: Check, output: Array, reference: Reference | None) -> Record:
    """The record of a check that ran to its end."""
    words = as_words(check.kind, output)
    record: Record = {"status": RECORDED, "kind": check.kind, "count": len(words), "sha256": digest(check.kind, words)}
    expected = None if check.expected is None else as_words(check.kind, check.expected())
    if expected is not None:
        message = difference(check, words, expected, 1, "expected")
        record |= {"status": FAILED, "message": message} if message else {"status": PASSED}
    # What the oracle already says need not be stored: bits that agree with it are its bits.
    if not (check.comparison.exact and record["status"] == PASSED):
        record["output"] = pack(words)
    recorded = reference.find(family, check.name) if reference else None
    if recorded is not None and not (check.comparison.exact and recorded["sha256"] == record["sha256"]):
        assert reference is not None
        other = unpack(recorded["output"], check.kind) if "output" in recorded else expected
        if other is None:
            message = "its bits differ from the recorded ones, which the report does not hold"
        else:
            message = difference(check, words, other, SLACK, reference.title)
            if not message and check.comparison.exact:
                message = f"the oracle has changed since {reference.title}"
        if message:
            record |= {"status": FAILED, "message": message}
        elif record["status"] == FAILED:
            record |= {"status": PASSED, "message": f"as {reference.title}, not as expected: {record['message']}"}
        else:
            record["status"] = PASSED
    elif recorded is not None:
        record["status"] = PASSED
    return record


def difference(check: Check, found: Array, wanted: Array, slack: float, title: str) -> str:
    """Where two outputs differ, in words; empty if they do not."""
    if len(found) != len(wanted):
        return f"{len(found)} values, {title} has {len(wanted)}"
    places = check.comparison.differing(check.kind, found, wanted, slack)
    if not len(places):
        return ""
    packed = check.kind.endswith("x2") and check.kind[:-2] in ("f16", "bf16")
    lines = [f"{len(places)} of {len(wanted) * (2 if packed else 1)} values differ from {title}"]
    for place in places[:4]:
        index = int(place) // 2 if packed else int(place)
        inputs = f" for {check.inputs(index)}" if check.inputs else ""
        values = f"{show(check.kind, int(found[index]))}, {title} {show(check.kind, int(wanted[index]))}"
        lines.append(f"[{index}]{inputs}: {values}")
    return "\n".join(lines)


def text(data: Record) -> str:
    """A report as JSON, with a line for each check."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items() if key != "families"]
    families = [
        f"  {json.dumps(family)}: {{\n"
        + ",\n".join(f"   {json.dumps(name)}: {json.dumps(record)}" for name, record in checks.items())
        + "\n  }"
        for family, checks in data["families"].items()
    ]
    lines.append(' "families": {\n' + ",\n".join(families) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load(path: Path) -> Reference:
    """A report from its file."""
    data = json.loads(path.read_text())
    records = {(family, name): record for family, checks in data["families"].items() for name, record in checks.items()}
    return Reference(data["device"], records)


def summary(families: dict[str, dict[str, Record]]) -> dict[str, int]:
    """How many checks ended how."""
    counts: dict[str, int] = {}
    for checks in families.values():
        for record in checks.values():
            counts[record["status"]] = counts.get(record["status"], 0) + 1
    return counts


def print_failures(families: dict[str, dict[str, Record]], say: Callable[[str], None]) -> None:
    """The checks that failed, with their first differences."""
    for family, checks in families.items():
        for name, record in checks.items():
            if record["status"] in BAD:
                say(f"{record['status'].upper()} {family}: {name}")
                for line in str(record.get("message", "")).splitlines():
                    say(f"    {line}")


def print_uncovered(opcodes: Iterable[str], say: Callable[[str], None]) -> None:
    """The emulator's instructions that no check covers."""
    missing = sorted(opcodes)
    if missing:
        say(f"{len(missing)} instructions of the emulator without a check: {' '.join(missing)}")
