// f16 and bf16: conversions from and to f32 and f64, and the arithmetic of PTX ISA 9.7.4, every operation rounded once.
#pragma once

#include "rounding.h"

namespace emu {

using F16Format = Format<5, 10>;
using BF16Format = Format<8, 7>;
using TF32Format = Format<8, 10>;
using E4M3Format = Format<4, 3, true>;
using E5M2Format = Format<5, 2>;

template <class T>
struct FormatOf;
template <>
struct FormatOf<f16> { using type = F16Format; };
template <>
struct FormatOf<bf16> { using type = BF16Format; };
template <>
struct FormatOf<tf32> { using type = TF32Format; };
template <>
struct FormatOf<e4m3> { using type = E4M3Format; };
template <>
struct FormatOf<e5m2> { using type = E5M2Format; };

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

inline f32 to_float(f16 x) {
  _Float16 h;
  __builtin_memcpy(&h, &x, 2);
  return h;
}
inline f32 to_float(bf16 x) { return float_of(u32(x.bits) << 16); }
inline f64 to_double(f32 x) { return x; }
inline f64 to_double(f64 x) { return x; }
template <class T>
  requires kIsHalf<T>
inline f64 to_double(T x) {
  return to_float(x);
}
template <class T>
  requires(!kIsHalf<T> && !std::is_arithmetic_v<T>)
inline f64 to_double(T x) {
  return decode<typename FormatOf<T>::type>(x.bits);
}

template <class H>
  requires kIsHalf<H>
inline H half_of(f64 x, Round round = Round::rn) {
  return {u16(encode<typename FormatOf<H>::type>(x, round))};
}

// The common conversions, without the detour over integers.
template <class H>
  requires kIsHalf<H>
inline H half_of(f32 x) {
  if (is_nan(x)) return {0x7fff};
  if constexpr (std::is_same_v<H, f16>) {
    const _Float16 h = x;
    return get<f16>(h);
  } else {
    const u32 bits = bits_of(x);
    return {u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  }
}

// ... on registers' bits. Kernels have thousands of them, and a compiler finds these by their names alone.
inline f32 f32_of_f16(b16 a) { return canonical(to_float(f16{a})); }
inline f32 f32_of_bf16(b16 a) { return canonical(to_float(bf16{a})); }
inline b16 f16_of_f32(f32 a) { return half_of<f16>(a).bits; }
inline b16 bf16_of_f32(f32 a) { return half_of<bf16>(a).bits; }

template <class H>
inline bool half_is_nan(H x) {
  return (x.bits & 0x7fff) > FormatOf<H>::type::kInfinity;
}

// Applies an operation on single halves to one or two of them.
template <class T, class Operation>
inline T halves(Operation operation, T a, T b = T{}, T c = T{}) {
  if constexpr (kIsPair<T>) return {operation(a.low, b.low, c.low), operation(a.high, b.high, c.high)};
  else return operation(a, b, c);
}

// What .ftz, .sat and .relu make of operands and results. Subnormal f16 numbers are those below 2^-14; bf16 has no .ftz.
template <bool kFlush, class H>
inline H half_flush(H x) {
  if (kFlush && (x.bits & FormatOf<H>::type::kInfinity) == 0) x.bits &= 0x8000;
  return x;
}

template <bool kFlush, bool kSaturate, bool kRelu, class H>
inline H half_finish(f64 exact) {
  H x = half_flush<kFlush>(half_of<H>(exact));
  if (kSaturate) x = half_of<H>(saturate<true>(to_double(x)));
  if (kRelu && (half_is_nan(x) ? false : x.bits >> 15)) x.bits = 0;
  return x;
}

template <bool kFlush, bool kSaturate, bool kRelu, class T>
inline T half_fma(T a, T b, T c) {
  return halves([](auto x, auto y, auto z) {
    const f64 product = to_double(half_flush<kFlush>(x)) * to_double(half_flush<kFlush>(y));
    return half_finish<kFlush, kSaturate, kRelu, decltype(x)>(add_to_odd(product, to_double(half_flush<kFlush>(z))));
  }, a, b, c);
}

template <bool kFlush, bool kSaturate, class T>
inline T half_add(T a, T b) {
  return halves([](auto x, auto y, auto) {
    return half_finish<kFlush, kSaturate, false, decltype(x)>(
        add_to_odd(to_double(half_flush<kFlush>(x)), to_double(half_flush<kFlush>(y))));
  }, a, b);
}

template <bool kFlush, bool kSaturate, class T>
inline T half_sub(T a, T b) {
  return halves([](auto x, auto y, auto) {
    return half_finish<kFlush, kSaturate, false, decltype(x)>(
        add_to_odd(to_double(half_flush<kFlush>(x)), -to_double(half_flush<kFlush>(y))));
  }, a, b);
}

template <bool kFlush, bool kSaturate, class T>
inline T half_mul(T a, T b) {
  return halves([](auto x, auto y, auto) {
    return half_finish<kFlush, kSaturate, false, decltype(x)>(
        to_double(half_flush<kFlush>(x)) * to_double(half_flush<kFlush>(y)));
  }, a, b);
}

template <bool kFlush, class T>
inline T half_neg(T a) {
  return halves([](auto x, auto, auto) {
    using H = decltype(x);
    return half_is_nan(x) ? H{0x7fff} : H{u16(half_flush<kFlush>(x).bits ^ 0x8000)};
  }, a);
}

template <bool kFlush, class T>
inline T half_abs(T a) {
  return halves([](auto x, auto, auto) {
    using H = decltype(x);
    return half_is_nan(x) ? H{0x7fff} : H{u16(half_flush<kFlush>(x).bits & 0x7fff)};
  }, a);
}

// 9.7.4.7, 9.7.4.8: one NaN operand gives the other operand, with kNaN it gives NaN; -0 is below +0; with kSign the sign of the
// result is the exclusive or of both and magnitudes are compared.
template <bool kGreater, bool kFlush, bool kNaN, bool kSign, class T>
inline T half_extreme(T a, T b) {
  return halves([](auto x, auto y, auto) -> decltype(x) {
    using H = decltype(x);
    const u16 sign = (x.bits ^ y.bits) & 0x8000;
    if (half_is_nan(x) || half_is_nan(y)) {
      if (kNaN || (half_is_nan(x) && half_is_nan(y))) return {0x7fff};
      H number = half_flush<kFlush>(half_is_nan(x) ? y : x);
      if (kSign) number.bits = u16((number.bits & 0x7fff) | sign);
      return number;
    }
    x = half_flush<kFlush>(x);
    y = half_flush<kFlush>(y);
    if (kSign) x.bits &= 0x7fff, y.bits &= 0x7fff;
    const auto order = [](H h) { return h.bits & 0x8000 ? -s32(h.bits & 0x7fff) - 1 : s32(h.bits); };
    H result = (order(x) < order(y)) == kGreater ? y : x;
    if (kSign) result.bits |= sign;
    return result;
  }, a, b);
}

template <bool kFlush, class T>
inline T half_ex2(T a) {
  return halves([](auto x, auto, auto) {
    return half_flush<kFlush>(half_of<decltype(x)>(__builtin_exp2(to_double(half_flush<kFlush>(x)))));
  }, a);
}

template <class T>
inline T half_tanh(T a) {
  return halves([](auto x, auto, auto) { return half_of<decltype(x)>(__builtin_tanh(to_double(x))); }, a);
}

}  // namespace emu
