// Arithmetic of f32 and f64: PTX ISA 9.7.3. Approximate functions are computed in f64 and rounded, closer than the ISA demands.
#pragma once

#include "rounding.h"

namespace emu {

// Flushes operands, rounds as told, flushes and saturates the result, and makes NaN canonical.
template <Round R, bool kFlush, bool kSaturate, class T, class Operation>
inline T arithmetic(Operation operation, T a, T b = T(1), T c = T(0)) {
  if constexpr (R == Round::rn && !kFlush && !kSaturate) return canonical(operation(a, b, c));
  const T result = rounded<R>(operation, flush<kFlush>(a), flush<kFlush>(b), flush<kFlush>(c));
  return saturate<kSaturate>(canonical(flush<kFlush>(result)));
}

template <Round R, bool kFlush, bool kSaturate, class T>
inline T floating_add(T a, T b) {
  return arithmetic<R, kFlush, kSaturate>([](T x, T y, T) { return x + y; }, a, b);
}
template <Round R, bool kFlush, bool kSaturate, class T>
inline T floating_sub(T a, T b) {
  return arithmetic<R, kFlush, kSaturate>([](T x, T y, T) { return x - y; }, a, b);
}
template <Round R, bool kFlush, bool kSaturate, class T>
inline T floating_mul(T a, T b) {
  return arithmetic<R, kFlush, kSaturate>([](T x, T y, T) { return x * y; }, a, b);
}
template <Round R, bool kFlush, bool kSaturate, class T>
inline T floating_fma(T a, T b, T c) {
  return arithmetic<R, kFlush, kSaturate>([](T x, T y, T z) {
    if constexpr (std::is_same_v<T, f32>) return __builtin_fmaf(x, y, z);
    else return __builtin_fma(x, y, z);
  }, a, b, c);
}

// Most of a kernel's arithmetic rounds to nearest and neither flushes nor saturates. A kernel has thousands of such instructions, and
// g++ takes half as long to compile a call of a plain function as one of a template.
inline f32 add_f32(f32 a, f32 b) { return canonical(a + b); }
inline f32 sub_f32(f32 a, f32 b) { return canonical(a - b); }
inline f32 mul_f32(f32 a, f32 b) { return canonical(a * b); }
inline f32 fma_f32(f32 a, f32 b, f32 c) { return canonical(__builtin_fmaf(a, b, c)); }

template <Round R, bool kFlush, class T>
inline T floating_div(T a, T b) {
  return arithmetic<R, kFlush, false>([](T x, T y, T) { return x / y; }, a, b);
}
template <Round R, bool kFlush, class T>
inline T floating_sqrt(T a) {
  return arithmetic<R, kFlush, false>([](T x, T, T) {
    if constexpr (std::is_same_v<T, f32>) return __builtin_sqrtf(x);
    else return __builtin_sqrt(x);
  }, a);
}

// 9.7.3.8: div.approx gives 0 for divisors between 2^126 and 2^128, where its reciprocal is subnormal.
template <bool kFlush>
inline f32 div_approx(f32 a, f32 b) {
  const f32 magnitude = __builtin_fabsf(b);
  if (magnitude > 0x1p126f && magnitude < __builtin_inff()) {
    if (is_nan(a) || __builtin_isinf(a)) return float_of(0x7fffffff);
    return __builtin_copysignf(0.0f, a) * __builtin_copysignf(1.0f, b);
  }
  return floating_div<Round::rn, kFlush>(a, b);
}

// One of the approximate functions: flushed, in f64, rounded to f32.
template <bool kFlush, class Function>
inline f32 approximate(Function function, f32 a) {
  return canonical(flush<kFlush>(f32(function(f64(flush<kFlush>(a))))));
}
template <bool kFlush>
inline f32 rcp_approx(f32 a) {
  return approximate<kFlush>([](f64 x) { return 1 / x; }, a);
}
template <bool kFlush>
inline f32 sqrt_approx(f32 a) {
  return approximate<kFlush>([](f64 x) { return __builtin_sqrt(x); }, a);
}
template <bool kFlush>
inline f32 rsqrt_approx(f32 a) {
  return approximate<kFlush>([](f64 x) { return 1 / __builtin_sqrt(x); }, a);
}
template <bool kFlush>
inline f32 sin_approx(f32 a) {
  return approximate<kFlush>([](f64 x) { return __builtin_sin(x); }, a);
}
template <bool kFlush>
inline f32 cos_approx(f32 a) {
  return approximate<kFlush>([](f64 x) { return __builtin_cos(x); }, a);
}
template <bool kFlush>
inline f32 lg2_approx(f32 a) {
  return approximate<kFlush>([](f64 x) { return __builtin_log2(x); }, a);
}
template <bool kFlush>
inline f32 ex2_approx(f32 a) {
  return approximate<kFlush>([](f64 x) { return __builtin_exp2(x); }, a);
}
inline f32 tanh_approx(f32 a) {
  return approximate<false>([](f64 x) { return __builtin_tanh(x); }, a);
}

// 9.7.3.14, 9.7.3.17: the operand's and the result's low 32 bits are zero, subnormal numbers are flushed.
template <class Function>
inline f64 approximate_f64(Function function, f64 a) {
  const auto cut = [](f64 x) {
    const u64 bits = bits_of(x);
    return double_of((bits >> 52 & 0x7ff) == 0 ? bits & 1ull << 63 : bits & 0xffffffff00000000);
  };
  if (is_nan(a)) return double_of(0x7fffffff00000000);
  return cut(function(cut(a)));
}
inline f64 rcp_approx_f64(f64 a) {
  return approximate_f64([](f64 x) { return 1 / x; }, a);
}
inline f64 rsqrt_approx_f64(f64 a) {
  return approximate_f64([](f64 x) { return 1 / __builtin_sqrt(x); }, a);
}

template <bool kFlush, class T>
inline T floating_neg(T a) {
  return canonical(-flush<kFlush>(a));
}
template <bool kFlush, class T>
inline T floating_abs(T a) {
  if constexpr (std::is_same_v<T, f32>) return canonical(__builtin_fabsf(flush<kFlush>(a)));
  else return __builtin_fabs(a);
}

// 9.7.3.11, 9.7.3.12: one NaN operand gives the other operand, with kNaN it gives NaN; -0 is below +0; with kSign the sign of the
// result is the exclusive or of both and magnitudes are compared.
template <bool kGreater, bool kFlush, bool kNaN, bool kSign, class T>
inline T floating_extreme(T a, T b, decltype(nullptr)) {
  a = flush<kFlush>(a);
  b = flush<kFlush>(b);
  const bool negative = __builtin_signbit(a) != __builtin_signbit(b);
  const auto sign = [&](T x) {
    if constexpr (kSign) return is_nan(x) ? canonical(x) : negative ? -floating_abs<false>(x) : floating_abs<false>(x);
    else return canonical(x);
  };
  if (is_nan(a)) return kNaN ? canonical(a) : sign(b);
  if (is_nan(b)) return kNaN ? canonical(b) : sign(a);
  if constexpr (kSign) {
    a = floating_abs<false>(a);
    b = floating_abs<false>(b);
  }
  if (a == b) return sign(bool(__builtin_signbit(a)) == kGreater ? b : a);
  return sign((a < b) == kGreater ? b : a);
}

// Of three operands.
template <bool kGreater, bool kFlush, bool kNaN, bool kSign, class T>
inline T floating_extreme(T a, T b, T c) {
  const T first = floating_extreme<kGreater, kFlush, kNaN, kSign>(a, b, nullptr);
  return floating_extreme<kGreater, kFlush, kNaN, kSign>(first, c, nullptr);
}

template <class T>
inline T copysign(T sign_of, T magnitude) {
  if constexpr (std::is_same_v<T, f32>) return __builtin_copysignf(magnitude, sign_of);
  else return __builtin_copysign(magnitude, sign_of);
}

// testp.normal counts zero among the normal numbers (9.7.3.1).
template <class T>
inline bool is_normal(T a) {
  return __builtin_isnormal(a) || a == T(0);
}
template <class T>
inline bool is_subnormal(T a) {
  return __builtin_isfinite(a) && !is_normal(a);
}

}  // namespace emu
