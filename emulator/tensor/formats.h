// Number formats of the matrix units, and how they become doubles and back: f16, bf16, tf32, e4m3, e5m2 and f32 (PTX ISA 5.2.3).
// Every value of these formats is a double exactly.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace emu {

struct FloatFormat {
  int exponent_bits, fraction_bits;
  bool has_infinity;  // e4m3 has none: its largest exponent holds numbers, and all ones is NaN

  constexpr int bits() const { return 1 + exponent_bits + fraction_bits; }
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int min_exponent() const { return 1 - bias(); }  // of a normal number; subnormals share it
  constexpr uint32_t nan() const { return (1u << (exponent_bits + fraction_bits)) - 1; }  // the canonical one: all ones, no sign
  constexpr uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
};

inline constexpr FloatFormat kF16{5, 10, true}, kBf16{8, 7, true}, kF32{8, 23, true}, kE4m3{4, 3, false}, kE5m2{5, 2, true};

// A tf32 operand is a 32-bit register whose low 13 bits the unit does not look at; what is left is an f32.
inline constexpr uint32_t kTf32Mask = 0xffffe000;

enum class Rounding { kNearestEven, kTowardZero };

inline constexpr int kDoubleBias = 1023, kDoubleFractionBits = 52;

// 2 to the `exponent`, which is that of a normal double.
constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + kDoubleBias) << kDoubleFractionBits);
}

constexpr double decode(FloatFormat format, uint32_t bits) {
  const int F = format.fraction_bits;
  const uint32_t fraction_mask = (1u << F) - 1, exponent_mask = (1u << format.exponent_bits) - 1;
  const uint32_t fraction = bits & fraction_mask, exponent = bits >> F & exponent_mask;
  const bool negative = bits >> (format.bits() - 1) & 1;
  double magnitude = 0;
  if (exponent == exponent_mask && (format.has_infinity || fraction == fraction_mask)) {
    using Limits = std::numeric_limits<double>;
    magnitude = format.has_infinity && !fraction ? Limits::infinity() : Limits::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = fraction * power_of_two(format.min_exponent() - F);
  } else {
    const auto rebiased = static_cast<uint64_t>(static_cast<int>(exponent) - format.bias() + kDoubleBias);
    const uint64_t widened = static_cast<uint64_t>(fraction) << (kDoubleFractionBits - F);
    magnitude = std::bit_cast<double>(rebiased << kDoubleFractionBits | widened);
  }
  return negative ? -magnitude : magnitude;
}

// A NaN becomes the canonical one. What is too large becomes infinity (NaN where there is none) when rounding to nearest, and the
// largest number when rounding toward zero.
constexpr uint32_t encode(FloatFormat format, double value, Rounding rounding) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << (format.bits() - 1);
  if (value != value) return format.nan();
  const uint32_t too_large = format.has_infinity ? format.infinity() : format.nan();
  const int exponent = static_cast<int>(bits >> kDoubleFractionBits & 0x7ff) - kDoubleBias;
  if (exponent > kDoubleBias) return sign | too_large;
  if (exponent == -kDoubleBias) return sign;  // zero, or a double far below every format's least number

  const uint64_t significand = 1ull << kDoubleFractionBits | (bits & ((1ull << kDoubleFractionBits) - 1));
  const int below_normal = std::max(0, format.min_exponent() - exponent);
  const int dropped = std::min(63, kDoubleFractionBits - format.fraction_bits + below_normal);
  uint64_t kept = significand >> dropped;
  const uint64_t rest = significand & ((1ull << dropped) - 1), half = 1ull << (dropped - 1);
  if (rounding == Rounding::kNearestEven && (rest > half || (rest == half && kept & 1))) ++kept;
  // The hidden bit of `kept`, and a carry of the rounding, go into the exponent.
  const int biased = std::max(exponent, format.min_exponent()) + format.bias();
  const uint64_t result = kept + (static_cast<uint64_t>(biased - 1) << format.fraction_bits);
  if (result < too_large) return sign | static_cast<uint32_t>(result);
  return sign | (rounding == Rounding::kNearestEven ? too_large : too_large - 1);
}

}  // namespace emu
