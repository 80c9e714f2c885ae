// Integer arithmetic: PTX ISA 9.7.1, and with a carry 9.7.2.
#pragma once

#include "types.h"

namespace emu {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
inline constexpr int kBits = sizeof(T) * 8;
template <class T>
inline constexpr bool kSigned = std::is_signed_v<T>;
template <class T>
inline constexpr T kMax = kSigned<T> ? T(Unsigned<T>(-1) >> 1) : T(-1);
template <class T>
inline constexpr T kMin = T(~kMax<T>);

// What twice as wide integers are.
template <class T>
using Wide = std::conditional_t<
    sizeof(T) == 8, std::conditional_t<kSigned<T>, __int128, unsigned __int128>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<kSigned<T>, s64, u64>, std::conditional_t<kSigned<T>, s32, u32>>>;

template <class T, class Operation>
inline T each(T a, T b, Operation operation) {
  if constexpr (kIsPair<T>) return {operation(a.low, b.low), operation(a.high, b.high)};
  else return operation(a, b);
}

template <class T>
inline T integer_add(T a, T b) {
  return each(a, b, [](auto x, auto y) { using E = decltype(x); return E(Unsigned<E>(x) + Unsigned<E>(y)); });
}

template <class T>
inline T integer_sub(T a, T b) {
  return T(Unsigned<T>(a) - Unsigned<T>(b));
}

inline s32 saturate_s32(s64 value) { return value > kMax<s32> ? kMax<s32> : value < kMin<s32> ? kMin<s32> : s32(value); }

template <class T>
inline T mul_lo(T a, T b) {
  return T(u64(a) * u64(b));
}

template <class T>
inline T mul_hi(T a, T b) {
  return T((Wide<T>(a) * Wide<T>(b)) >> kBits<T>);
}

template <class T>
inline Wide<T> mul_wide(T a, T b) {
  return Wide<T>(a) * Wide<T>(b);
}

// The 48-bit product of the low 24 bits (9.7.1.5).
template <class T>
inline s64 product24(T a, T b) {
  const auto low24 = [](T x) -> s64 { return kSigned<T> ? s64(s32(u32(x) << 8) >> 8) : s64(u32(x) & 0xffffff); };
  return low24(a) * low24(b);
}

template <class T>
inline T sad(T a, T b, T c) {
  const Unsigned<T> difference = a < b ? Unsigned<T>(b) - Unsigned<T>(a) : Unsigned<T>(a) - Unsigned<T>(b);
  return T(Unsigned<T>(c) + difference);
}

// Division by zero is unspecified (9.7.1.8); GPUs give all ones and leave the dividend as remainder.
template <class T>
inline T integer_div(T a, T b) {
  if (b == 0) return T(-1);
  if (kSigned<T> && b == T(-1)) return T(-Unsigned<T>(a));
  return a / b;
}

template <class T>
inline T integer_rem(T a, T b) {
  if (b == 0) return a;
  if (kSigned<T> && b == T(-1)) return 0;
  return a % b;
}

template <class T>
inline T integer_neg(T a) {
  return T(-Unsigned<T>(a));
}

template <class T>
inline T integer_abs(T a) {
  return a < 0 ? integer_neg(a) : a;
}

template <class T>
inline T integer_min(T a, T b) {
  return each(a, b, [](auto x, auto y) { return y < x ? y : x; });
}

template <class T>
inline T integer_max(T a, T b) {
  return each(a, b, [](auto x, auto y) { return x < y ? y : x; });
}

// .relu: negative results become zero.
template <class T>
inline T integer_relu(T a) {
  return each(a, a, [](auto x, auto) { return x < 0 ? decltype(x)(0) : x; });
}

template <class T>
inline u32 popc(T a) {
  return __builtin_popcountll(Unsigned<T>(a));
}

template <class T>
inline u32 clz(T a) {
  return a == 0 ? kBits<T> : __builtin_clzll(u64(Unsigned<T>(a))) - (64 - kBits<T>);
}

// The position of the most significant bit that is not the sign (9.7.1.16); with `shift`, how far left it has to go instead.
template <class T>
inline u32 bfind(T a, bool shift) {
  if (a < 0) a = T(~a);
  if (a == 0) return ~0u;
  const u32 position = kBits<T> - 1 - clz(a);
  return shift ? kBits<T> - 1 - position : position;
}

// The n-th set bit of `mask` from `base` on: upwards for n > 0, downwards for n < 0, `base` itself for n = 0 (9.7.1.17).
inline u32 fns(u32 mask, u32 base, s32 n) {
  if (base > 31) return ~0u;
  if (n == 0) return mask >> base & 1 ? base : ~0u;
  const int step = n > 0 ? 1 : -1;
  s32 left = n > 0 ? n : -n;
  for (s32 bit = s32(base); bit >= 0 && bit < 32; bit += step) {
    if (mask >> bit & 1 && --left == 0) return u32(bit);
  }
  return ~0u;
}

template <class T>
inline T brev(T a) {
  T reversed = 0;
  for (int i = 0; i < kBits<T>; ++i) reversed = T(reversed << 1 | (a >> i & 1));
  return reversed;
}

// 9.7.1.19: bits behind the most significant one are the sign's, and so is everything for a field that begins there.
template <class T>
inline T bfe(T a, u32 position, u32 length) {
  position &= 0xff;
  length &= 0xff;
  if (length == 0) return 0;
  constexpr u32 kLast = kBits<T> - 1;
  const u32 top = position + length - 1 < kLast ? position + length - 1 : kLast;
  const bool sign = kSigned<T> && (Unsigned<T>(a) >> top & 1);
  Unsigned<T> field = position > kLast ? 0 : Unsigned<T>(a) >> position;
  const u32 valid = position > kLast ? 0 : top - position + 1;
  if (valid <= kLast) {
    const Unsigned<T> mask = (Unsigned<T>(1) << valid) - 1;
    field = sign ? field | Unsigned<T>(~mask) : field & mask;
  }
  return T(field);
}

template <class T>
inline T bfi(T a, T b, u32 position, u32 length) {
  position &= 0xff;
  length &= 0xff;
  if (position >= u32(kBits<T>) || length == 0) return b;
  if (length > kBits<T> - position) length = kBits<T> - position;
  const T mask = T((length >= u32(kBits<T>) ? T(-1) : T((T(1) << length) - 1)) << position);
  return T((b & ~mask) | (T(a << position) & mask));
}

// Positions and widths beyond 31: clamped, or modulo 32 (9.7.1.21, 9.7.1.22).
inline u32 clamp_or_wrap(u32 n, bool wrap) { return wrap ? n & 31 : n > 32 ? 32 : n; }

template <class T>
inline T szext(T a, u32 width, bool wrap) {
  const u32 bits = clamp_or_wrap(width, wrap);
  if (bits == 0) return 0;
  if (bits == 32) return a;
  return T(T(u32(a) << (32 - bits)) >> (32 - bits));
}

inline u32 bmsk(u32 position, u32 width, bool wrap) {
  const u32 from = clamp_or_wrap(position, wrap), bits = clamp_or_wrap(width, wrap);
  const u64 mask = ((u64(1) << bits) - 1) << from;
  return u32(mask);
}

// Dot products of bytes with bytes, and of halfwords with two of the bytes (9.7.1.23, 9.7.1.24).
template <class A, class B>
inline u32 dp4a(u32 a, u32 b, u32 c) {
  using ByteA = std::conditional_t<kSigned<A>, s8, u8>;
  using ByteB = std::conditional_t<kSigned<B>, s8, u8>;
  for (int i = 0; i < 4; ++i) c += u32(s32(ByteA(a >> 8 * i)) * s32(ByteB(b >> 8 * i)));
  return c;
}

template <class A, class B>
inline u32 dp2a(u32 a, u32 b, u32 c, bool high) {
  using HalfA = std::conditional_t<kSigned<A>, s16, u16>;
  using ByteB = std::conditional_t<kSigned<B>, s8, u8>;
  for (int i = 0; i < 2; ++i) c += u32(s32(HalfA(a >> 16 * i)) * s32(ByteB(b >> (8 * i + (high ? 16 : 0)))));
  return c;
}

// ---- with a carry (9.7.2); CC.CF is a local variable of the generated function -------------------------------------------

template <class T>
inline T add_carry(T a, T b, bool carry_in, bool* carry_out) {
  using U = Unsigned<T>;
  const unsigned __int128 sum = (unsigned __int128)U(a) + U(b) + carry_in;
  if (carry_out) *carry_out = sum >> kBits<T> & 1;
  return T(sum);
}

template <class T>
inline T sub_borrow(T a, T b, bool borrow_in, bool* borrow_out) {
  using U = Unsigned<T>;
  const unsigned __int128 difference = (unsigned __int128)U(a) - U(b) - borrow_in;
  if (borrow_out) *borrow_out = difference >> kBits<T> & 1;
  return T(difference);
}

}  // namespace emu
