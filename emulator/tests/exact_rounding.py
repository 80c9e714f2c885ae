"""Binary floating-point formats in rational numbers: a second opinion on everything that emulator/scalar rounds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

__all__ = ["BF16", "E4M3", "E5M2", "F16", "F32", "F64", "TF32", "Format"]


@dataclass(frozen=True, slots=True)
class Format:
    """A format with infinities and NaN, or without infinities (`finite`)."""

    exponent_bits: int
    fraction_bits: int
    finite: bool = False

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.exponent_bits + self.fraction_bits)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def largest(self) -> int:
        return self.sign - 2 if self.finite else self.infinity - 1

    def is_finite(self, bits: int) -> bool:
        return bits & (self.sign - 1) <= self.largest

    def value(self, bits: int) -> Fraction:
        """The number that finite bits stand for."""
        exponent, fraction = (bits & self.infinity) >> self.fraction_bits, bits & ((1 << self.fraction_bits) - 1)
        significand = fraction | (1 << self.fraction_bits) if exponent else fraction
        scale = max(exponent, 1) - self.bias - self.fraction_bits
        size = Fraction(significand) * (Fraction(2) ** scale)
        return -size if bits & self.sign else size

    def round(self, x: Fraction, mode: str = "rn", negative_zero: bool = False) -> int:
        """Bits of the number that x is rounded to; overflow as IEEE 754 has it."""
        negative = x < 0 or (x == 0 and negative_zero)
        size, sign = abs(x), self.sign if negative else 0
        # The magnitudes of a format are in the order of their bits: look for the largest that is not above x.
        low, high = 0, self.largest + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.value(middle) <= size else (low, middle)
        below = self.value(low)
        if below == size:
            return sign | low
        step = self._step(low)
        away = {
            "rn": 2 * (size - below) > step or (2 * (size - below) == step and bool(low & 1)),
            "rna": 2 * (size - below) >= step, "rz": False, "rm": negative, "rp": not negative,
        }[mode]  # fmt: skip
        return sign | (low + away)

    def _step(self, low: int) -> Fraction:
        exponent = max((low & self.infinity) >> self.fraction_bits, 1)
        return Fraction(2) ** (exponent - self.bias - self.fraction_bits)


F16, BF16, TF32 = Format(5, 10), Format(8, 7), Format(8, 10)
F32, F64 = Format(8, 23), Format(11, 52)
E4M3, E5M2 = Format(4, 3, finite=True), Format(5, 2)
