"""Floating-point arithmetic in exact numbers: what a correctly rounded instruction has to give, for any format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

NEAREST, ZERO, DOWN, UP, AWAY = "rn", "rz", "rm", "rp", "rna"


@dataclass(frozen=True)
class Number:
    """A number with a sign for its zero; `magnitude` None is NaN, -1 is infinity."""

    negative: bool
    magnitude: Fraction | None

    @property
    def nan(self) -> bool:
        """Whether it is no number."""
        return self.magnitude is None

    @property
    def infinite(self) -> bool:
        """Whether it is an infinity."""
        return self.magnitude == -1

    @property
    def value(self) -> Fraction:
        """The finite value."""
        assert self.magnitude is not None
        assert self.magnitude >= 0
        return -self.magnitude if self.negative else self.magnitude


NAN = Number(False, None)


def infinity(negative: bool) -> Number:
    """An infinity."""
    return Number(negative, Fraction(-1))


def round_to_integer(value: Fraction, rounding: str, negative: bool = False) -> int:
    """A magnitude as an integer; `negative` turns the directed roundings around."""
    floor = math.floor(value)
    rest = value - floor
    if rest == 0:
        return floor
    half = Fraction(1, 2)
    up = {
        NEAREST: rest > half or (rest == half and floor % 2 == 1),
        AWAY: rest >= half,
        ZERO: False,
        DOWN: negative,
        UP: not negative,
    }[rounding]
    return floor + up


def _log2(value: Fraction) -> int:
    """floor(log2(value)) of a positive number."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if value >= Fraction(2) ** guess else guess - 1


@dataclass(frozen=True)
class Format:
    """A binary floating-point format; `infinite` False: no infinities and one NaN (e4m3)."""

    exponent: int
    mantissa: int
    nan: int
    infinite: bool = True

    @property
    def width(self) -> int:
        """All its bits."""
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """Of the exponent."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def largest(self) -> int:
        """Bits of the largest finite magnitude."""
        return (((1 << self.exponent) - 1) << self.mantissa) - 1 if self.infinite else self.nan - 1

    def decode(self, bits: int, flush: bool = False) -> Number:
        """The number of a bit pattern; `flush`: subnormals are zeros of their sign."""
        negative = bool(bits >> (self.width - 1) & 1)
        magnitude = bits & ((1 << (self.width - 1)) - 1)
        if magnitude > self.largest:
            return infinity(negative) if self.infinite and magnitude == self.largest + 1 else NAN
        power, fraction = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        if power == 0:
            power, whole = 1, 0 if flush else fraction
        else:
            whole = fraction | 1 << self.mantissa
        return Number(negative, Fraction(whole) * Fraction(2) ** (power - self.bias - self.mantissa))

    def encode(self, number: Number, rounding: str = NEAREST, flush: bool = False, finite: bool = False) -> int:
        """The nearest bit pattern; `finite`: what is too large becomes the largest number."""
        sign = int(number.negative) << (self.width - 1)
        if number.magnitude is None:
            return self.nan
        if number.infinite:
            return sign | (self.largest if finite or not self.infinite else self.largest + 1)
        if number.magnitude == 0:
            return sign
        power = max(_log2(number.magnitude), 1 - self.bias)
        steps = number.magnitude / Fraction(2) ** (power - self.mantissa)
        made = ((power + self.bias - 1) << self.mantissa) + round_to_integer(steps, rounding, number.negative)
        if made > self.largest:
            inward = rounding == ZERO or rounding == (UP if number.negative else DOWN)
            return sign | (self.largest if finite or inward or not self.infinite else self.largest + 1)
        if flush and made < 1 << self.mantissa:
            return sign
        return sign | made


F16 = Format(5, 10, 0x7FFF)
BF16 = Format(8, 7, 0x7FFF)
TF32 = Format(8, 10, 0x3FFFF)
F32 = Format(8, 23, 0x7FFFFFFF)
F64 = Format(11, 52, 0x7FF8000000000000)
E4M3 = Format(4, 3, 0x7F, infinite=False)
E5M2 = Format(5, 2, 0x7F)
FORMATS = {"f16": F16, "bf16": BF16, "tf32": TF32, "f32": F32, "f64": F64, "e4m3": E4M3, "e5m2": E5M2}


def negate(x: Number) -> Number:
    """-x."""
    return x if x.nan else Number(not x.negative, x.magnitude)


def _zero(negative: bool) -> Number:
    return Number(negative, Fraction(0))


def _signed(value: Fraction, zero_negative: bool) -> Number:
    return _zero(zero_negative) if value == 0 else Number(value < 0, abs(value))


def multiply(a: Number, b: Number) -> Number:
    """a * b, exactly."""
    if a.nan or b.nan:
        return NAN
    negative = a.negative != b.negative
    if a.infinite or b.infinite:
        return NAN if a.magnitude == 0 or b.magnitude == 0 else infinity(negative)
    return _signed(a.value * b.value, negative)


def add(a: Number, b: Number, rounding: str = NEAREST) -> Number:
    """a + b, exactly; the rounding chooses the sign of a zero that cancels (IEEE 754, 6.3)."""
    if a.nan or b.nan or (a.infinite and b.infinite and a.negative != b.negative):
        return NAN
    if a.infinite or b.infinite:
        return a if a.infinite else b
    return _signed(a.value + b.value, a.negative if a.negative == b.negative else rounding == DOWN)


def fused(a: Number, b: Number, c: Number, rounding: str = NEAREST) -> Number:
    """a * b + c, exactly."""
    return add(multiply(a, b), c, rounding)


def divide(a: Number, b: Number) -> Number:
    """a / b, exactly."""
    negative = a.negative != b.negative
    if a.nan or b.nan or (a.infinite and b.infinite) or (a.magnitude == 0 and b.magnitude == 0):
        return NAN
    if a.infinite or b.magnitude == 0:
        return infinity(negative)
    return _zero(negative) if b.infinite else _signed(a.value / b.value, negative)


def root(a: Number) -> Number:
    """The square root to 120 bits, made odd where it is not exact, so that any rounding of it is right."""
    if a.nan or a.magnitude == 0:
        return a
    if a.negative:
        return NAN
    if a.infinite:
        return a
    scale = 240 + 2 * abs(_log2(a.value))
    scaled = a.value * Fraction(2) ** (2 * scale)
    whole = math.isqrt(math.floor(scaled))
    exact = Fraction(whole * whole) == scaled
    return Number(False, (Fraction(whole) if exact else whole + Fraction(1, 2)) / Fraction(2) ** scale)


def saturate(x: Number) -> Number:
    """`.sat`: into [0, 1], NaN to 0."""
    if x.nan or x.negative:
        return _zero(False)
    return Number(False, Fraction(1)) if x.infinite or x.value > 1 else x


def less(a: Number, b: Number) -> bool:
    """a < b of numbers that are not NaN; zeros are equal."""
    return order(a) < order(b)


def order(a: Number) -> tuple[int, Fraction]:
    """A key that sorts numbers which are not NaN."""
    if a.infinite:
        return (-1 if a.negative else 1, Fraction(0))
    return (0, a.value)


def smallest(a: Number, b: Number, nan: bool = False, largest: bool = False) -> Number:
    """min or max: NaN loses, or wins with `.NaN`; -0 is less than +0 (PTX ISA 9.7.3, min)."""
    if a.nan or b.nan:
        if nan or (a.nan and b.nan):
            return NAN
        return b if a.nan else a
    key_a, key_b = ((*order(x), not x.negative) for x in (a, b))
    return a if (key_a > key_b if largest else key_a <= key_b) else b


def truncated(kind_bits: int, signed: bool, x: Number, rounding: str, wide: bool) -> int:
    """A float as an integer, clamped (PTX ISA 9.7.9, cvt); `wide`: NaN gives the top bit instead of 0."""
    low, high = (-(1 << (kind_bits - 1)), (1 << (kind_bits - 1)) - 1) if signed else (0, (1 << kind_bits) - 1)
    if x.nan:
        return 1 << (kind_bits - 1) if wide else 0
    if x.infinite:
        found = low if x.negative else high
    else:
        found = round_to_integer(abs(x.value), rounding, x.negative)
        found = max(low, min(high, -found if x.negative else found))
    return found & ((1 << kind_bits) - 1)


def rounded(x: Number, rounding: str) -> Number:
    """x rounded to an integral value, with its sign kept."""
    if x.nan or x.infinite:
        return x
    return Number(x.negative, Fraction(round_to_integer(abs(x.value), rounding, x.negative)))
