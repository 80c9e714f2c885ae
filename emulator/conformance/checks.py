"""What a check is: an instruction or driver feature, how its output comes about, and how the output is judged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance.exact import FORMATS
from emulator.conformance.values import WIDTHS, WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array


@dataclass(frozen=True)
class Comparison:
    """How far an output may be from what is expected: not at all, or by a number of ulp, relatively or absolutely.

    A NaN equals any NaN: PTX ISA leaves payloads open.
    """

    ulp: float = 0
    relative: float = 0
    absolute: float = 0
    reason: str = ""

    @property
    def exact(self) -> bool:
        """Whether bits have to be equal."""
        return not (self.ulp or self.relative or self.absolute)

    @property
    def words(self) -> str:
        """For the report."""
        parts = [f"{amount:g} {unit}" for unit, amount in self._amounts() if amount]
        return "bits" if self.exact else " + ".join(parts) + f": {self.reason}"

    def _amounts(self) -> Iterable[tuple[str, float]]:
        return (("ulp", self.ulp), ("relative", self.relative), ("absolute", self.absolute))

    def differing(self, kind: str, found: Array, expected: Array, slack: float = 1) -> Array:
        """Indexes at which two outputs of bit patterns differ; `slack` times the tolerance is allowed."""
        different = canonical(kind, found) != canonical(kind, expected)
        if not self.exact:
            got, want = numbers(kind, found), numbers(kind, expected)
            finite = np.isfinite(got) & np.isfinite(want)
            with np.errstate(invalid="ignore", over="ignore"):
                allowed = self.ulp * spacing(kind, want) + self.relative * np.abs(want) + self.absolute
                near = finite & (np.abs(got - want) <= slack * allowed)
            different &= ~near
        return np.flatnonzero(different)


BITS = Comparison()


def spacing(kind: str, values: Array) -> Array:
    """One unit in the last place of each value, in the format."""
    form = FORMATS["f32" if kind == "tf32" else kind.removesuffix("x2")]
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.floor(np.log2(np.abs(np.where(np.isfinite(values), values, 1.0))))
    power = np.maximum(np.where(np.isfinite(power), power, -1e9), 1 - form.bias)
    steps: Array = np.exp2(power - form.mantissa)
    return steps


def numbers(kind: str, words: Array) -> Array:
    """Bit patterns of a floating-point type as float64."""
    if kind in ("f16x2", "bf16x2"):
        return numbers(kind[:-2], np.ascontiguousarray(words).view(np.uint16))
    if kind == "f64":
        return words.view(np.float64)
    if kind in ("f32", "tf32"):
        return words.view(np.float32).astype(np.float64)
    if kind == "f16":
        return words.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    raise ValueError(f"{kind} is compared by bits")


def canonical(kind: str, words: Array) -> Array:
    """Bit patterns with every NaN made the same."""
    if kind in ("f16x2", "bf16x2"):
        return canonical(kind[:-2], np.ascontiguousarray(words).view(np.uint16))
    if kind not in ("f16", "bf16", "f32", "f64", "tf32"):
        return words
    form = FORMATS["f32" if kind == "tf32" else kind]
    dtype = words.dtype.type
    magnitude = words & dtype((1 << (form.width - 1)) - 1)
    made = words.copy()
    made[magnitude > dtype(((1 << form.exponent) - 1) << form.mantissa)] = dtype(form.nan)
    return made


def digest(kind: str, words: Array) -> str:
    """The SHA-256 of an output, the same for all NaNs."""
    return hashlib.sha256(np.ascontiguousarray(canonical(kind, words)).tobytes()).hexdigest()


def as_words(kind: str, values: Array) -> Array:
    """An output as a flat array of bit patterns of its type."""
    return np.ascontiguousarray(values).reshape(-1).view(WORDS[WIDTHS[kind]])


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: Unique in its family.
        covers: The instructions or driver functions that it exercises.
        run: Gives the output on the bench's device.
        kind: The output's type: `u32`, `f32`, `f16x2`, ...
        expected: What an independent calculation gives; None where only the GPU can say.
        inputs: Says the inputs behind an output, for a report of a difference.
        alone: Runs in a process of its own, for it leaves the context unusable.
    """

    name: str
    covers: tuple[str, ...]
    run: Callable[[Bench], Array]
    kind: str = "u32"
    expected: Callable[[], Array] | None = None
    comparison: Comparison = BITS
    inputs: Callable[[int], str] | None = None
    alone: bool = False


@dataclass
class Family:
    """Checks that share a process."""

    name: str
    checks: list[Check] = field(default_factory=list)

    def add(
        self,
        name: str,
        covers: str | Iterable[str],
        run: Callable[[Bench], Array],
        kind: str = "u32",
        expected: Callable[[], Array] | None = None,
        comparison: Comparison = BITS,
        alone: bool = False,
    ) -> None:
        """Adds a check that is not generated from a table; `covers` may be words with spaces between."""
        words = tuple(covers.split()) if isinstance(covers, str) else tuple(covers)
        self.checks.append(Check(name, words, run, kind, expected, comparison, alone=alone))

    def validate(self) -> None:
        """Names are unique.

        Raises:
            ValueError: Two checks have the same name.
        """
        names = [check.name for check in self.checks]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"{self.name}: two checks named {', '.join(sorted(twice))}")
