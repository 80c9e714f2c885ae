// Rounding: directed modes of f32 and f64 through the host's rounding control, small formats by integer arithmetic, flushing of
// subnormal numbers, and sums whose double rounding is harmless. PTX ISA 9.7.3, "rounding modifiers" and "subnormal numbers".
#pragma once

#include "types.h"

namespace emu {

inline f32 float_of(u32 bits) { return __builtin_bit_cast(f32, bits); }
inline f64 double_of(u64 bits) { return __builtin_bit_cast(f64, bits); }
inline u32 bits_of(f32 x) { return __builtin_bit_cast(u32, x); }
inline u64 bits_of(f64 x) { return __builtin_bit_cast(u64, x); }
inline bool is_nan(f32 x) { return x != x; }
inline bool is_nan(f64 x) { return x != x; }

// Results of f32 instructions that are NaN have these bits; those of f64 keep an operand's. The empty statement keeps the branch,
// which is hardly ever taken, from becoming a conditional move, which would send every result through an integer register.
inline f32 canonical(f32 x) {
  if (__builtin_expect(is_nan(x), 0)) {
    __asm__ volatile("");
    return float_of(0x7fffffff);
  }
  return x;
}
inline f64 canonical(f64 x) { return x; }

template <bool kFlush, class T>
inline T flush(T x) {
  if constexpr (kFlush && std::is_same_v<T, f32>) {
    return (bits_of(x) & 0x7f800000) == 0 ? float_of(bits_of(x) & 0x80000000) : x;
  } else {
    return x;
  }
}

template <bool kSaturate, class T>
inline T saturate(T x) {
  if constexpr (kSaturate) return x > T(0) ? (x < T(1) ? x : T(1)) : T(0);  // NaN and -0 become +0
  else return x;
}

// Does `operation(a, b, c)` with the host's rounding control set. Volatile operands keep the arithmetic between the two switches.
template <Round R, class T, class Operation>
inline auto rounded(Operation operation, T a, T b, T c) {
  if constexpr (R == Round::rn) {
    return operation(a, b, c);
  } else {
    constexpr u32 kControl = R == Round::rm ? 0x2000 : R == Round::rp ? 0x4000 : 0x6000;
    const u32 saved = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr((saved & ~0x6000u) | kControl);
    volatile T x = a, y = b, z = c;
    volatile auto result = operation(x, y, z);
    __builtin_ia32_ldmxcsr(saved);
    return decltype(operation(a, b, c))(result);
  }
}

// A finite magnitude, significand * 2^exponent, as exactly as 64 bits go.
struct Magnitude {
  u64 significand;
  int exponent;
};

inline Magnitude magnitude(f64 x) {
  const u64 bits = bits_of(x);
  const u64 fraction = bits & 0xfffffffffffff;
  const int exponent = int(bits >> 52 & 0x7ff);
  return exponent == 0 ? Magnitude{fraction, -1074} : Magnitude{fraction | 1ull << 52, exponent - 1075};
}

// A small binary format. kFinite: no infinities, one NaN of all ones (e4m3).
template <int kExponentBits_, int kFractionBits_, bool kFinite_ = false>
struct Format {
  static constexpr int kExponentBits = kExponentBits_, kFractionBits = kFractionBits_;
  static constexpr bool kFinite = kFinite_;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr u32 kSignBit = 1u << (kExponentBits + kFractionBits);
  static constexpr u32 kInfinity = ((1u << kExponentBits) - 1) << kFractionBits;
  static constexpr u32 kLargest = kFinite ? (kSignBit - 2) : kInfinity - 1;
  static constexpr u32 kNaN = kSignBit - 1;
};

// Rounds a magnitude to a format's bits. Overflow goes to infinity, with `satfinite` or towards zero to the largest number; a
// format without infinities has NaN in their place.
template <class F>
inline u32 encode_magnitude(bool negative, Magnitude m, Round round, bool satfinite) {
  const u32 sign = negative ? F::kSignBit : 0;
  if (m.significand == 0) return sign;
  const int top = 63 - __builtin_clzll(m.significand);             // value in [2^(top + exponent), 2 * that)
  int scale = top + m.exponent - F::kFractionBits;                  // weight of the result's last place
  constexpr int kLeast = 1 - F::kBias - F::kFractionBits;           // ... of a subnormal result
  if (scale < kLeast) scale = kLeast;
  const int shift = scale - m.exponent;                             // significand bits that are lost
  u64 kept, half = 0, rest = 0;
  if (shift <= 0) {
    kept = m.significand << -shift;
  } else if (shift > 63) {
    kept = 0;
    half = shift == 64 && m.significand >> 63;
    rest = shift == 64 ? m.significand << 1 : m.significand;
  } else {
    kept = m.significand >> shift;
    half = m.significand >> (shift - 1) & 1;
    rest = m.significand & ((1ull << (shift - 1)) - 1);
  }
  bool up = false;
  switch (round) {
    case Round::rn: up = half && (rest || (kept & 1)); break;
    case Round::rna: up = half; break;
    case Round::rz: break;
    case Round::rm: up = negative && (half || rest); break;
    case Round::rp: up = !negative && (half || rest); break;
  }
  kept += up;
  // Adding the exponent to the significand carries into the next binade where rounding filled this one.
  const u64 biased = u64(scale - kLeast) << F::kFractionBits;
  const u64 bits = kept + biased;
  if (bits > F::kLargest) {
    const bool away = negative ? round != Round::rz && round != Round::rp : round != Round::rz && round != Round::rm;
    if (F::kFinite) return sign | (satfinite ? F::kLargest : F::kNaN);
    return sign | (away && !satfinite ? F::kInfinity : F::kLargest);
  }
  return sign | u32(bits);
}

template <class F>
inline u32 encode(f64 x, Round round = Round::rn, bool satfinite = false) {
  const bool negative = bits_of(x) >> 63;
  if (is_nan(x)) return F::kNaN;
  if (__builtin_isinf(x)) {
    return (negative ? F::kSignBit : 0) | (satfinite ? F::kLargest : F::kFinite ? F::kNaN : F::kInfinity);
  }
  return encode_magnitude<F>(negative, magnitude(x), round, satfinite);
}

template <class F>
inline f64 decode(u32 bits) {
  const bool negative = bits & F::kSignBit;
  const u32 exponent = (bits & F::kInfinity) >> F::kFractionBits, fraction = bits & ((1u << F::kFractionBits) - 1);
  f64 x;
  if (F::kFinite ? (bits & F::kNaN) == F::kNaN : (bits & F::kInfinity) == F::kInfinity && fraction) {
    return double_of(0x7fffffffffffffff);
  } else if (!F::kFinite && (bits & F::kInfinity) == F::kInfinity) {
    x = __builtin_inf();
  } else {
    const u32 significand = exponent ? fraction | 1u << F::kFractionBits : fraction;
    const int scale = int(exponent ? exponent : 1) - F::kBias - F::kFractionBits;
    x = f64(significand) * double_of(u64(scale + 1023) << 52);
  }
  return negative ? -x : x;
}

// a + b in f64 rounded to odd: rounding that to at most 51 bits is rounding the exact sum once (Boldo and Melquiond 2008).
inline f64 add_to_odd(f64 a, f64 b) {
  const f64 sum = a + b;
  if (!__builtin_isfinite(sum)) return sum;
  const f64 b_part = sum - a, error = (a - (sum - b_part)) + (b - b_part);
  u64 bits = bits_of(sum);
  if (error != 0 && (bits & 1) == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
  return double_of(bits);
}

}  // namespace emu
