// cvt between all types (PTX ISA 9.7.9.21) and cvt.pack (9.7.9.22).
#pragma once

#include "floating.h"
#include "half.h"
#include "integer.h"

namespace emu {

template <class T>
inline constexpr bool kIsFloating = std::is_floating_point_v<T> || kIsHalf<T>;

// To an integral value, in f64, which holds those of all floating types.
template <Round R>
inline f64 to_integral(f64 x) {
  if constexpr (R == Round::rn) return __builtin_roundeven(x);
  else if constexpr (R == Round::rz) return __builtin_trunc(x);
  else if constexpr (R == Round::rm) return __builtin_floor(x);
  else return __builtin_ceil(x);
}

// Floating to integer clamps. NaN becomes zero, or the sign bit alone where either side has 64 bits.
template <class To, class From, Round R, bool kFlush>
inline To floating_to_integer(From a) {
  const f64 x = to_integral<R>(to_double(flush<kFlush>(a)));
  if (is_nan(x)) return sizeof(From) < 8 && sizeof(To) < 8 ? To(0) : To(Unsigned<To>(1) << (kBits<To> - 1));
  constexpr f64 kBeyond = kSigned<To> ? f64(u64(1) << (kBits<To> - 1)) : f64(u64(1) << (kBits<To> - 1)) * 2;
  if (x >= kBeyond) return kMax<To>;
  if (x < f64(kMin<To>)) return kMin<To>;
  return To(x);
}

template <class To, class From, Round R, bool kSaturate>
inline To integer_to_floating(From a) {
  if constexpr (kIsHalf<To>) {
    const bool negative = a < 0;
    const u64 size = negative ? u64(0) - u64(s64(a)) : u64(a);
    const To result{u16(encode_magnitude<typename FormatOf<To>::type>(negative, {size, 0}, R, false))};
    return kSaturate ? half_of<To>(saturate<true>(to_double(result))) : result;
  } else {
    return saturate<kSaturate>(To(rounded<R>([](From x, From, From) { return To(x); }, a, a, a)));
  }
}

// To f16 `.ftz` does nothing, which the ISA does not say: ptxas makes the same instruction with and without it, and an H200 rounds
// a subnormal f32 up or down to the least f16. To bf16, whose range is that of f32, ptxas passes it on.
template <class To, class From, Round R, bool kIntegral, bool kFlush, bool kSaturate>
inline To floating_to_floating(From a) {
  f64 x = to_double(flush<kFlush && !std::is_same_v<To, f16>>(a));
  if constexpr (kIntegral) x = to_integral<R>(x);
  x = saturate<kSaturate>(x);
  if constexpr (std::is_same_v<To, f64>) {
    return x;
  } else if constexpr (std::is_same_v<To, f32>) {
    return canonical(flush<kFlush>(f32(rounded<R>([](f64 y, f64, f64) { return f32(y); }, x, x, x))));
  } else if constexpr (R == Round::rn && (std::is_same_v<From, f32> || kIsHalf<From>)) {
    return half_of<To>(f32(x));
  } else {
    return half_of<To>(x, R);
  }
}

// cvt{.rounding}{.ftz}{.sat}.To.From; kIntegral: the rounding modifier is one of .rni .rzi .rmi .rpi.
template <class To, class From, Round R, bool kIntegral, bool kFlush, bool kSaturate>
inline To convert(From a) {
  if constexpr (kIsFloating<From> && kIsFloating<To>) {
    return floating_to_floating<To, From, R, kIntegral, kFlush, kSaturate>(a);
  } else if constexpr (kIsFloating<From>) {
    return floating_to_integer<To, From, R, kFlush>(a);
  } else if constexpr (kIsFloating<To>) {
    return integer_to_floating<To, From, R, kSaturate>(a);
  } else if constexpr (kSaturate) {
    return __int128(a) < __int128(kMin<To>) ? kMin<To> : __int128(a) > __int128(kMax<To>) ? kMax<To> : To(a);
  } else {
    return To(a);
  }
}

// To a small format: f16, bf16, tf32, e4m3, e5m2. tf32 lies in the upper bits of an f32.
template <class To, Round R, bool kRelu, bool kSatfinite>
inline To narrow(f64 x) {
  if (kRelu && (x < 0 || (x == 0 && __builtin_signbit(x)))) x = 0;
  const u32 bits = encode<typename FormatOf<To>::type>(x, R, kSatfinite);
  if constexpr (std::is_same_v<To, tf32>) return {is_nan(x) ? 0x7fffffffu : bits << 13};
  else return {decltype(To::bits)(bits)};
}

// Two numbers to a pair: `a` becomes the upper half.
template <class To, Round R, bool kRelu, bool kSatfinite, class From>
inline To narrow_pair(From a, From b) {
  using Half = decltype(To::low);
  return {narrow<Half, R, kRelu, kSatfinite>(to_double(b)), narrow<Half, R, kRelu, kSatfinite>(to_double(a))};
}

template <class To, Round R, bool kRelu, bool kSatfinite, class From>
inline To convert_pair(Pair<From> a) {
  return narrow_pair<To, R, kRelu, kSatfinite>(a.high, a.low);
}

// cvt.pack.sat: a and b, clamped to kWidth bits, above one another; what was in c moves up.
template <int kWidth, bool kToSigned>
inline u32 convert_pack(s32 a, s32 b, u32 c) {
  constexpr s32 kLow = kToSigned ? -(1 << (kWidth - 1)) : 0, kHigh = kToSigned ? (1 << (kWidth - 1)) - 1 : (1 << kWidth) - 1;
  const auto clamp = [](s32 x) { return u32(x < kLow ? kLow : x > kHigh ? kHigh : x) & ((1u << kWidth) - 1); };
  return u32(u64(c) << 2 * kWidth) | clamp(a) << kWidth | clamp(b);
}

}  // namespace emu
